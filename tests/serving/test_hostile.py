"""One slow, silent or hostile client beside one that is answered: real processes on a real socket."""

import pickle
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest

from embodied.client import RemoteClient
from embodied.wire.codecs import observation_to_arrays
from embodied.wire.message import Message, encode
from tests.serving.tiny import BODY, kill, observation, resident, same, start_server

ENEMIES = {
    "never reads": """
        sock = dealer()
        sock.rcvhwm = 1
        sock.connect(address)
        while True:
            sock.send_multipart(act)
            began()
        """,
    "floods": """
        sock = dealer()
        sock.connect(address)
        while True:
            sock.send_multipart(large)
            sock.send_multipart(status)
            while sock.poll(0):
                sock.recv_multipart()
            began()
        """,
    "floods with what is no message": """
        sock = dealer()
        sock.connect(address)
        while True:
            sock.send_multipart([b"x" * 100] * 5)
            began()
        """,
    "opens 200 connections": """
        socks = [dealer() for _ in range(200)]
        for sock in socks:
            sock.connect(address)
        while True:
            for sock in socks:
                sock.send_multipart(status)
            began()
        """,
    "sends half messages": """
        host, port = address.removeprefix("tcp://").split(":")
        greeting = b"\\xff" + bytes(8) + b"\\x7f\\x03\\x00NULL" + bytes(48)
        ready = b"\\x04\\x19\\x05READY\\x0bSocket-Type\\x00\\x00\\x00\\x06DEALER"
        huge = b"\\x02" + (200 << 20).to_bytes(8, "big") + b"half"
        beyond = b"\\x02" + (1 << 60).to_bytes(8, "big")
        more = b"\\x01\\x04half"
        socks = []
        for turn in range(10):
            for said in (b"", b"GET / HTTP/1.1\\r\\n\\r\\n", greeting[:30], greeting, greeting + ready + huge,
                         greeting + ready + beyond, greeting + ready + more, greeting + ready[:9], bytes(range(256))):
                sock = socket.create_connection((host, int(port)))
                sock.sendall(said)
                socks.append(sock)
        began()
        time.sleep(600)
        """,
}  # fmt: skip
PRELUDE = """
    import pickle, socket, sys, time
    import zmq

    address, (act, large, status) = sys.argv[1], pickle.load(open(sys.argv[2], "rb"))
    told = False

    def dealer():
        sock = zmq.Context.instance().socket(zmq.DEALER)
        sock.linger, sock.sndhwm = 0, 100
        return sock

    def began():
        global told
        if not told:
            told = True
            print("began", flush=True)
    """


@pytest.fixture(scope="module")
def server() -> Iterator[tuple[BaseProcess, str]]:
    process, _, address = start_server("tcp://127.0.0.1:0")
    yield process, address
    kill(process)


@pytest.fixture(scope="module")
def frames(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("enemies") / "frames"
    asked = []
    for rows in (2, 4000):
        seen = observation(rows)
        arrays = {**observation_to_arrays(seen), "noise_keys": seen.rows.noise_keys(0)}
        asked.append([bytes(f) for f in encode(Message("act", 7, "enemy", body={"mode": "mean"}, arrays=arrays))])
    asked.append([bytes(f) for f in encode(Message("status", 8, "enemy"))])
    path.write_bytes(pickle.dumps(asked))
    return path


@contextmanager
def enemy(script: str, address: str, frames: Path) -> Iterator[None]:
    code = textwrap.dedent(PRELUDE) + textwrap.dedent(script)
    with subprocess.Popen([sys.executable, "-c", code, address, str(frames)], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None and process.stdout.readline() == b"began\n"
            yield
            assert process.poll() is None, "the enemy gave up"
        finally:
            process.kill()


@pytest.mark.parametrize("kind", ENEMIES)
def test_others_are_answered_and_memory_is_bounded(kind: str, server: tuple[BaseProcess, str], frames: Path) -> None:
    process, address = server
    client = RemoteClient(address, timeout_s=30)
    client.hello(BODY)
    seen = observation(2)
    keys = seen.rows.noise_keys(0)
    wanted = client.act(seen, keys, "mean")
    before = resident(process.pid)
    with enemy(ENEMIES[kind], address, frames):
        for _ in range(100):
            same(client.act(seen, keys, "mean"), wanted)
            assert resident(process.pid) - before < 400 << 20
    same(client.act(seen, keys, "mean"), wanted)
    assert client.version() == (0, "")
    client.close()
