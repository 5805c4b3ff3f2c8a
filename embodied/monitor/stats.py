"""Small statistics for what a run reports."""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

Z95 = 1.959963984540054


def wilson(successes: int, n: int, z: float = Z95) -> tuple[float, float]:
    """Score interval of a proportion (E. B. Wilson, J. Am. Stat. Assoc. 22:209, 1927).

    Args:
        successes: Successes among `n` trials, 0 to n.
        n: Trials; without any the interval is (0, 1).
        z: Standard normal quantile; 1.96 gives 95 %.

    Returns:
        Lower and upper end, within [0, 1].

    Raises:
        ValueError: Not 0 <= successes <= n.
    """
    if not 0 <= successes <= n:
        raise ValueError(f"{successes} successes among {n} trials")
    if n == 0:
        return 0.0, 1.0
    p, z2 = successes / n, z * z
    centre = (p + z2 / (2 * n)) / (1 + z2 / n)
    half = z / (1 + z2 / n) * math.sqrt(p * (1 - p) / n + z2 / (4 * n * n))
    # Rounding would leave an end of 1e-17 or 0.9999999 where the interval touches 0 or 1 exactly.
    low = 0.0 if successes == 0 else max(0.0, centre - half)
    high = 1.0 if successes == n else min(1.0, centre + half)
    return low, high


def quantiles(values: ArrayLike, at: Sequence[float] = (0.5, 0.95, 1.0)) -> dict[str, float]:
    """Quantiles by name, such as `p50`, `p95`, `max`; NaN where there are no values.

    Args:
        values: Any shape; NaN entries are left out.
        at: Probabilities in [0, 1]; 0 is named `min`, 1 `max`.
    """
    data = np.asarray(values, np.float64).ravel()
    data = data[~np.isnan(data)]
    names = ["min" if q == 0 else "max" if q == 1 else f"p{100 * q:g}" for q in at]
    found = np.quantile(data, at) if data.size else np.full(len(at), np.nan)
    return {name: float(value) for name, value in zip(names, found, strict=True)}
