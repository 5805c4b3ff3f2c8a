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


def mcnemar(only_first: int, only_second: int) -> float:
    """Two-sided p value of McNemar's exact test that two success rates on the same trials are equal.

    Pairs that differ fall either way with probability 1/2 if they are (Q. McNemar, Psychometrika 12:153, 1947), so
    p = min(1, 2 P(X <= min(b, c))) with X binomial of b + c and 1/2: the exact conditional test in M. W. Fagerland,
    S. Lydersen, P. Laake, BMC Medical Research Methodology 13:91, 2013.

    Args:
        only_first: Trials, b, that only the first one succeeded in.
        only_second: Trials, c, that only the second one succeeded in.

    Raises:
        ValueError: A negative count.
    """
    if min(only_first, only_second) < 0:
        raise ValueError(f"{only_first} and {only_second} pairs")
    n = only_first + only_second
    whole = math.lgamma(n + 1) - n * math.log(2)
    tail = math.fsum(
        math.exp(whole - math.lgamma(k + 1) - math.lgamma(n - k + 1)) for k in range(min(only_first, only_second) + 1)
    )
    return min(1.0, 2 * tail)


def paired_difference(
    both: int, only_first: int, only_second: int, neither: int, z: float = Z95
) -> tuple[float, float, float]:
    """First success rate minus the second on the same trials, with its interval.

    The score intervals of the two rates are combined by their correlation phi, whose numerator is corrected for
    continuity where it is positive (R. G. Newcombe, Statistics in Medicine 17:2635, 1998, method 10).

    Args:
        both, only_first, only_second, neither: Trials by who succeeded.
        z: Standard normal quantile; 1.96 gives 95 %.

    Returns:
        Difference, lower and upper end, within [-1, 1]; without trials 0, -1 and 1.

    Raises:
        ValueError: A negative count.
    """
    if min(both, only_first, only_second, neither) < 0:
        raise ValueError(f"{both}, {only_first}, {only_second} and {neither} pairs")
    first, second = both + only_first, both + only_second
    n = first + only_second + neither
    if n == 0:
        return 0.0, -1.0, 1.0
    (low1, high1), (low2, high2) = wilson(first, n, z), wilson(second, n, z)
    rate1, rate2, difference = first / n, second / n, (only_first - only_second) / n
    margins = first * (n - first) * second * (n - second)
    together = both * neither - only_first * only_second
    phi = (max(together - n / 2, 0.0) if together > 0 else together) / math.sqrt(margins) if margins else 0.0

    def apart(a: float, b: float) -> float:
        return math.sqrt(max(a * a - 2 * phi * a * b + b * b, 0.0))

    low, high = apart(rate1 - low1, high2 - rate2), apart(high1 - rate1, rate2 - low2)
    return difference, max(-1.0, difference - low), min(1.0, difference + high)


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
