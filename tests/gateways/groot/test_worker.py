"""The GR00T gateway over a scripted session: what reaches the server, and what happens when its policy changes."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from embodied.data import ActionChunk, Observation
from embodied.errors import InfrastructureError, SpecMismatch
from embodied.gateways.groot.server import GrootGateway, GrootSettings
from embodied.spec import AgentSpec, PolicySpec
from tests.gateways.groot.client import GrootClient, ServerError
from tests.serving import tiny


class Session:
    """A session of a server that can be given another policy."""

    def __init__(self) -> None:
        self.spec, self.policy = tiny.SPEC, tiny.TinyPolicy()
        self.refuse = False
        self.seen: list[tuple[Observation, NDArray[np.int64], str]] = []

    def hello(self) -> PolicySpec:
        return self.spec

    def act(self, observation: Observation, keys: NDArray[np.int64], mode: str) -> ActionChunk:
        self.seen.append((observation, keys, mode))
        if self.refuse:
            raise SpecMismatch("needs another stream", "here", "send it")
        chunk = self.policy.act(observation, keys, mode)
        chunk.versions[:] = 7
        chunk.actions = chunk.actions[:, : self.spec.chunk]
        return chunk

    def version(self) -> tuple[int, str]:
        return 8, "ab" * 16

    def close(self) -> None:
        pass


@contextmanager
def gateway(session: Session) -> Iterator[tuple[str, Callable[[], int]]]:
    """Its address, and a function that waits for its exit status."""

    class Scripted(GrootGateway):
        def connect(self, timeout_s: float | None = None) -> Any:
            return session

    made = Scripted(GrootSettings("ipc:///nowhere", "127.0.0.1:0", mode="sample", seed=9))
    stop, status, address = threading.Event(), list[int](), list[str]()
    ready = threading.Event()

    def work() -> None:
        address.append(made.open())
        ready.set()
        status.append(made.run(stop))

    thread = threading.Thread(target=work)
    thread.start()

    def ended() -> int:
        thread.join(20)
        return status[0]

    try:
        assert ready.wait(20)
        yield address[0], ended
    finally:
        stop.set()
        thread.join(20)


def asked(rows: int) -> dict[str, Any]:
    seen = tiny.observation(rows)
    return {"video.camera": seen.streams["camera"][:, None], "state.joint_pos": seen.streams["joint_pos"][:, None]}


def test_rows_episodes_and_steps_of_a_client() -> None:
    session = Session()
    with gateway(session) as (address, _), GrootClient(address) as one, GrootClient(address) as two:
        one.old(asked(2))
        one.old(asked(2))
        one.call("reset")
        _, info = one.new(asked(1))
        two.old(asked(1))
    rows = [seen.rows for seen, _, _ in session.seen]
    assert [row.episode.tolist() for row in rows] == [[0, 0], [0, 0], [1], [0]]
    assert [row.step.tolist() for row in rows] == [[0, 0], [1, 1], [0], [0]]
    assert rows[0].env.tolist() == [rows[0].env[0], rows[0].env[0] + 1]
    assert rows[3].env[0] not in range(rows[0].env[0], rows[0].env[0] + 64)
    assert all((keys[:, 0] == 9).all() and mode == "sample" for _, keys, mode in session.seen)
    # Another version is served by now, so the one that decided is known by its number only.
    assert (info["policy_version"], info["policy_label"]) == (7, "7")


@pytest.mark.parametrize("refuse", [True, False])
def test_another_policy_at_the_server_ends_the_gateway(refuse: bool) -> None:
    session = Session()
    with gateway(session) as (address, ended), GrootClient(address) as client:
        client.old(asked(1))
        session.refuse = refuse
        session.spec = replace(tiny.SPEC, agent=AgentSpec(tiny.AGENT.observations, tiny.AGENT.actions), chunk=2)
        with pytest.raises(ServerError, match="has another policy now"):
            client.old(asked(1))
        assert ended() == InfrastructureError.exit_status


def test_a_refusal_by_the_same_policy_is_the_clients_affair() -> None:
    session = Session()
    with gateway(session) as (address, _), GrootClient(address) as client:
        session.refuse = True
        with pytest.raises(ServerError, match="needs another stream"):
            client.old(asked(1))
        session.refuse = False
        assert client.old(asked(1))["action.joint_vel"].shape == (1, 3, 2)


def test_a_failure_of_the_gateway_itself_is_one_line() -> None:
    session = Session()
    with gateway(session) as (address, _), GrootClient(address) as client:
        session.policy = None  # type: ignore[assignment]
        with pytest.raises(ServerError, match=r"^AttributeError in the GR00T gateway: see its log$"):
            client.old(asked(1))
        assert client.ping()["status"] == "ok"
