"""The contract of networks that decide, and that learners train."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from embodied.errors import ConfigError
from embodied.spec import Streams

MAX_CHUNK = 1024
INPUT_LIMIT = 10.0  # a stream that was constant while the normaliser learned must not blow up later

Inputs = dict[str, Tensor]
"""Inputs of a network for N rows: `state` [N, F] and `critic` [N, C], normalised; pictures by name [N, H, W, 3] uint8;
`words` [N, L] int64. What a policy has none of is absent, and so is `critic` where the policy acts."""


@dataclass
class Sampled:
    """Chunks for N rows.

    Attributes:
        actions: [N, K, D] in physical units.
        log_probs: [N, K, D] of these actions, NaN where the network cannot say.
        values: [N], NaN where the critic reads what was not given.
        stored: Name to [N, ...] of `PolicySpec.stored`; empty for the mode of the distribution.
    """

    actions: Tensor
    log_probs: Tensor
    values: Tensor
    stored: Inputs = field(default_factory=dict)


@dataclass
class Evaluated:
    """Evaluation of decisions that were taken, differentiable.

    Attributes:
        log_probs: [N, K, D] of the actions taken.
        values: [N] of the states.
        entropy: [N, K, D] nats of each number's distribution.
    """

    log_probs: Tensor
    values: Tensor
    entropy: Tensor


def check_chunk(chunk: int, execute: int) -> None:
    """Raise a `ConfigError` unless chunk length and executed actions (0 for all) are within bounds."""
    if not 1 <= chunk <= MAX_CHUNK or not 0 <= execute <= chunk:
        fix = f"give chunk 1 to {MAX_CHUNK}, and execute up to chunk, 0 for all of it"
        raise ConfigError(f"chunk {chunk}, execute {execute}", "policy", fix)


class PolicyNetwork(nn.Module):
    """A network, its normaliser and its action scale; all of it is a version of the policy.

    K is the actions of a chunk, D the numbers of an action. The network's own ("raw") actions are physical ones divided
    by `action_scale`; log-probabilities are those of tokens, or log densities of raw actions or of their
    denoising.

    Args:
        chunk: K.
        scale: [D] physical units of one raw unit.
        numbers: F + C, what is normalised: the state, then what only the critic reads.
        state: F.

    Attributes:
        critic: Module that `value` alone trains; subclasses make it.
        value_reads_rest: Whether `value` needs pictures and words, or numbers alone.
        stored: As `PolicySpec.stored`.

    A network implements `sample_noise`, `sample`, `evaluate_actions`, `value` and `clone_loss`. Results of a row depend
    on that row alone.
    """

    mean: Tensor
    std: Tensor
    action_scale: Tensor
    critic: nn.Module
    value_reads_rest = False
    stored: Streams = ()

    def __init__(self, chunk: int, scale: Sequence[float], numbers: int, state: int) -> None:
        super().__init__()
        self.chunk, self.action_dim, self.state_size = chunk, len(scale), state
        self.register_buffer("mean", torch.zeros(numbers))
        self.register_buffer("std", torch.ones(numbers))
        self.register_buffer("action_scale", torch.tensor(scale, dtype=torch.float32))

    @property
    def device(self) -> torch.device:
        return self.action_scale.device

    def set_normaliser(self, mean: Tensor, std: Tensor) -> None:
        """Take over the mean and standard deviation [F + C] of physical numbers."""
        self.mean.copy_(mean)
        self.std.copy_(std)

    def normalise(self, flat: Tensor) -> Inputs:
        """`state`, and `critic` where there is one, of physical numbers [N, F] or [N, F + C]."""
        width = flat.shape[1]
        scaled = ((flat - self.mean[:width]) / self.std[:width]).clamp_(-INPUT_LIMIT, INPUT_LIMIT)
        if width == self.state_size:
            return {"state": scaled}
        return {"state": scaled[:, : self.state_size], "critic": scaled[:, self.state_size :]}

    def sample_noise(self, noise_keys: NDArray[np.int64]) -> Tensor:
        """The random numbers that `sample` needs for rows of keys [N, 5] of `embodied.noise`: [N, ...] float32."""
        raise NotImplementedError

    def sample(self, inputs: Inputs, noise: Tensor | None) -> Sampled:
        """Chunks sampled with `noise`, or the mode of the distribution where it is None."""
        raise NotImplementedError

    def evaluate_actions(self, inputs: Inputs, actions: Tensor, stored: Inputs) -> Evaluated:
        """Evaluate physical actions [N, K, D] that were sampled with `stored`."""
        raise NotImplementedError

    def value(self, inputs: Inputs) -> Tensor:
        """State values [N]; gradients reach the critic's own parameters alone."""
        raise NotImplementedError

    def clone_loss(self, inputs: Inputs, actions: Tensor, generator: torch.Generator) -> Tensor:
        """[N, K] how badly the network would imitate physical actions [N, K, D]; `generator` is on the CPU."""
        raise NotImplementedError

    def prepare_clone(self, std: float) -> None:
        """Begin to clone, with exploration of `std` raw units for the reinforcement learning that may follow."""
