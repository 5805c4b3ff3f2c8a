"""Checks of configured values, made once at the start: each raises one line that names the field."""

import math
from collections.abc import Sequence
from typing import Annotated, Any

import numpy as np

from simulators.isaac.errors import ConfigError

Range = Annotated[tuple[float, float], "low to high"]
"""Two finite numbers in order: an annotation of terms' parameters that managers check."""


def is_number(value: Any) -> bool:
    """Whether a value is one real number, other than True and False."""
    return isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool)


def check_whole(value: Any, low: int, high: int, name: str, where: str) -> int:
    """Check that a value is a whole number from `low` to `high`; returns it.

    Raises:
        ConfigError: It is not. The error of this and the other checks names `where`.
    """
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or not low <= value <= high:
        raise ConfigError(f"{name} is {value!r}", where, f"give a whole number from {low} to {high}")
    return int(value)


def check_vector(value: Any, count: int, where: str) -> list[float]:
    """`count` finite numbers; raises `ConfigError`."""
    given = value.tolist() if hasattr(value, "tolist") else value
    fine = isinstance(given, Sequence) and len(given) == count and all(is_number(x) and math.isfinite(x) for x in given)
    if not fine:
        raise ConfigError(f"{value!r} is not {count} finite numbers", where, f"give {count}")
    return [float(x) for x in given]


def check_rotation(value: Any, where: str) -> list[float]:
    """The four numbers of a quaternion, not all zero; raises `ConfigError`."""
    quat = check_vector(value, 4, where)
    if math.hypot(*quat) < 1e-6:
        raise ConfigError(f"{value!r} is no rotation", where, "give a quaternion of length 1")
    return quat


def check_range(value: Any, where: str, low: float = -math.inf) -> tuple[float, float]:
    """Two finite numbers in order, none below `low`; raises `ConfigError`."""
    first, second = check_vector(value, 2, where)
    if not low <= first <= second:
        fix = "give the lower number, then the higher one" + ("" if math.isinf(low) else f", from {low:g}")
        raise ConfigError(f"{value!r} is no range", where, fix)
    return first, second


def check_limits(value: Any, where: str) -> tuple[float, float]:
    """Lower and upper limit, finite or infinite; raises `ConfigError`."""
    pair = list(value) if isinstance(value, (list, tuple)) else []
    if len(pair) != 2 or not all(map(is_number, pair)) or not pair[0] <= pair[1]:
        raise ConfigError(f"{value!r} is no pair of limits", where, "give the lower limit, then the upper one")
    return pair[0], pair[1]


def check_poses(init_state: Any, where: str) -> None:
    """`pos`, `rot`, `lin_vel` and `ang_vel` of an initial state or an offset, those it has; raises `ConfigError`."""
    for name in ("pos", "lin_vel", "ang_vel"):
        if getattr(init_state, name, None) is not None:
            check_vector(getattr(init_state, name), 3, f"{name} of {where}")
    if init_state.rot is not None:
        check_rotation(init_state.rot, f"rot of {where}")
