"""The requester against a peer process that answers by a script."""

import multiprocessing
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import pytest
import zmq

from embodied.errors import Busy, DeadlineExceeded, MessageError, SpecMismatch, UserError
from embodied.wire.endpoint import Requester
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
            "late": [encode(Message("act", message.id - 1, body={"old": True})), encode(Message("heartbeat"))]
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
        }[script]
        for answer in answers:
            sock.send_multipart([identity, *answer])


@contextmanager
def answering(tmp_path: Path, script: str, **options: object) -> Iterator[tuple[Requester, Connection]]:
    address = f"ipc://{tmp_path}/peer"
    ours, theirs = SPAWN.Pipe()
    process = SPAWN.Process(target=peer, args=(address, script, theirs), daemon=True)
    process.start()
    assert ours.poll(60)
    ours.recv()
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
        assert pipe.poll(10) and pipe.recv() == "heartbeat"
        requester.close()
        assert pipe.poll(10) and pipe.recv() == "bye"


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
    with pytest.raises(DeadlineExceeded, match="nobody listens there"):
        requester.request("act", timeout_s=0.2)
    requester.tick()
    requester.close()


def test_requests_too_large_are_not_sent(tmp_path: Path) -> None:
    requester = Requester(f"ipc://{tmp_path}/nobody", limits=Limits(frame_bytes=8))
    with pytest.raises(MessageError, match="at most 8"):
        requester.request("act", arrays={"a": np.zeros(9, np.uint8)})


def test_a_wrong_address_is_said_at_once() -> None:
    with pytest.raises(UserError):
        Requester("tcp://nowhere")
