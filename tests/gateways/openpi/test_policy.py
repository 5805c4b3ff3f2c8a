"""`embodied/gateways/openpi/policy.py` against our own gateway, and against servers that misbehave."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from embodied.data import Observation, Rows
from embodied.errors import (
    ConfigError,
    DataError,
    DeadlineExceeded,
    EmbodiedError,
    InfrastructureError,
    MessageError,
    SpecMismatch,
    Unauthorized,
    UserError,
)
from embodied.gateways.openpi import messages as openpi
from embodied.gateways.openpi.policy import OpenpiPolicy, build
from tests.gateways.toys import AGENT, PolicyProcess, gateway, policy


def seen(rows: int) -> Observation:
    text = np.zeros((rows, 64), np.uint8)
    text[:, :2] = np.frombuffer(b"Go", np.uint8)
    streams: dict[str, NDArray[Any]] = {
        "state": np.arange(4 * rows, dtype=np.float32).reshape(rows, 4),
        "camera": np.full((rows, 8, 8, 3), 7, np.uint8),
        "instruction": text,
    }
    return Observation(Rows.of_envs(rows), streams, np.zeros(rows))


def decide(made: OpenpiPolicy, rows: int = 1) -> NDArray[np.float32]:
    observation = seen(rows)
    return made.act(observation, observation.rows.noise_keys(0), "mean").actions


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PolicyProcess]:
    with policy(f"ipc://{tmp_path_factory.mktemp('policy')}/policy") as process:
        yield process


def test_rows_are_answered_through_our_own_gateway(served: PolicyProcess) -> None:
    with gateway(served.address, api_key="sesame") as (host, port):
        made = build(AGENT, seed=3, name="far", address=f"{host}:{port}", chunk=4, execute=2, api_key="sesame")
        assert (made.spec.chunk, made.spec.execute) == (4, 2) and made.spec.agent == AGENT
        for rows in (1, 11, 3):  # more than there are connections
            actions = decide(made, rows)
            assert actions.shape == (rows, 4, 3)
            sums = seen(rows).streams["state"].sum(axis=1)
            np.testing.assert_array_equal(actions, np.stack([[[s, 7, ord("G")]] * 4 for s in sums]))
        made.close()
        assert decide(made).shape == (1, 4, 3)
        made.close()
        wrong = build(AGENT, name="far", address=f"ws://{host}:{port}", api_key="mustard")
        with pytest.raises(Unauthorized, match=f"openpi server at ws://{host}:{port}"):
            decide(wrong)
        long = build(AGENT, name="far", address=f"{host}:{port}", chunk=6, api_key="sesame")
        with pytest.raises(DataError, match="set chunk=5"):
            decide(long)


def test_the_servers_words_are_passed_on_in_one_line(served: PolicyProcess) -> None:
    with gateway(served.address) as (host, port):
        made = OpenpiPolicy("far", AGENT, f"{host}:{port}", chunk=5, embodiment={"streams": {"state": "state"}})
        assert [stream.name for stream in made.spec.agent.observations] == ["state"]
        for _ in range(2):
            with pytest.raises(InfrastructureError, match="key camera, for stream camera, is missing"):
                decide(made)


def test_it_survives_a_restart_of_the_gateway(served: PolicyProcess) -> None:
    with gateway(served.address) as (host, port):
        made = OpenpiPolicy("far", AGENT, f"{host}:{port}", chunk=5, timeout_s=30.0)
        decide(made, 2)
    answers: list[NDArray[np.float32]] = []
    asking = threading.Thread(target=lambda: answers.append(decide(made, 2)))
    asking.start()
    with gateway(served.address, port=port):
        asking.join(60)
    assert answers and answers[0].shape == (2, 5, 3)
    made.close()


@contextmanager
def server(converse: Callable[[Any], None]) -> Iterator[str]:
    """A WebSocket server in a thread whose connections do as they are told."""
    from websockets.sync.server import serve

    with serve(converse, "127.0.0.1", 0, compression=None) as made:
        threading.Thread(target=made.serve_forever, daemon=True).start()
        yield f"127.0.0.1:{made.socket.getsockname()[1]}"


def answering(answer: Any) -> Callable[[Any], None]:
    def converse(connection: Any) -> None:
        connection.send(openpi.encode({}))
        for _ in connection:
            connection.send(openpi.encode(answer) if isinstance(answer, dict) else answer)

    return converse


@pytest.mark.parametrize(
    ("answer", "kind", "words"),
    [
        ({"actions": np.zeros((5, 2))}, DataError, r"actions has shape \(5, 2\), not \[K, 3\]"),
        ({"actions": np.zeros(3)}, DataError, r"shape \(3,\)"),
        ({"actions": np.full((5, 3), np.nan)}, DataError, "not finite"),
        ({"action": np.zeros((5, 3))}, DataError, "no array of numbers actions .*did you mean action"),
        ({"actions": [[0.0] * 3]}, DataError, "no array of numbers"),
        ({"actions": np.zeros((1, 3))}, DataError, "set chunk=1"),
        (b"\xc1", MessageError, "openpi server at ws://127.0.0.1"),
        ("Traceback:\n  line 3\nValueError: no such\tkey\n", InfrastructureError, "an error: ValueError: no such key"),
    ],
)
def test_bad_answers_are_named(answer: Any, kind: type[EmbodiedError], words: str) -> None:
    with server(answering(answer)) as address:
        made = OpenpiPolicy("far", AGENT, address, chunk=5)
        with pytest.raises(kind, match=words):
            decide(made)
        made.close()


def test_a_server_that_never_answers() -> None:
    def silent(connection: Any) -> None:
        connection.send(openpi.encode({}))
        for _ in connection:
            pass

    with server(silent) as address, pytest.raises(DeadlineExceeded, match=f"{address}.*hangs"):
        decide(OpenpiPolicy("far", AGENT, address, timeout_s=0.3))
    with server(lambda connection: time.sleep(1)) as address, pytest.raises(DeadlineExceeded, match="sent nothing"):
        decide(OpenpiPolicy("far", AGENT, address, timeout_s=0.3))
    with pytest.raises(DeadlineExceeded, match="no server listens there"):
        decide(OpenpiPolicy("far", AGENT, "127.0.0.1:1", timeout_s=0.3))


@pytest.mark.parametrize(("version", "words"), [("HTTP/1.0", "no WebSocket server"), ("HTTP/1.1", "it refused")])
def test_a_server_that_is_none_of_openpis(version: str, words: str) -> None:
    class Page(BaseHTTPRequestHandler):
        protocol_version = version

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Page) as page:
        threading.Thread(target=page.serve_forever, daemon=True).start()
        with pytest.raises(InfrastructureError, match=words):
            decide(OpenpiPolicy("far", AGENT, f"127.0.0.1:{page.server_port}", timeout_s=0.5))
        page.shutdown()


def test_mistakes_in_its_settings() -> None:
    for address in ("", "127.0.0.1:99999", "tcp://127.0.0.1:1", "a b:1"):
        with pytest.raises(UserError, match="not an address"):
            OpenpiPolicy("far", AGENT, address)
    with pytest.raises(SpecMismatch, match="needs stream exterior_image"):
        OpenpiPolicy("far", AGENT, "127.0.0.1:1", embodiment="droid")
    with pytest.raises(ConfigError, match="there is no setting hidden"):
        build(AGENT, name="far", address="127.0.0.1:1", hidden=3)
