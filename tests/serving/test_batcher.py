import numpy as np
import pytest

from embodied.errors import Busy
from embodied.serving.batcher import Batcher, Request
from embodied.serving.stacking import Stacker, split
from tests.serving.tiny import TinyPolicy, observation, same


def request(
    session: str,
    rows: int = 1,
    *,
    id: int = 1,
    mode: str = "mean",
    at: float = 0.0,
    expires: float = 9.0,
    robot: bool = False,
) -> Request:
    seen = observation(rows, id)
    return Request(b"peer", id, session, seen, seen.rows.noise_keys(0), mode, at, expires, robot)  # type: ignore[arg-type]


def nothing(rows: int) -> float:
    return 0.0


def test_a_lone_client_never_waits() -> None:
    batcher = Batcher(1.0, 64, 8)
    assert batcher.due({"a"}) == float("inf")
    batcher.add(request("a"))
    assert batcher.due({"a"}) == batcher.due(set()) == -float("inf")


def test_companions_are_waited_for_until_all_have_asked_or_time_is_up() -> None:
    batcher = Batcher(1.0, 64, 8)
    batcher.add(request("a", at=5.0))
    assert batcher.due({"a", "b"}) == 6.0
    batcher.add(request("b", at=5.5))
    assert batcher.due({"a", "b"}) == -float("inf")
    assert batcher.due({"a", "b", "c"}) == 6.0


def test_a_full_batch_waits_for_nobody_and_oversize_goes_alone() -> None:
    batcher = Batcher(1.0, 4, 8)
    for session, rows in (("a", 3), ("b", 9), ("c", 1)):
        batcher.add(request(session, rows))
    assert batcher.due({"a", "b", "c", "d"}) == -float("inf")
    assert [r.session for r in batcher.take(0.0, nothing)] == ["a", "c"]
    assert [r.session for r in batcher.take(0.0, nothing)] == ["b"]
    assert batcher.take(0.0, nothing) == []


def test_modes_do_not_mix_and_the_oldest_goes_first() -> None:
    batcher = Batcher(1.0, 64, 8)
    for session, mode in (("a", "mean"), ("b", "sample"), ("c", "mean")):
        batcher.add(request(session, mode=mode))
    assert [r.session for r in batcher.take(0.0, nothing)] == ["a", "c"]
    assert [r.session for r in batcher.take(0.0, nothing)] == ["b"]


def test_the_queue_is_bounded_and_late_or_forgotten_requests_leave_it() -> None:
    batcher = Batcher(1.0, 64, 2)
    batcher.add(request("a", expires=1.0))
    batcher.add(request("b", expires=2.0))
    with pytest.raises(Busy):
        batcher.add(request("c"))
    assert [r.session for r in batcher.expired(1.0, nothing)] == ["a"]
    assert batcher.forget("b") == 1 and len(batcher) == 0


def test_split_undoes_concatenate() -> None:
    batch = [request("a", 2, id=1), request("b", 0, id=2), request("c", 3, id=3)]
    seen, keys = Stacker()(batch)
    assert len(seen.rows) == 5
    policy = TinyPolicy()
    for one, part in zip(batch, split(policy.act(seen, keys, "sample"), batch), strict=True):
        if one.rows:
            same(part, policy.act(one.observation, one.noise_keys, "sample"))
        assert len(part.rows) == one.rows
        np.testing.assert_array_equal(part.rows.step, one.observation.rows.step)


def test_sessions_take_turns_however_many_requests_one_has() -> None:
    batcher = Batcher(1.0, 4, 64)
    for id in range(8):
        batcher.add(request("greedy", 4, id=id))
    served = []
    for id in range(100, 104):
        batcher.add(request("modest", 4, id=id))
        served.append([r.session for _ in range(2) for r in batcher.take(0.0, nothing)])
    assert all("modest" in pair for pair in served)


def test_robots_come_first_and_old_requests_as_robots() -> None:
    batcher = Batcher(1.0, 2, 64, age_s=0.5)
    batcher.add(request("a", 2, id=1, at=0.0))
    batcher.add(request("b", 2, id=2, at=0.4))
    batcher.add(request("r", 2, id=3, at=0.45, robot=True))
    assert batcher.robots == 1 and batcher.due({"a", "b", "c"}) == -float("inf")
    assert batcher.wait(2, True, lambda rows: 1.0) == 2 and batcher.wait(1, False, lambda rows: 1.0) == 4
    assert [batcher.take(at, nothing)[0].session for at in (0.45, 0.46, 0.47)] == ["r", "a", "b"]
    for session, at, robot in (("a", 0.0, False), ("r", 0.3, True), ("b", 0.4, False)):
        batcher.add(request(session, 2, at=at, robot=robot))
    assert [batcher.take(0.6, nothing)[0].session for _ in range(3)] == ["a", "r", "b"]


def test_a_full_queue_gives_the_greediest_ones_place_away() -> None:
    batcher = Batcher(1.0, 64, 4, max_per_session=3)
    for id in range(3):
        assert batcher.add(request("greedy", id=id)) is None
    with pytest.raises(Busy, match="of this session"):
        batcher.add(request("greedy", id=3))
    batcher.add(request("modest", id=4))
    displaced = batcher.add(request("new", id=5))
    assert displaced is not None and (displaced.session, displaced.id) == ("greedy", 2)
    displaced = batcher.add(request("r", id=6, robot=True))
    assert displaced is not None and (displaced.session, displaced.id) == ("greedy", 1)
    with pytest.raises(Busy):
        batcher.add(request("late", id=7))
    for id in (8, 9, 10):
        batcher.add(request(f"r{id}", id=id, robot=True))
    with pytest.raises(Busy):
        batcher.add(request("a", id=11))
    assert batcher.robots == len(batcher) == 4


def test_what_waits_is_bounded_in_bytes() -> None:
    size = request("a", 10).size
    batcher = Batcher(1.0, 64, 64, max_bytes=2 * size)
    batcher.add(request("a", 10))
    batcher.add(request("b", 10))
    with pytest.raises(Busy):
        batcher.add(request("c", 10))
    batcher.forget("a")
    batcher.add(request("c", 10))


def test_an_array_is_used_again_only_when_nobody_holds_it() -> None:
    stack = Stacker()
    batch = [request("a", 3, id=1), request("b", 2, id=2)]
    kept, _ = stack(batch)
    wanted = kept.streams["camera"].copy()
    other, _ = stack([request("a", 5, id=3)])
    np.testing.assert_array_equal(kept.streams["camera"], wanted)
    assert not np.shares_memory(kept.streams["camera"], other.streams["camera"])
    view = kept.streams["camera"][1:2]
    place = kept.streams["camera"].ctypes.data
    del kept
    assert stack(batch)[0].streams["camera"].ctypes.data != place, "a view is held"
    del view
    assert stack(batch)[0].streams["camera"].ctypes.data == place
    assert stack(batch)[0].streams["camera"].flags.writeable


def test_nobody_joins_a_batch_that_would_become_late() -> None:
    batcher = Batcher(1.0, 64, 64)
    batcher.add(request("r", 1, expires=0.5, robot=True))
    batcher.add(request("a", 8, expires=float("inf")))
    batcher.add(request("b", 2, expires=float("inf")))
    assert [r.session for r in batcher.take(0.0, lambda rows: rows / 10)] == ["r", "b"]
    assert [r.session for r in batcher.take(0.0, lambda rows: rows / 10)] == ["a"]
