"""A small vision-language policy that learns in minutes on a CPU: convolutions steered by words, a Gaussian chunk."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from embodied import noise
from embodied.errors import ConfigError, SpecMismatch
from embodied.spec import AgentSpec
from policies.encoders import HEADS, Convolutions, Critic, SpatialSoftmax, WordEncoder, head, seeded_
from policies.mlp import ACTION_NOISE
from policies.network import Decided, Inputs, Judged, PolicyNetwork, check_chunk
from policies.nn import gaussian_entropy, gaussian_log_prob
from policies.senses import Senses, action_scales
from policies.torch_policy import TorchPolicy
from policies.words import words_of


class FiLMNetwork(PolicyNetwork):
    """Pictures through convolutions that the instruction steers, to coordinates of what matters, to a chunk's means.

    Args:
        senses: What is read.
        chunk: K.
        scale: [D] physical units of one raw unit.
        channels: Of the convolutions.
        width: Of the words' features. hidden: Of the head.
        critic: Widths of the critic's layers.
        init_std: Standard deviation of raw actions to begin with.
        seed: Draws the weights.
    """

    critic: Critic

    def __init__(
        self,
        senses: Senses,
        chunk: int,
        scale: Sequence[float],
        channels: Sequence[int],
        width: int,
        hidden: int,
        critic: Sequence[int],
        init_std: float,
        seed: int,
    ) -> None:
        numbers, own = senses.sizes
        super().__init__(chunk, scale, numbers + own, numbers)
        generator = torch.Generator().manual_seed(seed)
        assert senses.words is not None
        self.cameras = [stream.name for stream in senses.pictures]
        self.words = seeded_(WordEncoder(senses.words.vocabulary, senses.words.length, width), generator)
        self.eyes = nn.ModuleDict({c: seeded_(Convolutions(channels, width), generator) for c in self.cameras})
        self.points = SpatialSoftmax()
        features = 2 * channels[-1] * len(self.cameras) + width + numbers
        self.actor = head(features, hidden, chunk * self.action_dim, generator)
        self.critic = Critic(numbers + own if own else 0, features, critic, generator)
        self.value_reads_rest = not self.critic.privileged
        self.log_std = nn.Parameter(torch.full((self.action_dim,), math.log(init_std)))

    def features(self, inputs: Inputs) -> Tensor:
        """[N, features] of what is seen, said and felt."""
        said = self.words(inputs["words"])
        seen = [self.points(self.eyes[camera](inputs[camera], said)) for camera in self.cameras]
        return torch.cat([*seen, said, inputs["state"]], dim=1)

    def raw_mean(self, features: Tensor) -> Tensor:
        """Means of raw actions [N, K, D]."""
        return self.actor(features).view(-1, self.chunk, self.action_dim)

    def draw(self, noise_keys: NDArray[np.int64]) -> Tensor:
        draws = noise.normal(noise_keys, self.chunk * self.action_dim, ACTION_NOISE)
        return torch.from_numpy(draws).to(self.device).view(-1, self.chunk, self.action_dim)

    def decide(self, inputs: Inputs, draws: Tensor | None) -> Decided:
        features = self.features(inputs)
        mean = self.raw_mean(features)
        raw = mean if draws is None else mean + torch.exp(self.log_std) * draws
        actions = raw * self.action_scale
        return Decided(actions, self._log_prob(mean, actions), self._value(inputs, features))

    def judge(self, inputs: Inputs, actions: Tensor, stored: Inputs) -> Judged:
        features = self.features(inputs)
        mean = self.raw_mean(features)
        entropy = gaussian_entropy(self.log_std).expand_as(mean)
        return Judged(self._log_prob(mean, actions), self._value(inputs, features), entropy)

    def value(self, inputs: Inputs) -> Tensor:
        return self._value(inputs, None)

    def clone_loss(self, inputs: Inputs, actions: Tensor, generator: torch.Generator) -> Tensor:
        """Squared error of raw actions: maximum likelihood for a Gaussian of fixed standard deviation."""
        return (self.raw_mean(self.features(inputs)) - actions / self.action_scale).square().mean(-1)

    def prepare_clone(self, std: float) -> None:
        with torch.no_grad():
            self.log_std.fill_(math.log(std))

    def _value(self, inputs: Inputs, features: Tensor | None) -> Tensor:
        if self.critic.privileged:
            return self.critic.own_view(inputs)
        with torch.no_grad():
            features = self.features(inputs) if features is None else features
        return self.critic(features)

    def _log_prob(self, raw_mean: Tensor, actions: Tensor) -> Tensor:
        return gaussian_log_prob(actions / self.action_scale, raw_mean, self.log_std)


class FiLMPolicy(TorchPolicy):
    """Chunks of K actions from pictures, an instruction and the robot's own state.

    Args:
        name: Name of the policy.
        agent: Streams offered.
        chunk: K. execute: How many of them before asking again; all where 0.
        state, pictures, instruction, critic: Names of streams, as in `Senses.choose`.
        channels: Of the convolutions. width: Of the words' features. hidden: Of the head.
        critic_hidden: Widths of the critic's layers.
        words: Arguments of `policies.words.Words`.
        init_std: Standard deviation of raw actions to begin with.
        seed: Draws the initial weights.

    Raises:
        ConfigError: A number is out of its range.
        SpecMismatch: A stream is not offered, there is no picture or instruction, or an action is not float32.
    """

    network: FiLMNetwork

    def __init__(
        self,
        name: str,
        agent: AgentSpec,
        chunk: int = 4,
        execute: int = 0,
        state: Sequence[str] = (),
        pictures: Sequence[str] | None = None,
        instruction: str = "instruction",
        critic: Sequence[str] = (),
        channels: Sequence[int] = (16, 32, 48, 48),
        width: int = 64,
        hidden: int = 256,
        critic_hidden: Sequence[int] = (128, 128),
        words: dict[str, Any] | None = None,
        init_std: float = 0.3,
        seed: int = 0,
    ) -> None:
        sizes = {"channels": channels, "width": [width], "hidden": [hidden], "critic_hidden": critic_hidden}
        for what, numbers in sizes.items():
            if not numbers or min(numbers) < 1:
                raise ConfigError(f"{what} {list(numbers)}", f"policy.{what}", "give whole numbers above zero")
        check_chunk(chunk, execute)
        if width % HEADS:
            raise ConfigError(f"width {width}", "policy.width", f"give a multiple of {HEADS}, the words' heads")
        if not init_std > 0:
            raise ConfigError(f"init_std {init_std}", "policy.init_std", "give a number above zero")
        senses = Senses.choose(agent, state, pictures, instruction, words_of(words), critic)
        if not senses.pictures:
            raise SpecMismatch(f"policy {name} finds no picture", "spec", "give body.cameras, such as [front]")
        if not senses.words:
            raise SpecMismatch(f"policy {name} reads no instruction", "policy.instruction", "name the stream of one")
        scale = action_scales(agent)
        with torch.random.fork_rng(devices=[]):  # torch's layers draw from its global generator, before ours do
            network = FiLMNetwork(senses, chunk, scale, channels, width, hidden, critic_hidden, init_std, seed)
        extra = {"kind": "film", "channels": list(channels), "width": width, "hidden": hidden, "action_scale": scale}
        super().__init__(name, agent.actions, senses, network, extra, execute)


def build(agent: AgentSpec, **config: Any) -> FiLMPolicy:
    """The policy a config's import path points to; `config` holds `name` and any argument of `FiLMPolicy`."""
    try:
        return FiLMPolicy(agent=agent, **config)
    except TypeError as error:
        raise ConfigError(f"not a FiLM policy: {error}", "policy", "see the arguments of FiLMPolicy") from None
