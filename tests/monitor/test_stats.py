import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from embodied.monitor.stats import quantiles, wilson

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
