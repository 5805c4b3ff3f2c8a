"""A Gaussian policy of two small tanh networks over all one-dimensional float streams."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from embodied import noise
from embodied.errors import SpecMismatch
from embodied.settings import AboveZero, AtLeastOne, Seed, configured
from embodied.spec import AgentSpec
from policies.network import Evaluated, Inputs, PolicyNetwork, Sampled
from policies.nn import gaussian_entropy, gaussian_log_prob, tanh_mlp
from policies.senses import Senses, action_scales
from policies.torch_policy import TorchPolicy

BLOCK = 64
ACTION_NOISE = 1  # `purpose` of the keyed noise


class GaussianActorCritic(PolicyNetwork):
    """Separate actor and critic on one flat observation, with a standard deviation that no state changes.

    Args:
        inputs: F.
        chunk: K.
        scale: [D] physical units of one raw unit.
        hidden: Widths of the hidden layers.
        init_std: Standard deviation of raw actions to begin with.
        seed: Draws the weights.
    """

    def __init__(
        self, inputs: int, chunk: int, scale: Sequence[float], hidden: Sequence[int], init_std: float, seed: int
    ) -> None:
        super().__init__(chunk, scale, inputs, inputs)
        generator = torch.Generator().manual_seed(seed)
        self.actor = tanh_mlp((inputs, *hidden, chunk * self.action_dim), 0.01, generator)
        self.critic = tanh_mlp((inputs, *hidden, 1), 1.0, generator)
        self.log_std = nn.Parameter(torch.full((self.action_dim,), math.log(init_std)))

    def raw_mean(self, inputs: Inputs) -> Tensor:
        """Means of raw actions [N, K, D]."""
        return self.actor(inputs["state"]).view(-1, self.chunk, self.action_dim)

    def sample_noise(self, noise_keys: NDArray[np.int64]) -> Tensor:
        draws = noise.normal(noise_keys, self.chunk * self.action_dim, ACTION_NOISE)
        return torch.from_numpy(draws).to(self.device).view(-1, self.chunk, self.action_dim)

    def sample(self, inputs: Inputs, noise: Tensor | None) -> Sampled:
        mean = self.raw_mean(inputs)
        raw = mean if noise is None else mean + torch.exp(self.log_std) * noise
        actions = raw * self.action_scale
        return Sampled(actions, self._log_prob(mean, actions), self.value(inputs))

    def evaluate_actions(self, inputs: Inputs, actions: Tensor, stored: Inputs) -> Evaluated:
        mean = self.raw_mean(inputs)
        entropy = gaussian_entropy(self.log_std).expand_as(mean)
        return Evaluated(self._log_prob(mean, actions), self.value(inputs), entropy)

    def value(self, inputs: Inputs) -> Tensor:
        return self.critic(inputs["state"]).squeeze(-1)

    def clone_loss(self, inputs: Inputs, actions: Tensor, generator: torch.Generator) -> Tensor:
        """Squared error of raw actions: maximum likelihood for a Gaussian of fixed standard deviation."""
        return (self.raw_mean(inputs) - actions / self.action_scale).square().mean(-1)

    def prepare_clone(self, std: float) -> None:
        with torch.no_grad():
            self.log_std.fill_(math.log(std))

    def _log_prob(self, raw_mean: Tensor, actions: Tensor) -> Tensor:
        return gaussian_log_prob(actions / self.action_scale, raw_mean, self.log_std)


class MLPPolicy(TorchPolicy):
    """Chunks of one action from the one-dimensional float32 streams, concatenated in the order of `agent.observations`.

    Args:
        name: Name of the policy.
        agent: Streams offered; those that are not float32, or have more dimensions, are left out of `spec`.
        hidden: Widths of the hidden layers of actor and critic each.
        init_std: Standard deviation of raw actions to begin with; 1 is one `action_scale`.
        action_scale: Physical units of one raw unit, for all action streams or by stream name; where not given, the
            stream's limit, or 1 where it has none.
        seed: Draws the initial weights.

    Raises:
        ConfigError: A width, standard deviation or scale is not positive, or a scale names no action stream.
        SpecMismatch: No float observation stream, or an action stream that is not float32.
    """

    network: GaussianActorCritic

    def __init__(
        self,
        name: str,
        agent: AgentSpec,
        hidden: Sequence[AtLeastOne] = (128, 128),
        init_std: AboveZero = 0.6,
        action_scale: AboveZero | Mapping[str, AboveZero] | None = None,
        seed: Seed = 0,
    ) -> None:
        senses = Senses(tuple(s for s in agent.observations if s.dtype == "float32" and len(s.shape) < 2))
        if not senses.state:
            raise SpecMismatch(f"policy {name} finds no float32 observation", "spec", "use a policy that takes images")
        scale = action_scales(agent, action_scale)
        network = GaussianActorCritic(senses.sizes[0], 1, scale, hidden, init_std, seed)
        extra = {"kind": "mlp", "hidden": list(hidden), "action_scale": scale}
        super().__init__(name, agent.actions, senses, network, extra, block=BLOCK)


def build(agent: AgentSpec, **config: Any) -> MLPPolicy:
    """The policy a config's import path points to; `config` holds `name` and any argument of `MLPPolicy`."""
    return configured(MLPPolicy, config, agent=agent)
