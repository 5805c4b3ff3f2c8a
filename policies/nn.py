"""Networks shared by policies and learners."""

import math
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

LOG_2PI = math.log(2.0 * math.pi)
INPUT_LIMIT = 10.0  # a stream that was constant while the normaliser learned must not blow up later


def gaussian_log_prob(raw: Tensor, mean: Tensor, log_std: Tensor) -> Tensor:
    """Log density of independent normals, element by element."""
    z = (raw - mean) * torch.exp(-log_std)
    return -0.5 * z * z - log_std - 0.5 * LOG_2PI


def tanh_mlp(sizes: Sequence[int], gain: float, generator: torch.Generator) -> nn.Sequential:
    """Linear layers of `sizes` with tanh between them; orthogonal weights, the last layer's scaled by `gain`."""
    layers: list[nn.Module] = []
    last = len(sizes) - 2
    for i, (inputs, outputs) in enumerate(pairwise(sizes)):
        linear = nn.utils.skip_init(nn.Linear, inputs, outputs)  # the usual init draws from torch's global generator
        nn.init.orthogonal_(linear.weight, gain if i == last else math.sqrt(2.0), generator=generator)
        nn.init.zeros_(linear.bias)
        layers += [linear] if i == last else [linear, nn.Tanh()]
    return nn.Sequential(*layers)


class GaussianActorCritic(nn.Module):
    """Separate actor and critic on one flat observation, with a standard deviation that no state changes.

    F is the length of a flat observation, K the actions of a chunk, D the numbers of an action. The network's own
    ("raw") actions are physical ones divided by `action_scale`; all densities are of raw actions.

    Args:
        inputs: F.
        chunk: K.
        scale: [D] physical units of one raw unit.
        hidden: Widths of the hidden layers.
        init_std: Standard deviation of raw actions to begin with.
        seed: Draws the weights.
    """

    mean: Tensor
    std: Tensor
    action_scale: Tensor

    def __init__(
        self, inputs: int, chunk: int, scale: Sequence[float], hidden: Sequence[int], init_std: float, seed: int
    ) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.chunk, self.action_dim = chunk, len(scale)
        self.actor = tanh_mlp((inputs, *hidden, chunk * self.action_dim), 0.01, generator)
        self.critic = tanh_mlp((inputs, *hidden, 1), 1.0, generator)
        self.log_std = nn.Parameter(torch.full((self.action_dim,), math.log(init_std)))
        self.register_buffer("mean", torch.zeros(inputs))
        self.register_buffer("std", torch.ones(inputs))
        self.register_buffer("action_scale", torch.tensor(scale, dtype=torch.float32))

    @property
    def device(self) -> torch.device:
        return self.log_std.device

    def set_normaliser(self, mean: Tensor, std: Tensor) -> None:
        """Take over the mean and standard deviation [F] of flat observations."""
        self.mean.copy_(mean)
        self.std.copy_(std)

    def normalise(self, flat: Tensor) -> Tensor:
        """Network inputs [N, F] of physical observations [N, F]."""
        return ((flat - self.mean) / self.std).clamp_(-INPUT_LIMIT, INPUT_LIMIT)

    def raw_mean(self, inputs: Tensor) -> Tensor:
        """Means of raw actions [N, K, D] at `inputs` [N, F]."""
        return self.actor(inputs).view(-1, self.chunk, self.action_dim)

    def value(self, inputs: Tensor) -> Tensor:
        """State values [N] at `inputs` [N, F]."""
        return self.critic(inputs).squeeze(-1)

    def log_prob(self, raw_mean: Tensor, actions: Tensor) -> Tensor:
        """Log density [N, K, D] of physical `actions` [N, K, D]."""
        return gaussian_log_prob(actions / self.action_scale, raw_mean, self.log_std)

    def entropy(self) -> Tensor:
        """Entropy of one raw action in nats, a scalar: the same in every state."""
        return (self.log_std + 0.5 + 0.5 * LOG_2PI).sum()
