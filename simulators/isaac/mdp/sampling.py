"""Random numbers of terms, drawn from their environment's generator."""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from simulators.isaac.checks import Range, check_range, check_vector
from simulators.isaac.env_base import EnvBase
from simulators.isaac.errors import ConfigError, nearest

Pair = tuple[float, float]
"""Two parameters of a distribution."""
Ids = torch.Tensor | None
AXES = ("x", "y", "z", "roll", "pitch", "yaw")


def all_ids(env: EnvBase, env_ids: Ids) -> torch.Tensor:
    """[M] long."""
    return torch.arange(env.num_envs) if env_ids is None else env_ids


def sample_ranges(env: EnvBase, ranges: Sequence[Range], count: int) -> NDArray[np.float32]:
    """[count, K] uniform between the two of each of K `ranges`."""
    drawn = torch.rand(count, len(ranges), generator=env.generator).numpy()
    low, high = np.array(ranges, np.float32).T
    return low + drawn * (high - low)


def axis_ranges(given: Mapping[str, Range], where: str) -> list[Range]:
    """[6] ranges of x, y, z (m or m/s) and roll, pitch, yaw (rad or rad/s); an axis not given is (0, 0).

    Raises:
        ConfigError: An axis has another name.
    """
    for name in given:
        if name not in AXES:
            raise ConfigError(f"axis {name!r} is unknown", where, nearest(name, AXES))
    return [given.get(axis, (0.0, 0.0)) for axis in AXES]


def sample(env: EnvBase, params: Pair, shape: tuple[int, ...], distribution: str, where: str) -> torch.Tensor:
    """Numbers of a `shape`: `uniform` or `log_uniform` between the two, or `gaussian` with that mean and deviation.

    Raises:
        ConfigError: The distribution has another name, or a logarithm none of a bound.
    """
    first, second = check_vector(params, 2, where)
    if distribution == "uniform":
        check_range(params, where)
        return first + (second - first) * torch.rand(shape, generator=env.generator)
    if distribution == "gaussian":
        return first + second * torch.randn(shape, generator=env.generator)
    if distribution == "log_uniform":
        if not 0.0 < first <= second:
            raise ConfigError(f"log_uniform between {first} and {second}", where, "give positive bounds in order")
        return first * (second / first) ** torch.rand(shape, generator=env.generator)
    known = ("uniform", "log_uniform", "gaussian")
    raise ConfigError(f"distribution {distribution!r} is unknown", where, nearest(distribution, known))


def combine(defaults: torch.Tensor, drawn: torch.Tensor, operation: str, where: str) -> torch.Tensor:
    """`add` to, `scale` or replace (`abs`) defaults by drawn numbers.

    Raises:
        ConfigError: The operation has another name.
    """
    if operation == "add":
        return defaults + drawn
    if operation == "scale":
        return defaults * drawn
    if operation == "abs":
        return drawn.expand_as(defaults)
    raise ConfigError(f"operation {operation!r} is unknown", where, nearest(operation, ("add", "scale", "abs")))
