"""Messages broken in every way a wire or an enemy breaks them: each is answered by name or dropped, nothing else."""

import random
import resource
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

import msgpack
import numpy as np
import pytest
import zmq

from embodied.client import RemoteClient
from embodied.runtime.slots import push_slots
from embodied.serving.core import ServerCore
from embodied.serving.rate_limits import Rates
from embodied.serving.server import PolicyServer
from embodied.serving.versioned_policy import VersionedPolicy
from embodied.wire.codecs import observation_to_arrays, rows_to_arrays
from embodied.wire.message import KINDS, Message, decode, encode
from tests.serving.tiny import (
    BODY,
    SPEC,
    TinyPolicy,
    kill,
    manifest,
    observation,
    resident,
    same,
    start_server,
    tensors,
)

VALUES: tuple[Any, ...] = (
    None, True, -1, 0, 1, 1 << 40, 1 << 63, 0.5, float("nan"), "", "act", "push", "x" * 600, "\0", b"\xff" * 9, [],
    [[]], {}, {"a": {}}, [["a", "float32", [1 << 30]]], [["rows", "int32", [4, -1]]], "policy", "../../etc/passwd",
)  # fmt: skip
VERSION = manifest(5)


def messages() -> list[list[bytes]]:
    """A valid message of every kind and operation."""
    seen = observation(3)
    act = {**observation_to_arrays(seen), "noise_keys": seen.rows.noise_keys(0)}
    outcome = {**rows_to_arrays(seen.rows), "outcomes": np.array([1, 2, 3], np.uint8)}
    offer = {"manifest": manifest(9).to_dict(), "signature": "", "back": False, "memory": ""}
    label = manifest(9).label
    plain = [
        ("hello", {"env": BODY.to_dict(), "agents": ["robot"], "priority": "robot"}, {}),
        ("act", {"mode": "sample"}, act),
        ("act", {"mode": "mean", "priority": "tool"}, act),
        ("reset", {}, {}),
        ("outcome", {}, outcome),
        ("status", {"follow": {"name": "edge", "serving": label}}, {}),
        ("offer", offer, {}),
        ("range", {"version": label, "offset": 0, "hash": "0" * 16}, {"data": np.zeros(100, np.uint8)}),
        ("fetch", {"version": ""}, {}),
        ("fetch", {"version": label, "offset": 0, "size": 100}, {}),
        ("set_active", {"pointer": "pinned", "version": 3, "note": ""}, {}),
        ("heartbeat", {}, {}),
        ("bye", {}, {}),
        *((kind, {}, {}) for kind in sorted(KINDS)),
    ]
    return [
        [bytes(frame) for frame in encode(Message(kind, 7, "mutant", SPEC.name, 60_000, body, arrays))]
        for kind, body, arrays in plain
    ]


def mutate(frames: Sequence[bytes], draw: random.Random) -> list[bytes]:
    """The frames after one to three random changes."""
    frames = list(frames)
    for _ in range(draw.randint(1, 3)):
        at = draw.randrange(len(frames)) if draw.random() < 0.5 else 0
        match draw.randrange(8):
            case 0 | 1:
                frames[at] = flipped(frames[at], draw)
            case 2:
                frames[at] = frames[at][: draw.randrange(len(frames[at]) + 1)]
            case 3:
                frames.insert(at, frames[at])
            case 4:
                other = draw.randrange(len(frames))
                frames[at], frames[other] = frames[other], frames[at]
            case 5:
                frames[at] = draw.randbytes(draw.randint(0, 200))
            case _:
                frames[0] = rewritten(frames[0], draw)
        if len(frames) > 1 and draw.random() < 0.1:
            del frames[draw.randrange(len(frames))]
    return frames


def flipped(frame: bytes, draw: random.Random) -> bytes:
    if not frame:
        return frame
    changed = bytearray(frame)
    changed[draw.randrange(len(changed))] ^= 1 << draw.randrange(8)
    return bytes(changed)


def rewritten(header: bytes, draw: random.Random) -> bytes:
    """A header with a field, or a field of its body, replaced."""
    try:
        fields = msgpack.unpackb(header)
    except ValueError:
        return header
    if not isinstance(fields, dict) or not fields:
        return header
    place = fields
    while True:
        key = draw.choice(list(place))
        if isinstance(place[key], dict) and place[key] and draw.random() < 0.8:
            place = place[key]
            continue
        place[key] = draw.choice(VALUES)
        try:
            return bytes(msgpack.packb(fields))
        except (ValueError, OverflowError):
            return header


def mutants(count: int, seed: int) -> Iterator[list[bytes]]:
    whole, draw = messages(), random.Random(seed)
    for _ in range(count):
        yield mutate(draw.choice(whole), draw)


def core() -> ServerCore:
    host = VersionedPolicy(TinyPolicy())
    host.switch(VERSION, tensors(5))
    return ServerCore(push_slots(host), rates=Rates(0, 0))


COUNTS = [2_000, pytest.param(100_000, marks=pytest.mark.slow)]


@pytest.mark.parametrize("count", COUNTS)
def test_a_station_answers_each_mutant_once_or_not_at_all(count: int, caplog: pytest.LogCaptureFixture) -> None:
    server = core()
    errors = before = answers = 0
    for turn, frames in enumerate(mutants(count, 1)):
        server.handle(b"mutant", frames)
        said = [decode([bytes(f) for f in sent]) for _, sent in server.tick(draining=True)]
        said = [answer for answer in said if answer.kind not in ("heartbeat", "bye")]
        answers += len(said)
        assert answers <= turn + 1, "offers of one version are answered together, each once"
        for answer in said:
            errors += answer.kind == "error"
            assert "\n" not in str(answer.body.get("what", ""))
        if turn == count // 4:
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert errors > count // 4
    unforeseen = [str(record.exc_info[1]) for record in caplog.records if record.exc_info]
    # The toy policy's own, of numbers that are finite and huge.
    assert set(unforeseen) <= {"the policy has a bug"}, "a mutant was not foreseen"
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 * 1024, "KiB"
    assert server.slots[SPEC.name].policy.version == VERSION.version
    assert server.snapshot()["sessions"] <= 64
    for slot in server.slots.values():
        slot.close()


@pytest.mark.parametrize("count", COUNTS)
def test_a_server_outlives_mutants(count: int) -> None:
    process, _, address = start_server("tcp://127.0.0.1:0")
    client = RemoteClient(address, timeout_s=30)
    client.push(VERSION, tensors(5))
    seen = observation(2)
    wanted = client.act(seen, seen.rows.noise_keys(0), "mean")
    enemy = zmq.Context.instance().socket(zmq.DEALER)
    enemy.linger, enemy.sndhwm = 0, 64
    enemy.connect(address)
    size = 0
    for turn, frames in enumerate(mutants(count, 2)):
        assert enemy.poll(30_000, zmq.POLLOUT), "the server takes nothing in any more"
        enemy.send_multipart(frames)
        while enemy.poll(0):
            enemy.recv_multipart()
        if turn % (count // 20) == 0:
            same(client.act(seen, seen.rows.noise_keys(0), "mean"), wanted)
        if turn == count // 4:
            size = resident(process.pid)
    same(client.act(seen, seen.rows.noise_keys(0), "mean"), wanted)
    assert client.version() == VERSION.version
    assert resident(process.pid) - size < 64 << 20
    client.close()
    enemy.close()
    kill(process)


def test_nothing_on_the_wire_stops_a_server() -> None:
    host = VersionedPolicy(TinyPolicy())
    server, stop = PolicyServer(push_slots(host), "tcp://127.0.0.1:0"), threading.Event()
    address = server.open()
    thread = threading.Thread(target=server.run, args=(stop,), daemon=True)
    thread.start()
    enemy = zmq.Context.instance().socket(zmq.DEALER)
    enemy.linger = 0
    enemy.connect(address)
    for kind in sorted(KINDS):
        for body in ({}, {"stop": True}, {"op": "stop"}, {"pointer": "held", "version": None}):
            enemy.send_multipart(encode(Message(kind, 1, "enemy", body=body)))
    enemy.send_multipart([b"TERM"])
    client = RemoteClient(address, timeout_s=30)
    assert client.hello(BODY) == SPEC
    client.close()
    enemy.close()
    assert thread.is_alive()
    before = time.monotonic()
    while server.snapshot["taken"] < before:  # it goes on taking its snapshots
        assert time.monotonic() < before + 30
        time.sleep(0.01)
    stop.set()
    thread.join(30)
    assert not thread.is_alive() and server.snapshot["draining"]
