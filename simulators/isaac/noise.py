"""Observation noise, under the names of Isaac Lab's `utils.noise`."""

import inspect
from collections.abc import Callable
from typing import Any

import torch

from simulators.isaac.configclass import MISSING, configclass
from simulators.isaac.errors import ConfigError, nearest

Generator = torch.Generator | None
Value = float | tuple[float, ...] | torch.Tensor
OPERATIONS = ("add", "scale", "abs")


def constant_noise(
    data: torch.Tensor, cfg: "ConstantNoiseCfg", generator: torch.Generator | None = None
) -> torch.Tensor:
    """The bias, combined with `data`."""
    return _combine(data, _tensor(cfg.bias).expand_as(data), cfg.operation)


def uniform_noise(data: torch.Tensor, cfg: "UniformNoiseCfg", generator: Generator = None) -> torch.Tensor:
    """Uniform numbers in [n_min, n_max), combined with `data`."""
    low, high = _tensor(cfg.n_min), _tensor(cfg.n_max)
    return _combine(data, torch.rand(data.shape, generator=generator) * (high - low) + low, cfg.operation)


def gaussian_noise(
    data: torch.Tensor, cfg: "GaussianNoiseCfg", generator: torch.Generator | None = None
) -> torch.Tensor:
    """Normal numbers, combined with `data`."""
    drawn = torch.randn(data.shape, generator=generator) * _tensor(cfg.std) + _tensor(cfg.mean)
    return _combine(data, drawn, cfg.operation)


def _tensor(value: Any) -> torch.Tensor:
    return torch.as_tensor(value, dtype=torch.float32)


def _combine(data: torch.Tensor, noise: torch.Tensor, operation: str) -> torch.Tensor:
    if operation not in OPERATIONS:
        raise ConfigError(f"noise operation {operation!r} is unknown", "noise", nearest(operation, OPERATIONS))
    return data + noise if operation == "add" else data * noise if operation == "scale" else noise


@configclass
class NoiseCfg:
    """Noise on an observation term.

    Attributes:
        func: (data [N, ...], this configuration) to the corrupted data; one that also takes `generator` is given the
            environment's.
        operation: `add` to the data, `scale` it, or `abs`: replace it.
    """

    func: Callable[..., torch.Tensor] = MISSING
    operation: str = "add"


@configclass
class ConstantNoiseCfg(NoiseCfg):
    """`bias`, a number or one per element."""

    func: Callable[..., torch.Tensor] = constant_noise
    bias: Value = 0.0


@configclass
class UniformNoiseCfg(NoiseCfg):
    """Between `n_min` and `n_max`, numbers or one per element."""

    func: Callable[..., torch.Tensor] = uniform_noise
    n_min: Value = -1.0
    n_max: Value = 1.0


@configclass
class GaussianNoiseCfg(NoiseCfg):
    """`mean` and `std`, numbers or one per element."""

    func: Callable[..., torch.Tensor] = gaussian_noise
    mean: Value = 0.0
    std: Value = 1.0


def apply_noise(noise: NoiseCfg, data: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """`data` corrupted, a new tensor."""
    if "generator" in inspect.signature(noise.func).parameters:
        return noise.func(data, noise, generator=generator)
    return noise.func(data, noise)


AdditiveUniformNoiseCfg = Unoise = UniformNoiseCfg
AdditiveGaussianNoiseCfg = Gnoise = GaussianNoiseCfg
