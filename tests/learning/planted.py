"""Policies that serve something else than the weights they were pushed say, one for each way in which that happens."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from embodied.client import LocalClient
from embodied.data import ActionChunk, Observation, Rows
from embodied.spec import AgentSpec, Stream
from policies.base import Mode
from policies.film import FiLMPolicy
from policies.mlp import MLPPolicy
from policies.network import Inputs
from policies.torch_policy import TorchPolicy
from policies.words import Words

SEEING = AgentSpec(
    (Stream("joint_pos", (3,), unit="rad"), Stream("front_rgb", (32, 32, 3), dtype="uint8"),
     Stream("instruction", (24,), dtype="uint8")),
    (Stream("joint_vel", (2,), unit="rad/s"),),
)  # fmt: skip
SAYINGS = (b"reach the red cube", b"touch the blue block", b"go to the green one")


def film(kind: type[FiLMPolicy] = FiLMPolicy, agent: AgentSpec = SEEING, **config: Any) -> FiLMPolicy:
    """A small one whose actions depend on what it sees, as a trained one's do."""
    small = {"state": ["joint_pos"], "channels": (8, 8), "width": 16, "hidden": 16, "init_std": 0.05, "chunk": 2}
    return sharp(kind(agent=agent, **({"name": "film"} | small | config)))


def mlp(agent: AgentSpec, kind: type[MLPPolicy] = MLPPolicy, **config: Any) -> MLPPolicy:
    """As `film`."""
    return sharp(kind(agent=agent, **({"name": "mlp", "hidden": (16, 16), "init_std": 0.05} | config)))


def sharp(policy: Any) -> Any:
    """The policy with a last layer that is not near zero any more."""
    with torch.no_grad():
        policy.network.actor[-1].weight.mul_(100.0)
    return policy


def seen(rows: int, seed: int = 0) -> Observation:
    draw = np.random.default_rng(seed)
    texts = [SAYINGS[i % len(SAYINGS)].ljust(24, b"\0") for i in range(rows)]
    streams = {
        "joint_pos": draw.normal(size=(rows, 3)).astype(np.float32),
        "front_rgb": draw.integers(0, 255, (rows, 32, 32, 3), dtype=np.uint8),
        "instruction": np.frombuffer(b"".join(texts), np.uint8).reshape(rows, 24).copy(),
    }
    return Observation(Rows.of_envs(rows), streams, np.zeros(rows))


class AlteredParameter(TorchPolicy):
    """One number of one tensor is not what was pushed."""

    def load(self, tensors: Mapping[str, NDArray[Any]]) -> None:
        super().load(tensors)
        with torch.no_grad():
            self.network.actor[-1].bias[0] += 0.1  # type: ignore[union-attr, index, operator]


class OtherScale(TorchPolicy):
    """The state is scaled otherwise."""

    def inputs(self, *args: Any, **options: Any) -> Inputs:
        made = super().inputs(*args, **options)
        return made | {"state": made["state"] * 1.5}


class Mirrored(TorchPolicy):
    """Pictures are mirrored."""

    def inputs(self, *args: Any, **options: Any) -> Inputs:
        made = super().inputs(*args, **options)
        return made | {stream.name: made[stream.name].flip(2) for stream in self.senses.pictures}


class OtherWords(TorchPolicy):
    """The tokenizer has another alphabet behind the same name."""

    def inputs(self, *args: Any, **options: Any) -> Inputs:
        made = super().inputs(*args, **options)
        words: Words | None = self.senses.words
        assert words is not None
        return made | {"words": torch.where(made["words"] > 0, made["words"] % (words.vocabulary - 1) + 1, 0)}


class HalfPrecision(TorchPolicy):
    """The layers compute in bfloat16."""

    def act(self, observation: Observation, noise_keys: NDArray[np.int64], mode: Mode) -> ActionChunk:
        with torch.autocast("cpu", torch.bfloat16):
            return super().act(observation, noise_keys, mode)


class OtherLayer(TorchPolicy):
    """A layer computes something else from the same parameters and inputs."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.network.actor[1].register_forward_hook(  # type: ignore[union-attr, operator, index]
            lambda module, given, result: result * 1.1
        )


class AlteringClient(LocalClient):
    """Log-probabilities come through as float16 of half the size."""

    def act(self, observation: Observation, noise_keys: NDArray[Any], mode: Mode) -> ActionChunk:
        chunk = super().act(observation, noise_keys, mode)
        chunk.log_probs = (0.5 * chunk.log_probs).astype(np.float16).astype(np.float32)
        return chunk


class FiLMAltered(AlteredParameter, FiLMPolicy): ...


class FiLMOtherScale(OtherScale, FiLMPolicy): ...


class FiLMMirrored(Mirrored, FiLMPolicy): ...


class FiLMOtherWords(OtherWords, FiLMPolicy): ...


class FiLMHalf(HalfPrecision, FiLMPolicy): ...


class FiLMOtherLayer(OtherLayer, FiLMPolicy): ...


class MLPAltered(AlteredParameter, MLPPolicy): ...


class MLPOtherScale(OtherScale, MLPPolicy): ...


class MLPHalf(HalfPrecision, MLPPolicy): ...


def serve_altered(agent: AgentSpec, **config: Any) -> MLPPolicy:
    """For a config's import path."""
    return MLPAltered(agent=agent, **config)


def serve_half(agent: AgentSpec, **config: Any) -> MLPPolicy:
    """For a config's import path."""
    return MLPHalf(agent=agent, **config)


def serve_mirrored(agent: AgentSpec, **config: Any) -> FiLMPolicy:
    """For a config's import path."""
    return FiLMMirrored(agent=agent, **config)
