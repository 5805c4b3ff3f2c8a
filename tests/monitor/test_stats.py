import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from embodied.monitor.stats import mcnemar, paired_difference, quantiles, wilson

counts = st.integers(1, 5000).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n)))


# Newcombe, Statistics in Medicine 17:857 (1998), table I, method 3 (the score method), to four digits.
@pytest.mark.parametrize(
    ("successes", "n", "ends"),
    [(81, 263, (0.2553, 0.3662)), (15, 148, (0.0624, 0.1605)), (0, 20, (0.0, 0.1611)), (1, 29, (0.0061, 0.1718))],
)
def test_published_intervals(successes: int, n: int, ends: tuple[float, float]) -> None:
    assert wilson(successes, n) == pytest.approx(ends, abs=5e-5)


@given(counts)
def test_interval_holds_the_rate_and_stays_in_range(case: tuple[int, int]) -> None:
    low, high = wilson(*case)
    assert 0 <= low <= case[0] / case[1] <= high <= 1


@given(counts)
def test_ends_solve_the_score_equation(case: tuple[int, int]) -> None:
    successes, n = case
    rate = successes / n
    for end in wilson(successes, n, z=2.0):
        assert abs(rate - end) == pytest.approx(2.0 * math.sqrt(end * (1 - end) / n), abs=1e-9)


@given(counts)
def test_successes_and_failures_mirror(case: tuple[int, int]) -> None:
    low, high = wilson(*case)
    assert wilson(case[1] - case[0], case[1]) == pytest.approx((1 - high, 1 - low))


def test_nothing_known_and_nonsense() -> None:
    assert wilson(0, 0) == (0.0, 1.0)
    assert wilson(50, 50)[1] == 1.0
    for successes, n in ((3, 2), (-1, 4)):
        with pytest.raises(ValueError):
            wilson(successes, n)


def test_quantiles_by_name() -> None:
    values = np.arange(101.0)
    assert quantiles(values) == {"p50": 50, "p95": 95, "max": 100}
    assert quantiles(values.reshape(1, -1), at=(0, 0.999)) == {"min": 0, "p99.9": pytest.approx(99.9)}
    assert quantiles([1, np.nan, 3], at=(0.5,)) == {"p50": 2}
    assert all(math.isnan(v) for v in quantiles([]).values())


def binomial_tail(k: int, n: int) -> float:
    """P(X <= k) for n fair coins, summed as whole numbers."""
    return sum(math.comb(n, i) for i in range(k + 1)) / 2**n


@given(st.integers(0, 400), st.integers(0, 400))
def test_mcnemar_is_two_binomial_tails(b: int, c: int) -> None:
    assert mcnemar(b, c) == pytest.approx(min(1.0, 2 * binomial_tail(min(b, c), b + c)), rel=1e-9)
    assert mcnemar(b, c) == mcnemar(c, b)


def test_mcnemar_by_hand_and_published() -> None:
    assert mcnemar(0, 0) == mcnemar(3, 3) == 1.0
    assert mcnemar(0, 6) == pytest.approx(2 / 64)
    # Armitage and Berry, Statistical Methods in Medical Research (1994), page 127: two media, 12 and 2 pairs differ.
    assert mcnemar(12, 2) == pytest.approx(0.0129, abs=5e-5)
    with pytest.raises(ValueError):
        mcnemar(-1, 3)


# Fagerland, Lydersen, Laake, Statistics in Medicine 33:2850 (2014): airway hyper-responsiveness, to three digits.
def test_a_published_paired_interval() -> None:
    difference, low, high = paired_difference(1, 1, 7, 12)
    assert (difference, low, high) == pytest.approx((-0.286, -0.507, -0.026), abs=6e-4)


pairs = st.tuples(*[st.integers(0, 300)] * 4).filter(any)


@given(pairs)
def test_a_paired_interval_holds_the_difference_and_mirrors(case: tuple[int, int, int, int]) -> None:
    both, b, c, neither = case
    difference, low, high = paired_difference(both, b, c, neither)
    assert -1 <= low <= difference <= high <= 1
    assert difference == pytest.approx((b - c) / sum(case))
    swapped = paired_difference(both, c, b, neither)
    assert swapped == pytest.approx((-difference, -high, -low), abs=1e-12)
    assert paired_difference(neither, b, c, both) == pytest.approx((difference, low, high), abs=1e-9)


@given(pairs)
def test_without_correlation_it_is_the_interval_of_unpaired_rates(case: tuple[int, int, int, int]) -> None:
    """Newcombe's method 10 for independent proportions (Statistics in Medicine 17:873), where phi is 0."""
    both, b, c, neither = case
    together = both * neither - b * c
    if not 0 <= together <= sum(case) / 2:
        return
    n, p, q = sum(case), (both + b) / sum(case), (both + c) / sum(case)
    (l1, u1), (l2, u2) = wilson(both + b, n), wilson(both + c, n)
    low, high = p - q - math.hypot(p - l1, u2 - q), p - q + math.hypot(u1 - p, q - l2)
    assert paired_difference(*case)[1:] == pytest.approx((max(low, -1), min(high, 1)), abs=1e-12)


def test_no_pairs_and_nonsense() -> None:
    assert paired_difference(0, 0, 0, 0) == (0.0, -1.0, 1.0)
    with pytest.raises(ValueError):
        paired_difference(1, -1, 0, 0)
