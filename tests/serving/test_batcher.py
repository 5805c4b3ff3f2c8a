import numpy as np
import pytest
from tiny import TinyPolicy, observation, same

from embodied.errors import Busy
from embodied.serving.batcher import Batcher, Request, Stacker, split


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
    assert [r.session for r in batcher.take(9.0)] == ["a", "c"]
    assert [r.session for r in batcher.take(9.0)] == ["b"]
    assert batcher.take(9.0) == []


def test_modes_do_not_mix_and_the_oldest_goes_first() -> None:
    batcher = Batcher(1.0, 64, 8)
    for session, mode in (("a", "mean"), ("b", "sample"), ("c", "mean")):
        batcher.add(request(session, mode=mode))
    assert [r.session for r in batcher.take(9.0)] == ["a", "c"]
    assert [r.session for r in batcher.take(9.0)] == ["b"]


def test_the_queue_is_bounded_and_late_or_forgotten_requests_leave_it() -> None:
    batcher = Batcher(1.0, 64, 2)
    batcher.add(request("a", expires=1.0))
    batcher.add(request("b", expires=2.0))
    with pytest.raises(Busy):
        batcher.add(request("c"))
    assert [r.session for r in batcher.expired(1.0)] == ["a"]
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
        np.testing.assert_array_equal(part.rows.seq, one.observation.rows.seq)
