"""Compiled sums of every step: after physics, the overhead of numpy's reductions exceeds the arithmetic."""

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

Floats = NDArray[np.floating]


@njit(cache=True)
def total(numbers: NDArray[Any]) -> Any:
    """Sum of [n, k] numbers; not finite if one of them is not."""
    found = numbers[0, 0] * 0
    for i in range(numbers.shape[0]):
        for j in range(numbers.shape[1]):
            found += numbers[i, j]
    return found


@njit(cache=True)
def outside(ids: NDArray[np.integer], count: int) -> bool:
    """Whether one of [n] `ids` is not in [0, count)."""
    found = False
    for i in ids:
        found |= i < 0 or i >= count
    return found


@njit(cache=True)
def row_squares(a: Floats, b: Floats) -> Floats:
    """[n] sums of the squares of a - b, [n, k] each; b may be [1, k]."""
    out = np.empty(a.shape[0], a.dtype)
    for i in range(a.shape[0]):
        k = min(i, b.shape[0] - 1)
        found = a[i, 0] * 0.0
        for j in range(a.shape[1]):
            found += (a[i, j] - b[k, j]) ** 2
        out[i] = found
    return out


@njit(cache=True)
def weigh(raw: Floats, factors: Floats, weighted: Floats, sums: Floats) -> Floats:
    """Rewards [n] of terms [k, n] times factors [k, 1]; the products go to `weighted` and are added to `sums`."""
    reward = np.zeros(raw.shape[1], raw.dtype)
    for i in range(raw.shape[0]):
        for j in range(raw.shape[1]):
            weighted[i, j] = raw[i, j] * factors[i, 0]
            sums[i, j] += weighted[i, j]
            reward[j] += weighted[i, j]
    return reward
