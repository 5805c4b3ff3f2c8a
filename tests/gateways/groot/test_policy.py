"""A GR00T server as a policy: scripted servers behind a REP socket, answering as either generation does."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import msgpack
import numpy as np
import pytest
import zmq

from embodied.data import Observation, Rows
from embodied.errors import (
    Busy,
    ConfigError,
    DataError,
    DeadlineExceeded,
    InfrastructureError,
    MessageError,
    SpecMismatch,
    Unauthorized,
    UserError,
    WeightsRefused,
)
from embodied.gateways.groot.messages import pack, unpack
from embodied.gateways.groot.policy import GrootPolicy, build
from embodied.spec import AgentSpec, Stream

AGENT = AgentSpec(
    (Stream("front", (2, 3, 3), dtype="uint8"), Stream("joint_pos", (4,)), Stream("instruction", (8,), dtype="uint8")),
    (Stream("joint_vel", (2,)), Stream("grip", (1,))),
)
KEYS = np.zeros((2, 5), np.int64)

Script = Callable[[dict[str, Any]], Any]


class Replier:
    """A REP socket in a thread; the script's answers are packed unless they are bytes, and None is silence."""

    def __init__(self, script: Script, address: str = "tcp://127.0.0.1:0") -> None:
        self.asked: list[Any] = []
        self._script, self._stop = script, threading.Event()
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.REP)
        self._socket.linger = 0
        self._socket.bind(address)
        self.address = self._socket.getsockopt_string(zmq.LAST_ENDPOINT)
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                if self._socket.poll(20):
                    self.asked.append(unpack(self._socket.recv()))
                    answer = self._script(self.asked[-1])
                    if answer is None:
                        return
                    self._socket.send(answer if isinstance(answer, bytes) else pack(answer))
        finally:
            self._stop.wait()
            self._socket.close()

    def close(self) -> None:
        self._stop.set()
        self._thread.join()
        self._context.term()


@contextmanager
def replier(script: Script) -> Iterator[Replier]:
    made = Replier(script)
    try:
        yield made
    finally:
        made.close()


def seen(rows: int = 2) -> Observation:
    text = np.zeros((rows, 8), np.uint8)
    text[:, :4] = np.frombuffer(b"lift", np.uint8)
    streams = {
        "front": np.arange(rows * 18, dtype=np.uint8).reshape(rows, 2, 3, 3),
        "joint_pos": np.arange(rows * 4, dtype=np.float32).reshape(rows, 4),
        "instruction": text,
        "more": np.zeros((rows, 1), np.float32),
    }
    return Observation(Rows.of_envs(rows), streams, np.zeros(rows))


def actions(rows: int = 2, count: int = 5) -> dict[str, Any]:
    return {
        "joint_vel": np.arange(rows * count * 2, dtype=np.float32).reshape(rows, count, 2),
        "grip": -np.ones((rows, count, 1), np.float32),
    }


def policy(address: str, **options: Any) -> GrootPolicy:
    return GrootPolicy("far", AGENT, address, **{"chunk": 3, "timeout_s": 20, **options})


@pytest.mark.parametrize("generation", ["n1.5", "n1.6"])
@pytest.mark.parametrize("flat", [True, False])
@pytest.mark.parametrize("rows", [1, 2])
def test_what_is_asked_and_what_comes_back(generation: Any, flat: bool, rows: int) -> None:
    prefix = "action." if flat or generation == "n1.5" else ""
    answer: Any = {f"{prefix}{key}": array for key, array in actions(rows).items()}
    with replier(lambda _: [answer, {"timing": 1.0}] if generation == "n1.6" else answer) as server:
        asking = policy(server.address, generation=generation, flat=flat, api_key="secret")
        chunk = asking.act(seen(rows), KEYS[:rows], "sample")
        asking.close()
    assert chunk.actions.shape == (rows, 3, 3) and chunk.actions.dtype == np.float32
    np.testing.assert_array_equal(chunk.actions[:, :, :2], actions(rows)["joint_vel"][:, :3])
    assert (chunk.actions[:, :, 2] == -1).all() and chunk.policy == "far"
    for nothing in (chunk.log_probs, chunk.values):
        assert nothing.dtype == np.float32 and np.isnan(nothing).all()
    assert chunk.log_probs.shape == chunk.actions.shape and chunk.values.shape == chunk.versions.shape == (rows,)
    (asked,) = server.asked
    assert asked["endpoint"] == "get_action" and asked["api_token"] == "secret"
    data = asked["data"]
    if generation == "n1.6":
        assert set(data) == {"observation", "options"}
        data = data["observation"]
    if prefix:
        assert set(data) == {"video.front", "state.joint_pos", "annotation.human.coarse_action"}
        assert data["annotation.human.coarse_action"] == ["lift"] * rows
    else:
        assert data["language"] == {"annotation.human.coarse_action": [["lift"]] * rows}
        data = {"video.front": data["video"]["front"], "state.joint_pos": data["state"]["joint_pos"]}
    np.testing.assert_array_equal(data["video.front"], seen(rows).streams["front"][:, None])
    np.testing.assert_array_equal(data["state.joint_pos"], seen(rows).streams["joint_pos"][:, None])


def test_no_rows_ask_nobody() -> None:
    assert policy("127.0.0.1:1").act(seen(0), KEYS[:0], "mean").actions.shape == (0, 3, 3)


def test_it_has_no_weights() -> None:
    made = build(AGENT, seed=3, name="far", address="127.0.0.1:1", chunk=4)
    assert made.tensors() == {} and (made.spec.chunk, made.spec.execute) == (4, 4)
    made.load({})
    with pytest.raises(WeightsRefused, match=r"1 tensors.*127\.0\.0\.1:1"):
        made.load({"weight": np.zeros(1)})


@pytest.mark.parametrize(
    ("answer", "error", "says"),
    [
        ({"error": "Unauthorized: Invalid API token"}, Unauthorized, "give its api_key"),
        ({"error": "busy: 64\nrequests"}, Busy, "busy: 64 requests"),
        ({"error": "shape\nmismatch"}, InfrastructureError, "answered with an error: shape mismatch"),
        (b"ERROR", MessageError, "is a GR00T server"),
        (actions(), DataError, "n1.5"),
        ([actions()], DataError, "n1.5"),
        ([{"joint_vel": actions()["joint_vel"]}, {}], DataError, "no array of numbers grip"),
        ([actions(3), {}], DataError, "joint_vel has shape"),
        ([actions(count=2), {}], DataError, "chunks of 2 actions, and 3 are wanted"),
        ([{**actions(), "grip": np.full((2, 5, 1), np.nan)}, {}], DataError, "grip is not finite"),
        ([{**actions(), "grip": "none"}, {}], DataError, "no array"),
        (
            msgpack.packb([{"joint_vel": {"__ndarray_class__": True, "as_npy": b"\x80\x04."}}, {}]),
            MessageError,
            "numpy",
        ),
    ],
)
def test_answers_that_are_none(answer: Any, error: type[Exception], says: str) -> None:
    with replier(lambda _: answer) as server:
        asking = policy(server.address)
        with pytest.raises(error, match=says) as caught:
            asking.act(seen(), KEYS, "mean")
        asking.close()
    assert "\n" not in str(caught.value)


def test_a_silent_server_and_none_at_all_are_named_and_asked_again() -> None:
    silent = Replier(lambda _: None)
    asking = policy(silent.address, timeout_s=0.3)
    with pytest.raises(DeadlineExceeded, match=r"no answer to get_action within 0\.3 s.*is it busy"):
        asking.act(seen(), KEYS, "mean")
    silent.close()
    with pytest.raises(DeadlineExceeded, match="no server listens there"):
        asking.act(seen(), KEYS, "mean")
    server = Replier(lambda _: [actions(), {}], silent.address)
    asking._client._connection._timeout_s = 20.0  # type: ignore[attr-defined]
    assert asking.act(seen(), KEYS, "mean").actions.shape == (2, 3, 3)
    asking.close()
    server.close()


def test_an_answer_that_came_too_late_is_not_taken_for_the_next() -> None:
    go = threading.Event()

    def script(asked: Any) -> Any:
        rows = len(asked["data"]["observation"]["state"]["joint_pos"])
        if rows == 1:
            go.wait(20)
        return [{key: array + rows for key, array in actions(rows).items()}, {}]

    with replier(script) as server:
        asking = policy(server.address, timeout_s=0.2)
        with pytest.raises(DeadlineExceeded):
            asking.act(seen(1), KEYS[:1], "mean")
        go.set()
        asking._client._connection._timeout_s = 20.0  # type: ignore[attr-defined]
        chunk = asking.act(seen(2), KEYS, "mean")
        np.testing.assert_array_equal(chunk.actions[:, :, :2], actions(2)["joint_vel"][:, :3] + 2)
        asking.close()


def test_a_server_restarted_while_asked_is_asked_again() -> None:
    first = Replier(lambda _: None)
    made: list[Replier] = []

    def restart() -> None:
        while not first.asked:
            time.sleep(0.005)
        first.close()
        made.append(Replier(lambda _: [actions(), {}], first.address))

    thread = threading.Thread(target=restart)
    thread.start()
    asking = policy(first.address)
    assert asking.act(seen(), KEYS, "mean").actions.shape == (2, 3, 3)
    thread.join()
    asking.close()
    assert len(made[0].asked) == 1
    made[0].close()


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ({"generation": "n1.7"}, ConfigError, "n1.6"),
        ({"chunk": 0}, ConfigError, "chunk cannot be 0"),
        ({"execute": 4}, ConfigError, "execute 4"),
        ({"timeout_s": 0.0}, ConfigError, "timeout_s"),
        ({"api_key": "env:EMBODIED_NO_SUCH_NAME"}, ConfigError, "EMBODIED_NO_SUCH_NAME"),
        ({"embodiment": {"groot": {"video": {"a": "frnt"}}}}, SpecMismatch, "no stream frnt"),
        ({"address": "somewhere"}, UserError, "not an address"),
        ({"colour": 5}, ConfigError, "colour"),
    ],
)
def test_wrong_settings_are_named(options: dict[str, Any], error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        build(AGENT, **{"name": "far", "address": "127.0.0.1:1", "chunk": 3, **options})


def test_only_the_streams_that_the_embodiment_names_are_needed() -> None:
    config = {"groot": {"video": {}, "state": {"arm": ["joint_pos", [0, 1]]}}}
    spec = policy("127.0.0.1:1", embodiment=config).spec
    assert [stream.name for stream in spec.agent.observations] == ["joint_pos", "instruction"]
