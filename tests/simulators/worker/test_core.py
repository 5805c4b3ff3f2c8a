"""The worker's state machine, with a fake clock and no sockets."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from embodied.wire.message import Message, decode, encode
from simulators.worker import core as limits
from simulators.worker.core import WorkerCore
from simulators.worker.suite import load_suite

TINY = "gymnasium:tests.simulators.worker.tiny_gym:Tiny-v0"
SUITE = load_suite(TINY, {})


class Worker:
    """A worker's core, and what it said since the last look, heartbeats left out."""

    def __init__(self) -> None:
        self.now = 100.0
        self.core = WorkerCore(SUITE, TINY, {}, clock=lambda: self.now)
        self.hello("pool")

    def ask(self, kind: str, id: int = 0, session: str = "s", body: dict | None = None, **arrays: Any) -> list[Message]:
        given = {name: np.asarray(value) for name, value in arrays.items()}
        self.core.handle(encode(Message(kind, id, session, body=body or {}, arrays=given)))
        return self.said()

    def said(self, connected: bool = True) -> list[Message]:
        messages = [decode(frames) for frames in self.core.tick(connected)]
        return [message for message in messages if message.kind != "heartbeat"]

    def hello(self, pool: str) -> Message:
        return self.ask("hello", session="", body={"pool": pool})[0]

    def reset(self, id: int = 1, size: Any = 3, session: str = "s", **arrays: Any) -> list[Message]:
        count = min(size, 3) if type(size) is int else 3
        whole = {"ids": np.arange(count, dtype=np.int32), "seeds": np.arange(count)} | arrays
        return self.ask("reset", id, session, {"size": size, "success_ends": False}, **whole)

    def step(self, id: int, session: str = "s", **arrays: Any) -> list[Message]:
        whole = {"ids": np.arange(3, dtype=np.int32), "actions": np.full((3, 2), 0.2, np.float32)} | arrays
        return self.ask("step", id, session, **whole)


def test_hello_says_what_it_runs() -> None:
    body = Worker().hello("pool").body
    assert body["env"] == TINY and body["options"] == {} and body["spec"] == SUITE.spec.to_dict()


def test_a_session_is_reset_and_stepped() -> None:
    worker = Worker()
    (started,) = worker.reset()
    assert started.kind == "reset" and started.arrays["stream/robot/desired_goal"].shape == (3, 2)
    (stepped,) = worker.step(2)
    assert stepped.kind == "step" and stepped.id == 2
    np.testing.assert_allclose(stepped.arrays["stream/robot/observation"], 0.02, rtol=1e-6)
    assert stepped.arrays["final/robot/observation"].shape == (0, 2) and stepped.body["faults"] == []


def test_a_request_that_comes_twice_is_done_once() -> None:
    worker = Worker()
    worker.reset()
    (first,) = worker.step(2)
    (again,) = worker.step(2)
    np.testing.assert_array_equal(first.arrays["stream/robot/observation"], again.arrays["stream/robot/observation"])
    assert worker.step(1) == []  # long answered
    (third,) = worker.step(3)
    np.testing.assert_allclose(third.arrays["stream/robot/observation"], 0.04, rtol=1e-6)


def test_a_wrong_request_gets_an_error() -> None:
    worker = Worker()
    (unknown,) = worker.step(1, session="other")
    assert unknown.body["code"] == "infrastructure" and "no such session" in unknown.body["what"]
    for size in (0, -1, limits.MAX_ENVS + 1, "3", None):
        assert worker.reset(1, size)[0].body["code"] == "message"
    worker.reset()
    for wrong in (
        {"ids": np.array([0, 0, 1], np.int32)},
        {"ids": np.array([0, 1, 3], np.int32)},
        {"ids": np.array([-1, 1, 2], np.int32)},
        {"actions": np.zeros((3, 3), np.float32)},
        {"actions": np.zeros((2, 2), np.float32)},
        {"seeds": np.array([1, 2])},
        {"seeds": np.array([1, 2, -1])},
    ):
        (answer,) = worker.step(2, **wrong)
        assert (answer.kind, answer.body["code"]) == ("error", "message"), wrong
    assert worker.ask("act")[0].body["what"] == "a worker takes no act"
    assert worker.ask("error") == []
    assert worker.step(2)[0].kind == "step"


@given(st.lists(st.binary(max_size=40), max_size=3))
def test_garbage_gets_an_error(frames: list[bytes]) -> None:
    worker = Worker()
    worker.reset()
    worker.core.handle(frames)
    assert [answer.body["code"] for answer in worker.said()] == ["message"]
    assert worker.step(2)[0].kind == "step"


def test_environments_close_at_goodbye_and_when_the_pool_ends_or_changes() -> None:
    worker = Worker()
    worker.reset(session="a")
    worker.reset(session="b")
    worker.ask("bye", session="a")
    assert worker.core.envs == 3
    worker.ask("bye", session="")
    assert worker.core.envs == 0
    worker.reset(session="a")
    worker.hello("pool")
    assert worker.core.envs == 3  # the same one asks again
    worker.hello("other")
    assert worker.core.envs == 0


def test_sessions_of_a_lost_pool_expire() -> None:
    worker = Worker()
    worker.reset()
    worker.now += 9
    worker.said(connected=False)
    assert worker.core.envs == 3 and worker.core.alone_s == 9
    worker.now += 2
    worker.said(connected=False)
    assert worker.core.envs == 0 and worker.core.alone_s == 11
    worker.said(connected=True)
    assert worker.core.alone_s == 0


def test_a_silent_pool_is_not_flooded() -> None:
    worker = Worker()
    count = 0
    for _ in range(36000):
        worker.now += 0.1
        count += len(worker.core.tick(True))
    assert 360 <= count < 600


def test_sessions_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_ENVS", 5)
    worker = Worker()
    worker.reset(session="a")
    assert worker.reset(session="b")[0].body["code"] == "busy"
    assert worker.reset(2, 4, session="a")[0].kind == "reset"  # another size takes the place of the first
    assert worker.core.envs == 4
    monkeypatch.setattr(limits, "MAX_SESSIONS", 1)
    assert worker.reset(1, 1, session="b")[0].body["code"] == "busy"
