import pytest

from embodied.monitor.timing import Stopwatch


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_parts_and_total(clock: Clock) -> None:
    watch = Stopwatch(clock)
    for seconds in (1.0, 2.0):
        with watch("physics"):
            clock.now += seconds
    with watch("learning"):
        clock.now += 4.0
    clock.now += 0.5
    assert watch.lap() == {"physics": 3.0, "learning": 4.0, "total": 7.5}
    clock.now += 1.0
    assert watch.lap() == {"total": 1.0}


def test_inner_parts_count_once(clock: Clock) -> None:
    watch = Stopwatch(clock)
    with watch("rollout"):
        clock.now += 1.0
        with watch("inference"):
            clock.now += 2.0
        clock.now += 4.0
    assert watch.lap() == {"rollout": 5.0, "inference": 2.0, "total": 7.0}


def test_seconds_measured_elsewhere_are_taken_from_the_part_around(clock: Clock) -> None:
    watch = Stopwatch(clock)
    with watch("bodies"):
        clock.now += 5.0
        watch.add("physics", 4.0)
    assert watch.lap() == {"bodies": 1.0, "physics": 4.0, "total": 5.0}


def test_a_part_that_fails_is_counted(clock: Clock) -> None:
    watch = Stopwatch(clock)
    with pytest.raises(KeyError), watch("storage"):
        clock.now += 2.0
        raise KeyError
    assert watch.lap() == {"storage": 2.0, "total": 2.0}


def test_no_lap_within_a_part(clock: Clock) -> None:
    watch = Stopwatch(clock)
    with watch("a"), pytest.raises(RuntimeError):
        watch.lap()
