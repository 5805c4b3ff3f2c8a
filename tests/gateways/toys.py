"""A policy that can be slow and verbose, its server in a process, an openpi gateway in front, and a bare client."""

import http.client
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Event
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embodied.data import ActionChunk, Observation
from embodied.errors import WeightsRefused
from embodied.gateways.launcher import GatewayLauncher
from embodied.gateways.openpi import messages as openpi
from embodied.gateways.openpi.server import run
from embodied.noise import normal
from embodied.runtime.slots import push_slot
from embodied.serving.server import serve
from embodied.serving.versioned_policy import VersionedPolicy
from embodied.spec import AgentSpec, PolicySpec, Stream
from embodied.weights.manifest import Manifest
from tests.serving.tiny import SPAWN, kill

AGENT = AgentSpec(
    (Stream("state", (4,), unit="rad"), Stream("camera", (8, 8, 3), "uint8"), Stream("instruction", (64,), "uint8")),
    (Stream("joint_vel", (2,), unit="rad/s"), Stream("gripper", (1,))),
)
SPEC = PolicySpec("toy", AGENT, chunk=5)
LONG = PolicySpec("toy", AGENT, chunk=50_000)


class ToyPolicy:
    """Its first action number is the sum of the state, its second the camera's mean, its third the text's first byte;
    for a state above 100 it sets `busy` and waits for `gate`."""

    def __init__(self, spec: PolicySpec = SPEC, busy: Event | None = None, gate: Event | None = None) -> None:
        self.spec, self._gain, self._busy, self._gate = spec, np.ones(1, np.float32), busy, gate

    def act(self, observation: Observation, noise_keys: NDArray[np.int64], mode: str) -> ActionChunk:
        streams = observation.streams
        count = len(noise_keys)
        if self._busy is not None and self._gate is not None and (streams["state"] > 100).any():
            self._busy.set()
            self._gate.wait(60)
        images = [value.reshape(count, -1).mean(axis=1) for value in streams.values() if value.ndim == 4]
        numbers = [streams["state"].sum(axis=1), images[0], streams["instruction"][:, 0]]
        width = self.spec.agent.action_dim
        action = np.zeros((count, width))
        action[:, :3] = np.stack(numbers, axis=1)
        shape = (count, self.spec.chunk, width)
        actions = np.broadcast_to(self._gain * action[:, None], shape).astype(np.float32)
        if mode == "sample":
            actions = (actions + normal(noise_keys, width)[:, None]).astype(np.float32)
        nothing = np.zeros(shape, np.float32)
        return ActionChunk(observation.rows, actions, nothing, nothing[:, 0, 0].copy(), np.zeros(count, np.int64), "")

    def tensors(self) -> dict[str, NDArray[Any]]:
        return {"gain": self._gain.copy()}

    def load(self, tensors: Mapping[str, NDArray[Any]]) -> None:
        if set(tensors) != {"gain"} or tensors["gain"].shape != (1,):
            raise WeightsRefused("tensors do not fit", "policy toy", "send gain")
        self._gain = np.array(tensors["gain"])


def weights(number: int, spec: PolicySpec = SPEC) -> tuple[Manifest, dict[str, NDArray[Any]]]:
    """A version whose actions are `number` times as large."""
    tensors: dict[str, NDArray[Any]] = {"gain": np.array([number], np.float32)}
    return Manifest.of(spec.name, number, tensors, spec.to_dict()), tensors


def request(level: float = 0.0) -> dict[str, Any]:
    """Request of a client of the native embodiment."""
    return {
        "state": np.full(4, level, np.float64),
        "camera": np.full((8, 8, 3), 7, np.uint8),
        "instruction": "A cube, please",
    }


class PolicyProcess:
    """A policy server in a process; killed and started again at the same address by `restart`.

    Attributes:
        number: What actions are multiplied by, the version switched to.
    """

    def __init__(self, address: str, spec: PolicySpec = SPEC) -> None:
        self.address, self._spec = address, spec
        self.busy, self.gate = SPAWN.Event(), SPAWN.Event()
        self.restart()

    def restart(self) -> None:
        self._pipe, theirs = SPAWN.Pipe()
        self.process = SPAWN.Process(
            target=_serve, args=(self.address, self._spec, self.busy, self.gate, theirs), daemon=True
        )
        self.process.start()
        theirs.close()
        assert self._pipe.poll(60), "the policy server did not start"
        self.address, self.number = self._pipe.recv(), 1

    def switch(self, number: int) -> None:
        """Serve version `number`."""
        self._pipe.send(number)
        assert self._pipe.poll(60) and self._pipe.recv() == number
        self.number = number

    def kill(self) -> None:
        kill(self.process)


def _serve(address: str, spec: PolicySpec, busy: Event, gate: Event, pipe: Connection) -> None:
    slot = push_slot(VersionedPolicy(ToyPolicy(spec, busy, gate)))

    def switch() -> None:
        while True:
            number = pipe.recv()
            slot.loader.submit(lambda n=number: weights(n, spec), "test", lambda version: pipe.send(version.number))

    threading.Thread(target=switch, daemon=True).start()
    serve({spec.name: slot}, address, announce=lambda line: pipe.send(line.rpartition(" at ")[2]))


@contextmanager
def policy(address: str, spec: PolicySpec = SPEC) -> Iterator[PolicyProcess]:
    process = PolicyProcess(address, spec)
    try:
        yield process
    finally:
        process.kill()


@contextmanager
def gateway(server: str, port: int = 0, **settings: Any) -> Iterator[tuple[str, int]]:
    """Host and port of an openpi gateway in a process of its own."""
    made = GatewayLauncher(
        {"openpi": (run, {"server": server, "address": f"127.0.0.1:{port}", **settings})}, announce=lambda _: None
    )
    made.start()
    try:
        (line,) = made.wait_ready(60)
        host, _, found = line.rpartition("ws://")[2].rpartition(":")
        yield host, int(found)
    finally:
        made.close()


class Client:
    """openpi's protocol, from its specification."""

    def __init__(self, host: str, port: int, **options: Any) -> None:
        from websockets.sync.client import connect

        options = {"max_size": None, "compression": None, "proxy": None, **options}
        self._connecting = connect(f"ws://{host}:{port}", **options)
        self.ws = self._connecting.__enter__()
        self.metadata = openpi.decode(self.ws.recv(timeout=30))

    def infer(self, observation: Mapping[str, Any]) -> dict[str, Any]:
        self.ws.send(openpi.encode(observation))
        answer = self.ws.recv(timeout=30)
        assert isinstance(answer, bytes), answer
        return openpi.decode(answer)

    def refused(self, frame: bytes | str) -> str:
        """Send a frame that is refused; returns the one line that says why."""
        from websockets.exceptions import ConnectionClosedError

        self.ws.send(frame)
        line = self.ws.recv(timeout=30)
        assert isinstance(line, str) and "\n" not in line, line
        try:
            self.ws.recv(timeout=30)
        except ConnectionClosedError as error:
            assert error.rcvd is not None
            assert (error.rcvd.code, error.rcvd.reason) == (1011, CLOSE_REASON)
            return line
        raise AssertionError("the connection stays open")

    def close(self) -> None:
        self.ws.close()


CLOSE_REASON = "Internal server error. Traceback included in previous frame."


def health(host: str, port: int) -> tuple[int, str]:
    connection = http.client.HTTPConnection(host, port, timeout=10)
    connection.request("GET", "/healthz")
    answer = connection.getresponse()
    said = answer.status, answer.read().decode()
    connection.close()
    return said
