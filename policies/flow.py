"""A vision-language policy that denoises its actions by flow matching, with an action expert as pi0 has it.

Black et al. 2024, arXiv:2410.24164: a transformer reads pictures, words and state once per decision; a smaller one, the
expert, reads what it made of them in every denoising step. Reinforcement learning takes the noisy denoising of
`policies.denoising`, whose path is stored with each decision and has an exact density.
"""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Annotated, Any

import numpy as np
import torch
from annotated_types import Ge
from numpy.typing import NDArray
from torch import Tensor

from embodied import noise as keyed
from embodied.settings import AboveZero, AtLeastOne, configured, settings
from embodied.spec import AgentSpec, Stream
from policies.denoising import (
    denoising_times,
    draw_times,
    interpolate,
    noise_levels,
    ode_step,
    path_entropy,
    path_log_prob,
    sde_step,
)
from policies.encoders import Critic, masked_average, seeded_
from policies.expert import Expert, Memory, Reader
from policies.mlp import ACTION_NOISE
from policies.network import Evaluated, Inputs, Sampled
from policies.nn import gaussian_log_prob
from policies.senses import Senses
from policies.vla import VLANetwork, VLAPolicy, VLASettings


@settings("policy")
class FlowSettings(VLASettings):
    """Of a flow policy, which may do without pictures or an instruction.

    Attributes:
        grid, width, layers, heads: Of the reader.
        expert_width: Of the expert, which has as many layers and heads as the reader.
        steps: Of denoising.
        noise: a of `denoising.noise_levels`; nothing learns it.
        times: Denoising times that one demonstration is shown at in `clone_loss`; the reader's cost is shared.
    """

    grid: bool = True
    width: AtLeastOne = 64
    layers: AtLeastOne = 2
    heads: AtLeastOne = 4
    expert_width: AtLeastOne = 64
    steps: Annotated[int, Ge(2)] = 4
    noise: AboveZero = 0.3
    times: AtLeastOne = 4

    identity = ("channels", "grid", "width", "layers", "heads", "expert_width", "steps", "noise")
    may_lack = True

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, unit in (("width", math.lcm(4, self.heads)), ("expert_width", 2 * self.heads)):
            self.require_multiple(name, unit, f"with {self.heads} heads")


class FlowNetwork(VLANetwork):
    """A reader, an expert that denoises, a critic.

    The mode of the distribution is taken to be where the equation without noise leads from the mode of its start, zero;
    its log-probability is unknown. Numbers of an action that was not executed are left out of a loss although their
    paths had some influence on the others', since the actions of a chunk attend to each other as in pi0: masking is
    exact for chunks that were executed whole, and near for the few that an episode's end cut short.

    Args:
        senses, scale, settings: As of `VLANetwork`.
    """

    times: Tensor
    levels: Tensor

    def __init__(self, senses: Senses, scale: Sequence[float], settings: FlowSettings) -> None:
        numbers, own = senses.sizes
        super().__init__(senses, scale, settings)
        generator = torch.Generator().manual_seed(settings.seed)
        width, layers, heads = settings.width, settings.layers, settings.heads
        reader = Reader(senses, settings.channels, settings.grid, width, layers, heads)
        self.reader = seeded_(reader, generator)
        self.expert = Expert(self.chunk, self.action_dim, settings.expert_width, layers, heads, width, generator)
        self.critic = Critic(numbers + own if own else 0, width, settings.critic_hidden, generator)
        self.steps, self.clone_times = settings.steps, settings.times
        self.stored = (Stream("path", (self.steps + 1, self.chunk, self.action_dim)),)
        self.register_buffer("times", denoising_times(self.steps), persistent=False)
        self.register_buffer("levels", noise_levels(self.times, settings.noise), persistent=False)

    def features(self, inputs: Inputs) -> Tensor:
        layers, there = self.reader(inputs)
        return masked_average(layers[-1], there)

    def sample_noise(self, noise_keys: NDArray[np.int64]) -> Tensor:
        """[N, steps + 1, K, D]: the start, then the noise of each step."""
        shape = (self.steps + 1, self.chunk, self.action_dim)
        draws = keyed.normal(noise_keys, math.prod(shape), ACTION_NOISE)
        return torch.from_numpy(draws).to(self.device).view(-1, *shape)

    def sample(self, inputs: Inputs, noise: Tensor | None) -> Sampled:
        layers, there = self.reader(inputs)
        memory, rows = self.expert.remember(layers), len(there)
        values = self.value_of(inputs, masked_average(layers[-1], there))
        if noise is None:
            x = self.times.new_zeros(rows, self.chunk, self.action_dim)
            for time, following in pairwise(self.times):
                x = ode_step(x, self._velocity(x, time, memory, there), time, following)
            return Sampled(x * self.action_scale, torch.full_like(x, math.nan), values)
        x = noise[:, 0]
        path, log_probs = [x], torch.zeros_like(x)
        for i, (time, following) in enumerate(pairwise(self.times)):
            mean, log_std = sde_step(x, self._velocity(x, time, memory, there), time, following, self.levels[i])
            x = mean + log_std.exp() * noise[:, i + 1]
            path.append(x)
            log_probs = log_probs + gaussian_log_prob(x, mean, log_std)
        return Sampled(x * self.action_scale, log_probs, values, {"path": torch.stack(path, dim=1)})

    def evaluate_actions(self, inputs: Inputs, actions: Tensor, stored: Inputs) -> Evaluated:
        """All denoising steps at once; the path is in raw units and ends at `actions`, which are not looked at."""
        layers, there = self.reader(inputs)
        path = stored["path"]
        velocities = self.expert(path[:, :-1], self.times[:-1], self.expert.remember(layers), there)
        log_probs = path_log_prob(path, velocities, self.times, self.levels)
        entropy = path_entropy(self.times, self.levels).expand_as(log_probs)
        return Evaluated(log_probs, self.value_of(inputs, masked_average(layers[-1], there)), entropy)

    def clone_loss(self, inputs: Inputs, actions: Tensor, generator: torch.Generator) -> Tensor:
        """Squared error of the velocity (Lipman et al. 2023, arXiv:2210.02747, equation 23, with sigma_min 0 and time
        from noise at 1), each demonstration at several times and noises for one pass of the reader, as in CogACT (Li et
        al. 2024, arXiv:2411.19650)."""
        shape = (len(actions), self.clone_times, *actions.shape[1:])
        noise = torch.randn(shape, generator=generator).to(self.device)
        times = draw_times(shape[:2], generator).to(self.device)
        raw = (actions / self.action_scale)[:, None]
        layers, there = self.reader(inputs)
        noisy = interpolate(raw, noise, times[..., None, None])
        velocities = self.expert(noisy, times, self.expert.remember(layers), there)
        return (velocities - (noise - raw)).square().mean(dim=(1, 3))

    def _velocity(self, x: Tensor, time: Tensor, memory: Memory, there: Tensor) -> Tensor:
        return self.expert(x[:, None], time[None], memory, there)[:, 0]


class FlowPolicy(VLAPolicy):
    """Chunks of K actions, denoised, from pictures, an instruction and the robot's own state, or some of them; see
    `VLAPolicy`."""

    kind, settings_type, network_type = "flow", FlowSettings, FlowNetwork
    network: FlowNetwork


def build(agent: AgentSpec, **config: Any) -> FlowPolicy:
    """The policy a config's import path points to; `config` holds `name` and any field of `FlowSettings`."""
    return configured(FlowPolicy, config, agent=agent)
