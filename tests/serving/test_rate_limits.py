from hypothesis import given
from hypothesis import strategies as st

from embodied.serving.rate_limits import Bucket


@given(st.lists(st.tuples(st.floats(0, 0.5), st.floats(0, 300)), min_size=1, max_size=100))
def test_no_more_passes_than_the_rate_allows(sent: list[tuple[float, float]]) -> None:
    bucket, now, passed, largest = Bucket(100.0, 0.0), 0.0, 0.0, 0.0
    for pause, cost in sent:
        now += pause
        if bucket.spend(cost, now) == 0:
            passed, largest = passed + cost, max(largest, cost)
    assert passed <= 100.0 * (1 + now) + largest + 1e-6


def test_who_waits_as_long_as_told_passes() -> None:
    bucket = Bucket(10.0, 0.0)
    assert bucket.spend(500.0, 0.0) == 0, "one large message passes"
    wait = bucket.spend(1.0, 0.0)
    assert 49.0 <= wait <= 49.2
    assert bucket.spend(1.0, wait * 0.99) > 0
    assert bucket.spend(1.0, wait) == 0


def test_no_rate_is_no_limit() -> None:
    bucket = Bucket(0.0, 0.0)
    assert [bucket.spend(1e12, 0.0) for _ in range(9)] == [0.0] * 9
