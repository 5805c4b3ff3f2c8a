"""The requester against a peer process that answers by a script."""

import gc
import multiprocessing
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zmq

from embodied.client import RemoteClient
from embodied.errors import Busy, DeadlineExceeded, MessageError, SpecMismatch, UserError
from embodied.wire.endpoint import IN_FLIGHT, Requester
from embodied.wire.message import Limits, Message, decode, encode

SPAWN = multiprocessing.get_context("spawn")


def peer(address: str, script: str, pipe: Connection) -> None:
    """Answer each request with the messages that `script` names."""
    sock = zmq.Context().socket(zmq.ROUTER)
    sock.linger = 0
    sock.bind(address)
    pipe.send("ready")
    count = 0
    while sock.poll(20_000):
        identity, *frames = sock.recv_multipart()
        message = decode(frames)
        if message.kind in ("bye", "heartbeat"):
            pipe.send(message.kind)
            continue
        count += 1
        answers: list[list[bytes | memoryview]] = {
            "echo": [encode(Message("act", message.id, body=message.body, arrays=message.arrays))],
            "late": [encode(Message("act", max(message.id - 1, 0), body={"old": True})), encode(Message("heartbeat"))]
            + ([encode(Message("act", message.id))] if count > 1 else []),
            "busy": [encode(Message("error", message.id, body={"code": "busy", "what": "full", "retry_ms": 10}))]
            if count < 3
            else [encode(Message("act", message.id))],
            "always busy": [
                encode(Message("error", message.id, body={"code": "busy", "what": "full", "retry_ms": 90}))
            ],
            "error": [encode(Message("error", message.id, body=SpecMismatch("no", "stream x", "mend").to_dict()))],
            "unread": [encode(Message("error", 0, body=MessageError("cannot read").to_dict()))],
            "garbage": [[b"\x00garbage"]],
            "silent": [],
            "third first": [encode(Message("act", id)) for id in (3, 1, 2)] if count == 3 else [],
            "one fails": [encode(Message("act", message.id))]
            if message.body.get("fine")
            else [encode(Message("error", message.id, body=SpecMismatch("no").to_dict()))],
            "say": [encode(Message("act", message.id, body={"asked": message.kind, "deadline": message.deadline_ms}))],
            "refuse hello": [encode(Message("error", message.id, body=SpecMismatch("other policy").to_dict()))]
            if message.kind == "hello"
            else [],
        }[script]
        pipe.send(message.kind)
        for answer in answers:
            sock.send_multipart([identity, *answer])


def start(address: str, script: str) -> tuple[BaseProcess, Connection]:
    ours, theirs = SPAWN.Pipe()
    process = SPAWN.Process(target=peer, args=(address, script, theirs), daemon=True)
    process.start()
    theirs.close()
    assert ours.poll(60)
    assert ours.recv() == "ready"
    return process, ours


@contextmanager
def answering(tmp_path: Path, script: str, **options: object) -> Iterator[tuple[Requester, Connection]]:
    address = f"ipc://{tmp_path}/peer"
    process, ours = start(address, script)
    requester = Requester(address, "test peer", **{"timeout_s": 20.0, **options})  # type: ignore[arg-type]
    try:
        yield requester, ours
    finally:
        requester.close()
        process.kill()
        process.join(10)


def test_echo_heartbeat_and_goodbye(tmp_path: Path) -> None:
    with answering(tmp_path, "echo", heartbeat_s=0.0) as (requester, pipe):
        arrays = {"a": np.arange(300_000, dtype=np.float32)}
        for number in range(3):
            answer = requester.request("act", body={"n": number}, arrays=arrays)
            assert answer.body == {"n": number}
            np.testing.assert_array_equal(answer.arrays["a"], arrays["a"])
        requester.tick()
        requester.close()
        said = [pipe.recv() for _ in range(5) if pipe.poll(10)]
        assert said == ["act", "act", "act", "heartbeat", "bye"]


def test_answers_that_come_late_are_dropped(tmp_path: Path) -> None:
    with answering(tmp_path, "late") as (requester, _):
        with pytest.raises(DeadlineExceeded) as caught:
            requester.request("act", timeout_s=0.3)
        assert "no answer to act within 0.3 s" in caught.value.what
        assert caught.value.where == f"test peer at {requester.address}" and "last heard" in caught.value.fix
        assert requester.request("act").body == {}


def test_a_busy_server_is_asked_again(tmp_path: Path) -> None:
    with answering(tmp_path, "busy") as (requester, _):
        assert requester.request("act").kind == "act"


def test_a_server_that_stays_busy(tmp_path: Path) -> None:
    with answering(tmp_path, "always busy") as (requester, _), pytest.raises(Busy, match="full"):
        requester.request("act", timeout_s=0.5)


def test_errors_are_raised_as_what_they_are(tmp_path: Path) -> None:
    with answering(tmp_path, "error") as (requester, _), pytest.raises(SpecMismatch) as caught:
        requester.request("act")
    assert caught.value.line() == SpecMismatch("no", "stream x", "mend").line()


@pytest.mark.parametrize(("script", "words"), [("unread", "cannot read"), ("garbage", "test peer")])
def test_answers_that_make_no_sense(tmp_path: Path, script: str, words: str) -> None:
    with answering(tmp_path, script) as (requester, _), pytest.raises(MessageError, match=words):
        requester.request("act")


def test_a_peer_that_never_spoke(tmp_path: Path) -> None:
    with answering(tmp_path, "silent") as (requester, _), pytest.raises(DeadlineExceeded, match="never said a word"):
        requester.request("act", timeout_s=0.3)


def test_nobody_there(tmp_path: Path) -> None:
    requester = Requester(f"ipc://{tmp_path}/nobody", "test peer")
    with pytest.raises(DeadlineExceeded, match="no server listens there"):
        requester.request("act", timeout_s=0.2)
    requester.tick()
    requester.close()


def test_requests_too_large_are_not_sent(tmp_path: Path) -> None:
    requester = Requester(f"ipc://{tmp_path}/nobody", limits=Limits(total_bytes=8))
    with pytest.raises(MessageError, match="at most 8"):
        requester.request("act", arrays={"a": np.zeros(9, np.uint8)})


def test_a_wrong_address_is_said_at_once() -> None:
    with pytest.raises(UserError):
        Requester("tcp://nowhere")


def test_answers_are_collected_in_any_order(tmp_path: Path) -> None:
    with answering(tmp_path, "third first") as (requester, _):
        ids = [requester.submit("act") for _ in range(3)]
        assert [requester.collect(ids[:2]).id, requester.collect(ids[1:]).id] == [ids[0], ids[2]]
        while not requester.answered(ids[1]):
            pass
        assert requester.collect(ids[1:2]).id == ids[1]
        with pytest.raises(ValueError, match="not in flight"):
            requester.collect(ids)


def test_an_error_names_its_request(tmp_path: Path) -> None:
    with answering(tmp_path, "one fails") as (requester, _):
        bad, good = requester.submit("act"), requester.submit("act", body={"fine": True})
        with pytest.raises(SpecMismatch) as caught:
            requester.collect((bad, good))
        assert caught.value.request == bad
        assert requester.collect((good,)).id == good


def test_a_busy_server_gets_what_it_refused_again(tmp_path: Path) -> None:
    with answering(tmp_path, "busy") as (requester, _):
        ids = {requester.submit("act") for _ in range(4)}
        while ids:
            ids.remove(requester.collect(ids).id)


def test_waiting_less_than_a_deadline_keeps_the_request(tmp_path: Path) -> None:
    with answering(tmp_path, "silent") as (requester, _):
        late, later = requester.submit("act", timeout_s=1.0), requester.submit("act")
        with pytest.raises(DeadlineExceeded, match="any of 2 requests") as waited:
            requester.collect((late, later), timeout_s=0.1)
        assert waited.value.request is None
        with pytest.raises(DeadlineExceeded, match="no answer to act within 1 s") as missed:
            requester.collect((later, late))
        assert missed.value.request == late
        requester.cancel([later])
        with pytest.raises(ValueError, match="not in flight"):
            requester.collect([later])


def test_requests_in_flight_are_bounded(tmp_path: Path) -> None:
    with answering(tmp_path, "echo") as (requester, _):
        ids = [requester.submit("act", body={"n": n}) for n in range(IN_FLIGHT)]
        with pytest.raises(Busy, match="in flight"):
            requester.submit("act")
        requester.cancel(ids[:1])
        ids.append(requester.submit("act", body={"n": IN_FLIGHT}))
        assert {requester.collect(ids[1:][n:]).body["n"] for n in range(IN_FLIGHT)} == set(range(1, IN_FLIGHT + 1))


def test_a_killed_server_is_greeted_and_asked_again(tmp_path: Path) -> None:
    address = f"ipc://{tmp_path}/peer"
    process, pipe = start(address, "silent")
    requester = Requester(address, "test peer", timeout_s=60.0)
    requester.greeting = Message("hello", session=requester.session)
    requester.tick()
    ids = [requester.submit("act"), requester.submit("status")]
    with pytest.raises(DeadlineExceeded, match="any of 2 requests"):
        requester.collect(ids, timeout_s=0.1)
    assert [pipe.recv() for _ in ids if pipe.poll(20)] == ["act", "status"]
    process.kill()
    process.join(10)
    with pytest.raises(DeadlineExceeded, match="any of 2 requests"):
        requester.collect(ids, timeout_s=0.5)
    ids.append(requester.submit("reset"))
    process, pipe = start(address, "say")
    try:
        answers = [requester.collect(ids[n:]) for n in range(3)]
        assert [answer.body["asked"] for answer in answers] == ["act", "status", "reset"]
        assert 0 < answers[0].body["deadline"] < 60_000
        assert [pipe.recv() for _ in range(4) if pipe.poll(20)] == ["hello", "act", "status", "reset"]
    finally:
        requester.close()
        process.kill()
        process.join(10)


def test_a_greeting_that_is_refused_ends_the_oldest_request(tmp_path: Path) -> None:
    address = f"ipc://{tmp_path}/peer"
    process, pipe = start(address, "silent")
    requester = Requester(address, "test peer", timeout_s=60.0)
    requester.greeting = Message("hello", session=requester.session)
    id = requester.submit("act")
    while not pipe.poll(0.01):
        assert not requester.answered(id)
    process.kill()
    process.join(10)
    process, pipe = start(address, "refuse hello")
    try:
        with pytest.raises(SpecMismatch, match="other policy") as caught:
            requester.collect((id,))
        assert caught.value.request == id
    finally:
        requester.close()
        process.kill()
        process.join(10)


def test_a_server_that_hangs_does_not_hold_up_the_goodbye(tmp_path: Path) -> None:
    address = f"ipc://{tmp_path}/peer"
    process, _ = start(address, "silent")
    assert process.pid is not None
    os.kill(process.pid, signal.SIGSTOP)
    requester = Requester(address, "test peer")
    ids = [requester.submit("load", arrays={"a": np.zeros(1 << 20, np.uint8)}) for _ in range(8)]
    with pytest.raises(DeadlineExceeded):
        requester.collect(ids, timeout_s=0.1)
    requester.close()
    process.kill()
    process.join(10)


def test_a_requester_that_was_forgotten_holds_nothing_up(tmp_path: Path) -> None:
    address = f"ipc://{tmp_path}/peer"
    process, _ = start(address, "silent")
    requester = Requester(address, "test peer")
    ids = [requester.submit("load", arrays={"a": np.zeros(1 << 20, np.uint8)}) for _ in range(8)]
    with pytest.raises(DeadlineExceeded):
        requester.collect(ids, timeout_s=0.1)
    assert process.pid is not None
    os.kill(process.pid, signal.SIGSTOP)
    ids += [requester.submit("load", arrays={"a": np.zeros(1 << 20, np.uint8)}) for _ in range(8)]
    circle: list[object] = [requester, requester._connection]
    circle.append(circle)
    del requester, circle
    gc.collect()  # would wait for ever
    process.kill()
    process.join(10)


@pytest.mark.parametrize("timeout_s", [0, -1, True, 1e12, float("nan"), "5", None])
def test_a_deadline_of_a_client_is_checked(timeout_s: Any) -> None:
    for make in (Requester, RemoteClient):
        with pytest.raises(UserError, match=r"a deadline of .* \(timeout_s\): give seconds above 0, at most 86400"):
            make("tcp://127.0.0.1:5000", timeout_s=timeout_s)
