"""Layers and a Gaussian head that networks share."""

import math
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

LOG_2PI = math.log(2.0 * math.pi)


def gaussian_log_prob(raw: Tensor, mean: Tensor, log_std: Tensor) -> Tensor:
    """Log density of independent normals, element by element."""
    z = (raw - mean) * torch.exp(-log_std)
    return -0.5 * z * z - log_std - 0.5 * LOG_2PI


def gaussian_entropy(log_std: Tensor) -> Tensor:
    """Entropy of independent normals in nats, element by element."""
    return log_std + 0.5 + 0.5 * LOG_2PI


def orthogonal_linear(inputs: int, outputs: int, gain: float, generator: torch.Generator) -> nn.Linear:
    """A linear layer with orthogonal weights of `gain`, and no bias yet."""
    linear = nn.utils.skip_init(nn.Linear, inputs, outputs)  # the usual init draws from torch's global generator
    nn.init.orthogonal_(linear.weight, gain, generator=generator)
    nn.init.zeros_(linear.bias)
    return linear


def tanh_mlp(sizes: Sequence[int], gain: float, generator: torch.Generator) -> nn.Sequential:
    """Linear layers of `sizes` with tanh between them; orthogonal weights, the last layer's scaled by `gain`."""
    layers: list[nn.Module] = []
    last = len(sizes) - 2
    for i, (inputs, outputs) in enumerate(pairwise(sizes)):
        linear = orthogonal_linear(inputs, outputs, gain if i == last else math.sqrt(2.0), generator)
        layers += [linear] if i == last else [linear, nn.Tanh()]
    return nn.Sequential(*layers)
