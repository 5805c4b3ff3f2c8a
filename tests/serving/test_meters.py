from hypothesis import given
from hypothesis import strategies as st

from embodied.serving.meters import BUCKETS_S, BatchTime, Counts, Latency


def test_batch_times_are_known_by_size() -> None:
    times = BatchTime()
    assert times.estimate(8, 0.0) == 0.0
    times.add(8, 0.2, 0.0)
    assert times.estimate(1, 0.0) == 0.0, "nothing is known of smaller ones"
    assert times.estimate(8, 0.0) == times.estimate(64, 0.0) == 0.2
    times.add(1, 0.01, 0.0)
    assert times.estimate(1, 0.0) == times.estimate(3, 0.0) == 0.01


@given(st.lists(st.floats(0.001, 0.1), min_size=9, max_size=20), st.floats(1, 1e6), st.integers(0, 8))
def test_one_slow_batch_says_nothing_and_old_ones_are_forgotten(usual: list[float], slow: float, place: int) -> None:
    times = BatchTime()
    for seconds in (*usual[:place], slow, *usual[place:]):
        times.add(4, seconds, 0.0)
    assert times.estimate(4, 0.0) <= 0.1
    assert times.estimate(4, 20.0) < 1e-5


@given(st.lists(st.floats(0, 100), max_size=50))
def test_every_latency_is_counted_once(seen: list[float]) -> None:
    latency = Latency()
    for seconds in seen:
        latency.add(seconds)
    said = latency.to_dict()
    assert said["count"] == sum(said["counts"]) == len(seen) and len(said["counts"]) == len(BUCKETS_S) + 1
    for place, bound in enumerate(BUCKETS_S):
        assert sum(said["counts"][: place + 1]) == sum(seconds <= bound for seconds in seen)


def test_counts_add_up() -> None:
    assert Counts(1, 2, 3) + Counts(busy=4) == Counts(1, 2, 3, 0, 0, 4, 0)


def test_a_slow_stretch_is_forgotten_with_the_first_fast_batch_after_a_pause() -> None:
    times = BatchTime()
    for number in range(16):
        times.add(1, 0.5, 0.5 * number)
    assert times.estimate(1, 7.5) == 0.5
    times.add(1, 0.01, 10.0)  # a try after everyone was refused
    assert times.estimate(1, 10.0) == 0.01
    times.add(1, 60.0, 70.0)
    assert times.estimate(1, 70.0) == 0.01, "one slow batch says nothing"
    times.add(1, 60.0, 130.0)
    assert times.estimate(1, 130.0) == 60.0
