"""Rate of requests: a cap, sizes that fit the link, pauses after failures; with a clock of their own."""

from hypothesis import given
from hypothesis import strategies as st

from embodied.weight_sync.rate_limit import BURST_S, LEAST, MOST, Backoff, RangeSize, RateLimiter


@given(st.floats(0.1, 100), st.lists(st.tuples(st.integers(1, 2**18), st.floats(0, 2)), min_size=1, max_size=60))
def test_no_window_carries_more_than_the_cap(mbit: float, asks: list[tuple[int, float]]) -> None:
    now = 0.0
    limiter = RateLimiter(mbit, lambda: now)
    asked: list[tuple[float, int]] = []
    for size, pause in asks:
        now += pause
        now += limiter.wait() * (1 + 1e-9) + 1e-9
        assert limiter.wait() == 0.0
        limiter.spend(size)
        asked.append((now, size))
    for i in range(len(asked)):
        total = 0
        for then, size in asked[i:]:
            total += size
            assert total <= limiter.rate * (then - asked[i][0] + BURST_S) * 1.001 + 2**18


def test_a_long_silence_saves_up_one_burst_only() -> None:
    now = 0.0
    limiter = RateLimiter(8.0, lambda: now)  # a million bytes per second
    now, sent = 1000.0, 0
    while limiter.wait() == 0.0:
        limiter.spend(1000)
        sent += 1000
    assert 250_000 <= sent <= 252_000
    now += limiter.wait()
    assert limiter.wait() == 0.0


def test_no_cap_never_waits() -> None:
    limiter = RateLimiter(0.0)
    limiter.spend(10**12)
    assert limiter.wait() == 0.0


def test_ranges_grow_while_answers_are_fast() -> None:
    stride = RangeSize(0.0)
    for _ in range(9):
        stride.took(stride.size, 0.01)
    assert stride.size == MOST
    stride.took(stride.size, 9.0)
    assert stride.size == MOST // 2
    stride.least()
    assert stride.size == LEAST
    capped = RangeSize(1e9)
    for _ in range(9):
        capped.took(capped.size, 0.01)
    assert capped.size == 2**18


def test_pauses_double_up_to_a_minute() -> None:
    rest, now, pauses = Backoff(), 0.0, []
    for _ in range(9):
        rest.fail(now)
        pauses.append(rest.wait(now))
    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    rest.clear()
    assert rest.wait(now) == 0
