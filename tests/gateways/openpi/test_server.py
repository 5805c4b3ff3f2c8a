"""The openpi gateway in a process of its own, with clients that speak the protocol, well or badly."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgpack
import numpy as np
import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus

from embodied.errors import SpecMismatch, UserError
from embodied.gateways.openpi import messages as openpi
from embodied.gateways.openpi.server import OpenpiGateway, OpenpiSettings
from embodied.noise import normal
from tests.gateways.toys import (
    LONG,
    Client,
    PolicyProcess,
    gateway,
    health,
    policy,
    request,
)

Address = tuple[str, int]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PolicyProcess]:
    with policy(f"ipc://{tmp_path_factory.mktemp('policy')}/policy") as process:
        yield process


@pytest.fixture(scope="module")
def address(served: PolicyProcess) -> Iterator[Address]:
    with gateway(served.address) as bound:
        yield bound


@contextmanager
def held(served: PolicyProcess) -> Iterator[None]:
    """The policy's slow answers wait for the end of this."""
    served.busy.clear()
    served.gate.clear()
    try:
        yield
    finally:
        served.gate.set()


def test_a_client_gets_chunks_of_the_version_that_decided(address: Address, served: PolicyProcess) -> None:
    client = Client(*address)
    said = client.metadata
    assert (said["policy"], said["chunk"], said["action_dim"]) == ("toy", 5, 3)
    assert said["observation"]["camera"]["shape"] == [8, 8, 3] and said["observation"]["instruction"]["dtype"] == "str"
    assert said["action"] == {"actions": [5, 3]}
    for number in (3, 4):
        served.switch(number)
        answer = client.infer(request(1.0))
        assert answer["actions"].shape == (5, 3)
        np.testing.assert_array_equal(answer["actions"][0], number * np.array([4, 7, ord("A")], np.float32))
        assert answer["policy_version"] == number
        assert answer["policy_label"] == f"{number}-{answer['policy_hash']}" and len(answer["policy_hash"]) == 12
        assert answer["policy_timing"]["infer_ms"] > 0
        assert ("prev_total_ms" in answer["server_timing"]) == (number == 4)
        arrays = [key for key, value in answer.items() if isinstance(value, np.ndarray)]
        assert arrays == ["actions"]  # the client's broker slices every array
    client.close()
    late = Client(*address)
    assert late.metadata["policy_version"] == 4
    late.close()


def test_a_slow_answer_keeps_nobody_else_waiting(address: Address, served: PolicyProcess) -> None:
    slow, other = Client(*address), Client(*address)
    with held(served):
        slow.ws.send(openpi.encode(request(1000.0)))
        assert served.busy.wait(30)
        assert health(*address) == (200, "OK\n")
        assert "not msgpack" in other.refused(b"\xc1")
        with socket.create_connection(address):  # a connection that says nothing
            assert health(*address) == (200, "OK\n")
        with pytest.raises(TimeoutError):
            slow.ws.recv(timeout=0)
    assert isinstance(slow.ws.recv(timeout=30), bytes)
    slow.close()


def test_many_clients_at_once(address: Address) -> None:
    wrong: list[object] = []

    def ask(level: float) -> None:
        client = Client(*address)
        first = client.infer(request(level))["actions"][0]
        for _ in range(20):
            answer = client.infer(request(level))
            if (answer["actions"][0] != first).any():
                wrong.append((level, answer["actions"][0], first))
        client.close()

    threads = [threading.Thread(target=ask, args=(float(level),)) for level in range(1, 7)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not wrong and not any(thread.is_alive() for thread in threads)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"camera": None}, ["camera", "is missing", "known: "]),
        ({"camera": np.zeros((8, 8, 3), np.float32)}, ["camera", "float32", "uint8"]),
        ({"camera": np.zeros((9, 8, 3), np.uint8)}, ["camera", "(9, 8, 3)"]),
        ({"state": np.zeros(5)}, ["state", "(5,)"]),
        ({"state": np.full(4, np.nan)}, ["state", "is not finite", "send finite numbers"]),
        ({"state": "north"}, ["state", "str", "numpy array"]),
        ({"instruction": 3}, ["instruction", "int", "string"]),
        ({"instruction": "x" * 65}, ["instruction", "65 bytes"]),
    ],
)
def test_a_bad_observation_is_named(address: Address, change: dict[str, object], words: list[str]) -> None:
    sent = {key: value for key, value in {**request(), **change}.items() if value is not None}
    line = Client(*address).refused(openpi.encode(sent))
    assert all(word in line for word in words), line


@pytest.mark.parametrize(
    "frame", ["text", b"", b"\xc1", msgpack.packb([1, 2]), msgpack.packb({"state": {b"__ndarray__": True}})]
)
def test_a_bad_frame_is_named(address: Address, frame: bytes | str) -> None:
    assert "openpi" in Client(*address).refused(frame)


def test_a_message_too_large_ends_its_connection_only(address: Address) -> None:
    client, other = Client(*address), Client(*address)
    with pytest.raises(ConnectionClosed):
        client.ws.send(bytes(64 << 20))
        client.ws.recv(timeout=30)
    assert other.infer(request())["actions"].shape == (5, 3)
    other.close()


def test_a_crowd_that_says_nothing_keeps_nobody_out(address: Address) -> None:
    client = Client(*address)
    crowd = [socket.create_connection(address) for _ in range(150)]
    assert health(*address) == (200, "OK\n")
    newcomer = Client(*address)
    for one in (client, newcomer):
        assert one.infer(request())["actions"].shape == (5, 3)
        one.close()
    for sock in crowd:
        sock.close()


def test_browser_pages_of_other_sites_stay_out(address: Address) -> None:
    with pytest.raises(InvalidStatus):
        Client(*address, origin="http://example.com")


def test_a_key_is_required_where_one_is_configured(served: PolicyProcess) -> None:
    with gateway(served.address, api_key="sesame", connections=1) as address:
        for headers in ({}, {"Authorization": "Api-Key mustard"}, {"Authorization": "Bearer sesame"}):
            with pytest.raises(InvalidStatus) as refused:
                Client(*address, additional_headers=headers)
            assert refused.value.response.status_code == 401
            assert b"Api-Key" in (refused.value.response.body or b"")
        assert health(*address) == (200, "OK\n")
        right = {"Authorization": "Api-Key sesame"}
        client = Client(*address, additional_headers=right)
        assert client.infer(request())["actions"].shape == (5, 3)
        with pytest.raises(InvalidStatus) as refused:
            Client(*address, additional_headers=right)
        assert refused.value.response.status_code == 503
        client.close()


def test_a_client_that_never_reads_is_dropped(tmp_path: Path) -> None:
    with policy(f"ipc://{tmp_path}/policy", LONG) as long, gateway(long.address, send_s=1.0) as address:
        with socket.create_connection(address) as sock:
            sock.sendall(
                b"GET / HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: MDEyMzQ1Njc4OWFiY2RlZg==\r\n\r\n"
            )
            data = openpi.encode(request())
            frame = b"\x82\xfe" + len(data).to_bytes(2, "big") + bytes(4) + data  # masked with zeros
            sock.settimeout(60)
            with pytest.raises(OSError):
                while True:
                    sock.sendall(frame)
                    time.sleep(0.01)
        client = Client(*address)
        assert len(client.infer(request())["actions"]) == LONG.chunk
        client.close()


def test_idle_connections_are_closed(served: PolicyProcess) -> None:
    with gateway(served.address, idle_s=0.5) as address:
        client = Client(*address)
        client.infer(request())
        with pytest.raises(ConnectionClosed) as closed:
            client.ws.recv(timeout=30)
        assert closed.value.rcvd is not None and closed.value.rcvd.code == 1001


def test_a_connection_survives_a_restart_of_the_policy_server(tmp_path: Path) -> None:
    with policy(f"ipc://{tmp_path}/policy") as process, gateway(process.address, timeout_s=20.0) as address:
        client = Client(*address)
        client.infer(request())
        process.kill()
        threading.Timer(0.3, process.restart).start()
        assert client.infer(request(1.0))["actions"][0, 0] == 4
        client.close()


def test_health_tells_when_the_policy_server_is_gone(tmp_path: Path) -> None:
    with policy(f"ipc://{tmp_path}/policy") as process, gateway(process.address, timeout_s=0.5) as address:
        client = Client(*address)
        process.kill()
        line = client.refused(openpi.encode(request()))
        assert "policy server at ipc://" in line and "no answer" in line
        limit = time.monotonic() + 30
        while (said := health(*address))[0] == 200 and time.monotonic() < limit:
            time.sleep(0.1)
        assert said[0] == 503 and said[1].count("\n") == 1 and "policy server" in said[1]
        with pytest.raises(InvalidStatus) as refused:
            Client(*address)
        assert refused.value.response.status_code == 503


def test_sampled_actions_are_keyed_by_connection_and_request(served: PolicyProcess) -> None:
    with gateway(served.address, mode="sample", seed=5) as address:
        mean = np.array([0.0, 7.0, ord("A")]) * served.number
        for connection in (1, 2):
            client = Client(*address)
            for asked in (0, 1):
                wanted = mean + normal(np.array([[5, connection, 0, asked, 0]]), 3)[0]
                np.testing.assert_allclose(client.infer(request())["actions"][0], wanted, rtol=1e-5)
            client.close()


def test_it_ends_cleanly_and_answers_what_is_under_way(served: PolicyProcess) -> None:
    values = {"server": served.address, "address": "127.0.0.1:0", "timeout_s": 9}
    code = f"import sys; from embodied.gateways.openpi.server import run; sys.exit(run({values!r}))"
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                          env={**os.environ, "PYTHONUNBUFFERED": "1"}) as process:  # fmt: skip
        assert process.stdout is not None and process.stderr is not None
        line = process.stdout.readline()
        assert line.startswith("answering openpi clients for policy toy at ws://127.0.0.1:"), process.stderr.read()
        client = Client("127.0.0.1", int(line.rpartition(":")[2]))
        with held(served):
            client.ws.send(openpi.encode(request(1000.0)))
            assert served.busy.wait(30)
            process.send_signal(signal.SIGTERM)
        assert isinstance(client.ws.recv(timeout=30), bytes)
        with pytest.raises(ConnectionClosed) as closed:
            client.ws.recv(timeout=30)
        assert closed.value.rcvd is not None and closed.value.rcvd.code == 1001
        assert process.wait(30) == 0 and process.stderr.read() == ""


def test_no_torch_in_its_process() -> None:
    code = "import sys, embodied.gateways.openpi.server as g; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        ({"address": "0.0.0.0:8000"}, "no api_key"),
        ({"address": "192.168.1.2:8000"}, "no api_key"),
        ({"address": "example.org:8000"}, "no api_key"),
        ({"address": "127.0.0.1"}, "not an address"),
        ({"address": "127.0.0.1:99999"}, "not an address"),
        ({"address": "0.0.0.0:8000", "api_key": ""}, "empty api_key"),
    ],
)
def test_an_address_that_is_open_to_others_needs_a_key(settings: dict[str, str], word: str) -> None:
    with pytest.raises(UserError, match=word):
        OpenpiGateway(OpenpiSettings("ipc:///tmp/none", **settings))


def test_a_port_in_use_and_an_embodiment_that_does_not_fit_end_the_start(served: PolicyProcess) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        gateway_of = OpenpiGateway(OpenpiSettings(served.address, f"127.0.0.1:{taken.getsockname()[1]}"))
        with pytest.raises(UserError, match="in use"):
            gateway_of.open()
    with pytest.raises(SpecMismatch, match="state, which has no key"):
        OpenpiGateway(OpenpiSettings(served.address, "127.0.0.1:0", embodiment="droid")).open()
