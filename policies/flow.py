"""A vision-language policy that denoises its actions by flow matching, with an action expert as pi0 has it.

Black et al. 2024, arXiv:2410.24164: a transformer reads pictures, words and state once per decision; a smaller one, the
expert, reads what it made of them in every denoising step. Reinforcement learning takes the noisy denoising of
`policies.denoising`, whose path is stored with each decision and has an exact density.
"""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from embodied import noise as keyed
from embodied.errors import ConfigError, SpecMismatch
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
from policies.network import Decided, Inputs, Judged, PolicyNetwork, check_chunk
from policies.nn import gaussian_log_prob
from policies.senses import Senses, action_scales
from policies.torch_policy import TorchPolicy
from policies.words import words_of


class FlowNetwork(PolicyNetwork):
    """A reader, an expert that denoises, a critic.

    The mode of the distribution is taken to be where the equation without noise leads from the mode of its start, zero;
    its log-probability is unknown. Numbers of an action that was not executed are left out of a loss although their
    paths had some influence on the others', since the actions of a chunk attend to each other as in pi0: masking is
    exact for chunks that were executed whole, and near for the few that an episode's end cut short.

    Args:
        senses: What is read.
        chunk: K.
        scale: [D] physical units of one raw unit.
        channels, grid, width, layers, heads: Of the reader.
        expert_width: Of the expert, which has as many layers and heads as the reader.
        critic: Widths of the critic's layers.
        steps: Of denoising.
        noise: a of `denoising.noise_levels`; nothing learns it.
        times: Denoising times that one demonstration is shown at in `clone_loss`; the reader's cost is shared.
        seed: Draws the weights.
    """

    critic: Critic
    times: Tensor
    levels: Tensor

    def __init__(
        self,
        senses: Senses,
        chunk: int,
        scale: Sequence[float],
        channels: Sequence[int],
        grid: bool,
        width: int,
        layers: int,
        heads: int,
        expert_width: int,
        critic: Sequence[int],
        steps: int,
        noise: float,
        times: int,
        seed: int,
    ) -> None:
        numbers, own = senses.sizes
        super().__init__(chunk, scale, numbers + own, numbers)
        generator = torch.Generator().manual_seed(seed)
        self.reader = seeded_(Reader(senses, channels, grid, width, layers, heads), generator)
        self.expert = Expert(chunk, self.action_dim, expert_width, layers, heads, width, generator)
        self.critic = Critic(numbers + own if own else 0, width, critic, generator)
        self.value_reads_rest = not self.critic.privileged
        self.steps, self.clone_times = steps, times
        self.register_buffer("times", denoising_times(steps), persistent=False)
        self.register_buffer("levels", noise_levels(self.times, noise), persistent=False)

    def draw(self, noise_keys: NDArray[np.int64]) -> Tensor:
        """[N, steps + 1, K, D]: the start, then the noise of each step."""
        shape = (self.steps + 1, self.chunk, self.action_dim)
        draws = keyed.normal(noise_keys, math.prod(shape), ACTION_NOISE)
        return torch.from_numpy(draws).to(self.device).view(-1, *shape)

    def decide(self, inputs: Inputs, draws: Tensor | None) -> Decided:
        layers, there = self.reader(inputs)
        memory, rows = self.expert.remember(layers), len(there)
        values = self._value(inputs, layers[-1], there)
        if draws is None:
            x = self.times.new_zeros(rows, self.chunk, self.action_dim)
            for time, following in pairwise(self.times):
                x = ode_step(x, self._velocity(x, time, memory, there), time, following)
            return Decided(x * self.action_scale, torch.full_like(x, math.nan), values)
        x = draws[:, 0]
        path, log_probs = [x], torch.zeros_like(x)
        for i, (time, following) in enumerate(pairwise(self.times)):
            mean, log_std = sde_step(x, self._velocity(x, time, memory, there), time, following, self.levels[i])
            x = mean + log_std.exp() * draws[:, i + 1]
            path.append(x)
            log_probs = log_probs + gaussian_log_prob(x, mean, log_std)
        return Decided(x * self.action_scale, log_probs, values, {"path": torch.stack(path, dim=1)})

    def judge(self, inputs: Inputs, actions: Tensor, stored: Inputs) -> Judged:
        """All denoising steps at once; the path is in raw units and ends at `actions`, which are not looked at."""
        layers, there = self.reader(inputs)
        path = stored["path"]
        velocities = self.expert(path[:, :-1], self.times[:-1], self.expert.remember(layers), there)
        log_probs = path_log_prob(path, velocities, self.times, self.levels)
        entropy = path_entropy(self.times, self.levels).expand_as(log_probs)
        return Judged(log_probs, self._value(inputs, layers[-1], there), entropy)

    def value(self, inputs: Inputs) -> Tensor:
        return self._value(inputs, None, None)

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

    def _value(self, inputs: Inputs, tokens: Tensor | None, there: Tensor | None) -> Tensor:
        if self.critic.privileged:
            return self.critic.own_view(inputs)
        if tokens is None or there is None:
            with torch.no_grad():
                layers, there = self.reader(inputs)
            tokens = layers[-1]
        return self.critic(masked_average(tokens, there))


class FlowPolicy(TorchPolicy):
    """Chunks of K actions, denoised, from pictures, an instruction and the robot's own state, or some of them.

    Args:
        name: Name of the policy.
        agent: Streams offered.
        chunk: K. execute: How many of them before asking again; all where 0.
        state, pictures, instruction, critic: Names of streams, as in `Senses.choose`.
        words: Arguments of `policies.words.Words`.
        channels, grid, width, layers, heads, expert_width, steps, noise, times, seed: As of `FlowNetwork`.
        critic_hidden: Widths of the critic's layers.

    Raises:
        ConfigError: A number is out of its range.
        SpecMismatch: A stream is not offered, there is no picture although `pictures` is None, nothing is read, or an
            action is not float32.
    """

    network: FlowNetwork

    def __init__(
        self,
        name: str,
        agent: AgentSpec,
        chunk: int = 4,
        execute: int = 0,
        state: Sequence[str] = (),
        pictures: Sequence[str] | None = None,
        instruction: str | None = "instruction",
        critic: Sequence[str] = (),
        words: dict[str, Any] | None = None,
        channels: Sequence[int] = (16, 32, 48, 48),
        grid: bool = True,
        width: int = 64,
        layers: int = 2,
        heads: int = 4,
        expert_width: int = 64,
        critic_hidden: Sequence[int] = (128, 128),
        steps: int = 4,
        noise: float = 0.3,
        times: int = 4,
        seed: int = 0,
    ) -> None:
        check_chunk(chunk, execute)
        if not channels or min(*channels, layers, heads, times) < 1:
            what = f"channels {list(channels)}, layers {layers}, heads {heads}, times {times}"
            raise ConfigError(what, "policy", "give sizes above zero")
        for what, size, unit in (("width", width, math.lcm(4, heads)), ("expert_width", expert_width, 2 * heads)):
            if size < unit or size % unit:
                raise ConfigError(f"{what} {size} with {heads} heads", "policy", f"give a multiple of {unit}")
        if steps < 2 or not 0 < noise < math.inf:
            raise ConfigError(f"steps {steps}, noise {noise}", "policy", "give steps >= 2 and noise above zero")
        senses = Senses.choose(agent, state, pictures, instruction, words_of(words), critic)
        if not senses.pictures and pictures is None:
            fix = "give body.cameras, such as [front], or policy.pictures=[] to do without"
            raise SpecMismatch(f"policy {name} finds no picture", "spec", fix)
        if not senses.observations:
            raise SpecMismatch(f"policy {name} reads nothing", "spec", "give policy.state, such as [joint_pos]")
        scale = action_scales(agent)
        with torch.random.fork_rng(devices=[]):  # torch's layers draw from its global generator, before ours do
            network = FlowNetwork(
                senses, chunk, scale, channels, grid, width, layers, heads, expert_width, critic_hidden, steps, noise,
                times, seed,
            )  # fmt: skip
        extra = {
            "kind": "flow", "channels": list(channels), "grid": grid, "width": width, "layers": layers, "heads": heads,
            "expert_width": expert_width, "steps": steps, "noise": noise, "action_scale": scale,
        }  # fmt: skip
        stored = (Stream("path", (steps + 1, chunk, len(scale))),)
        super().__init__(name, agent.actions, senses, network, extra, execute, stored=stored)


def build(agent: AgentSpec, **config: Any) -> FlowPolicy:
    """The policy a config's import path points to; `config` holds `name` and any argument of `FlowPolicy`."""
    try:
        return FlowPolicy(agent=agent, **config)
    except TypeError as error:
        raise ConfigError(f"not a flow policy: {error}", "policy", "see the arguments of FlowPolicy") from None
