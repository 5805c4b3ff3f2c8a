"""A small vision-language policy that learns in minutes on a CPU: convolutions steered by words, a Gaussian chunk."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from embodied import noise
from embodied.settings import AboveZero, AtLeastOne, configured, settings
from embodied.spec import AgentSpec
from policies.encoders import HEADS, Convolutions, Critic, SpatialSoftmax, WordEncoder, head, module_key, seeded_
from policies.mlp import ACTION_NOISE
from policies.network import Evaluated, Inputs, Sampled
from policies.nn import gaussian_entropy, gaussian_log_prob
from policies.senses import Senses
from policies.vla import VLANetwork, VLAPolicy, VLASettings


@settings("policy")
class FiLMSettings(VLASettings):
    """Of a FiLM policy.

    Attributes:
        width: Of the words' features. hidden: Of the head.
        init_std: Standard deviation of raw actions to begin with.
    """

    width: AtLeastOne = 64
    hidden: AtLeastOne = 256
    init_std: AboveZero = 0.3

    identity = ("channels", "width", "hidden")

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require_multiple("width", HEADS, "the words' heads")


class FiLMNetwork(VLANetwork):
    """Pictures through convolutions that the instruction steers, to coordinates of what matters, to a chunk's means.

    Args:
        senses, scale, settings: As of `VLANetwork`.
    """

    def __init__(self, senses: Senses, scale: Sequence[float], settings: FiLMSettings) -> None:
        numbers, own = senses.sizes
        super().__init__(senses, scale, settings)
        generator = torch.Generator().manual_seed(settings.seed)
        channels, width = settings.channels, settings.width
        assert senses.words is not None
        self.cameras = [stream.name for stream in senses.pictures]
        self.words = seeded_(WordEncoder(senses.words.vocabulary, senses.words.length, width), generator)
        self.eyes = nn.ModuleDict(
            {module_key(c): seeded_(Convolutions(channels, width), generator) for c in self.cameras}
        )
        self.points = SpatialSoftmax()
        features = 2 * channels[-1] * len(self.cameras) + width + numbers
        self.actor = head(features, settings.hidden, self.chunk * self.action_dim, generator)
        self.critic = Critic(numbers + own if own else 0, features, settings.critic_hidden, generator)
        self.log_std = nn.Parameter(torch.full((self.action_dim,), math.log(settings.init_std)))

    def features(self, inputs: Inputs) -> Tensor:
        said = self.words(inputs["words"])
        seen = [self.points(self.eyes[module_key(camera)](inputs[camera], said)) for camera in self.cameras]
        return torch.cat([*seen, said, inputs["state"]], dim=1)

    def raw_mean(self, features: Tensor) -> Tensor:
        """Means of raw actions [N, K, D]."""
        return self.actor(features).view(-1, self.chunk, self.action_dim)

    def sample_noise(self, noise_keys: NDArray[np.int64]) -> Tensor:
        draws = noise.normal(noise_keys, self.chunk * self.action_dim, ACTION_NOISE)
        return torch.from_numpy(draws).to(self.device).view(-1, self.chunk, self.action_dim)

    def sample(self, inputs: Inputs, noise: Tensor | None) -> Sampled:
        features = self.features(inputs)
        mean = self.raw_mean(features)
        raw = mean if noise is None else mean + torch.exp(self.log_std) * noise
        actions = raw * self.action_scale
        return Sampled(actions, self._log_prob(mean, actions), self.value_of(inputs, features))

    def evaluate_actions(self, inputs: Inputs, actions: Tensor, stored: Inputs) -> Evaluated:
        features = self.features(inputs)
        mean = self.raw_mean(features)
        entropy = gaussian_entropy(self.log_std).expand_as(mean)
        return Evaluated(self._log_prob(mean, actions), self.value_of(inputs, features), entropy)

    def clone_loss(self, inputs: Inputs, actions: Tensor, generator: torch.Generator) -> Tensor:
        """Squared error of raw actions: maximum likelihood for a Gaussian of fixed standard deviation."""
        return (self.raw_mean(self.features(inputs)) - actions / self.action_scale).square().mean(-1)

    def prepare_clone(self, std: float) -> None:
        with torch.no_grad():
            self.log_std.fill_(math.log(std))

    def _log_prob(self, raw_mean: Tensor, actions: Tensor) -> Tensor:
        return gaussian_log_prob(actions / self.action_scale, raw_mean, self.log_std)


class FiLMPolicy(VLAPolicy):
    """Chunks of K actions from pictures, an instruction and the robot's own state; see `VLAPolicy`."""

    kind, settings_type, network_type = "film", FiLMSettings, FiLMNetwork
    network: FiLMNetwork


def build(agent: AgentSpec, **config: Any) -> FiLMPolicy:
    """The policy a config's import path points to; `config` holds `name` and any field of `FiLMSettings`."""
    return configured(FiLMPolicy, config, agent=agent)
