"""A server that is stopped or busy leaves nobody without an answer, and is not kept from ending."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zmq

from embodied.data import ActionChunk, Observation
from embodied.runtime.slots import push_slot
from embodied.serving import server as serving
from embodied.serving.server import PolicyServer
from embodied.serving.versioned_policy import VersionedPolicy
from embodied.wire.message import Message, decode, encode
from tests.serving.tiny import TinyPolicy, act_arrays, manifest, observation, raw, tensors


class Gated(TinyPolicy):
    """Decides on more than one row only when it is let."""

    def __init__(self) -> None:
        super().__init__()
        self.go = threading.Semaphore(0)

    def act(self, observation: Observation, noise_keys: np.ndarray, mode: str) -> ActionChunk:
        if len(noise_keys) > 1:
            assert self.go.acquire(timeout=30)
        return super().act(observation, noise_keys, mode)


class Room:
    """A server in a thread, and connections to it."""

    def __init__(self, path: Path, **options: Any) -> None:
        self.policy, self.stop = Gated(), threading.Event()
        self.slot = push_slot(VersionedPolicy(self.policy))
        self.server = PolicyServer({"tiny": self.slot}, f"ipc://{path}/policy", **options)
        self.address = self.server.open()
        self.thread = threading.Thread(target=self.server.run, args=(self.stop,))
        self.thread.start()
        self.peers: list[zmq.Socket[bytes]] = []

    def peer(self) -> "zmq.Socket[bytes]":
        self.peers.append(raw(self.address))
        return self.peers[-1]

    def computing(self) -> None:
        until(lambda: self.server.snapshot["computing_since"] is not None)


@contextmanager
def room(path: Path, **options: Any) -> Iterator[Room]:
    made = Room(path, **options)
    try:
        yield made
    finally:
        made.stop.set()
        made.policy.go.release(100)
        made.thread.join(30)
        for peer in made.peers:
            peer.close()
    assert not made.thread.is_alive()


def until(done: Callable[[], bool]) -> None:
    limit = time.monotonic() + 30
    while not done():
        assert time.monotonic() < limit
        time.sleep(0.001)


def ask(peer: "zmq.Socket[bytes]", id: int, rows: int, deadline_ms: int = 0) -> None:
    arrays = act_arrays(observation(rows))
    message = Message("act", id, "", deadline_ms=deadline_ms, body={"mode": "mean"}, arrays=arrays)
    peer.send_multipart(encode(message))


def hear(peer: "zmq.Socket[bytes]") -> Message:
    while peer.poll(30_000):
        message = decode(peer.recv_multipart())
        if message.kind != "heartbeat":
            return message
    raise AssertionError("no answer")


def test_everyone_is_answered_before_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "_DRAIN_S", 0.2)
    with room(tmp_path, max_rows=2) as r:
        early, late = r.peer(), r.peer()
        for id in range(1, 9):
            ask(early, id, 2)
        r.computing()
        r.stop.set()
        r.policy.go.release()
        until(lambda: r.server.core.stopping)
        ask(late, 20, 1)
        time.sleep(0.3)  # longer than the server drains
        r.policy.go.release(100)
        said = [hear(early) for _ in range(9)]
        kinds = {message.id: message.kind for message in said}
        assert set(range(1, 9)) <= kinds.keys() and "act" in kinds.values() and "error" in kinds.values()
        assert said[-1].kind == "bye"
        assert all("stopping" in message.body["what"] for message in said if message.kind == "error")
        answer = hear(late)
        assert (answer.id, answer.body["code"]) == (20, "busy") and "stopping" in answer.body["what"]


def test_what_waited_while_a_batch_was_computed_is_late(tmp_path: Path) -> None:
    with room(tmp_path) as r:
        slow, robot = r.peer(), r.peer()
        ask(robot, 1, 1)
        assert hear(robot).kind == "act"
        ask(slow, 1, 2)
        r.computing()
        ask(robot, 2, 1, deadline_ms=100)
        ask(robot, 3, 1, deadline_ms=60_000)
        time.sleep(0.2)
        r.policy.go.release()
        said = {message.id: message for message in (hear(robot), hear(robot))}
        assert said[2].body["code"] == "deadline" and "after waiting" in said[2].body["what"]
        assert said[3].kind == "act" and hear(slow).kind == "act"
        ask(robot, 4, 1, deadline_ms=10_000)
        assert hear(robot).kind == "act"


def test_a_version_that_cannot_be_loaded_keeps_no_server_from_ending(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "_CLOSE_S", 0.3)
    locked, begun = threading.Event(), threading.Event()

    def hangs() -> Any:
        begun.set()
        assert locked.wait(60)
        return manifest(1), tensors(1)

    told: list[Any] = []
    with room(tmp_path) as r:
        peer = r.peer()
        peer.send_multipart(encode(Message("status", 1, "s")))
        assert hear(peer).kind == "status"
        r.slot.loader.submit(hangs, "push", told.append)
        assert begun.wait(30)
        r.stop.set()
        assert hear(peer).kind == "bye" and not told, "goodbye comes first"
        r.thread.join(30)
        assert not r.thread.is_alive() and "stopping" in told[0].what
    locked.set()
