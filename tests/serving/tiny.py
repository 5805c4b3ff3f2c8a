"""A numpy policy of a few numbers, its server in a process of its own, and clients in theirs."""

import multiprocessing
import resource
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

import numpy as np
import zmq
from numpy.typing import NDArray

from embodied.client import RemoteClient
from embodied.data import ActionChunk, Observation, Rows
from embodied.errors import WeightsRefused
from embodied.noise import normal
from embodied.runtime.slots import push_slots
from embodied.serving.answer import Answer
from embodied.serving.loader import Loader
from embodied.serving.policy_slot import PolicySlot
from embodied.serving.server import serve
from embodied.serving.versioned_policy import VersionedPolicy
from embodied.spec import AgentSpec, EnvSpec, PolicySpec, Stream
from embodied.weights.manifest import Manifest
from embodied.wire.codecs import observation_to_arrays
from embodied.wire.message import Message

SPAWN = multiprocessing.get_context("spawn")
AGENT = AgentSpec(
    (Stream("joint_pos", (4,), unit="rad"), Stream("camera", (3, 3, 3), dtype="uint8")),
    (Stream("joint_vel", (2,), unit="rad/s"),),
)
BODY = EnvSpec("wave", {"robot": AGENT}, control_hz=20.0)
SPEC = PolicySpec("tiny", AGENT, chunk=3, execute=2)


def tensors(tag: int) -> dict[str, NDArray[Any]]:
    """Weights whose `tag` comes back as every row's value."""
    weight = np.random.default_rng(tag).normal(size=(4, 6)).astype(np.float32)
    return {"weight": weight, "tag": np.array(tag, np.float32)}


def manifest(number: int, tag: int | None = None) -> Manifest:
    return Manifest.of(SPEC.name, number, tensors(number if tag is None else tag), SPEC.to_dict())


class TinyPolicy:
    spec = SPEC

    def __init__(self) -> None:
        self._tensors = tensors(0)

    def act(self, observation: Observation, noise_keys: NDArray[np.int64], mode: str) -> ActionChunk:
        state = observation.streams["joint_pos"] + observation.streams["camera"].reshape(len(noise_keys), -1)[:, :4]
        if state.max() > 1e6:
            raise RuntimeError("the policy has a bug")
        mean = (state.astype(np.float32)[:, :, None] * self._tensors["weight"]).sum(axis=1)
        noise = normal(noise_keys, 6) if mode == "sample" else np.zeros_like(mean)
        shape = (len(mean), 3, 2)
        values = np.full(len(mean), self._tensors["tag"], np.float32)
        return ActionChunk(
            observation.rows,
            (mean + noise).reshape(shape),
            (-0.5 * noise**2).reshape(shape).astype(np.float32),
            values,
            np.zeros(len(mean), np.int64),
            "",
            1.5,
        )

    def tensors(self) -> dict[str, NDArray[Any]]:
        return {name: array.copy() for name, array in self._tensors.items()}

    def load(self, tensors: Mapping[str, NDArray[Any]]) -> None:
        for name, array in self._tensors.items():
            if name not in tensors or tensors[name].shape != array.shape:
                raise WeightsRefused(f"tensor {name} does not fit", "policy tiny", "send what it has")
        self._tensors = {name: np.array(tensors[name]) for name in self._tensors}


class WholePushes:
    """Takes a version that comes in one message."""

    busy = False

    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def handle(self, message: Message, answer: Answer) -> None:
        said = Manifest.from_dict(message.body.get("manifest"))

        def done(result: Any) -> None:
            if isinstance(result, Exception):
                answer.refuse(result)  # type: ignore[arg-type]
            else:
                answer("ack", {"number": result.number, "hash": result.hash})

        self._loader.submit(lambda: (said, message.arrays), "push", done)

    def leave(self, session: str) -> None:
        pass

    def tick(self) -> None:
        pass

    def status(self) -> Mapping[str, Any]:
        return {"pushes": "whole"}


def whole_slot(host: VersionedPolicy | None = None, **parts: Any) -> PolicySlot:
    """A slot whose pushes come in one message."""
    host = host or VersionedPolicy(TinyPolicy())
    loader = Loader(host)
    return PolicySlot(host, loader, WholePushes(loader), **parts)


def observation(count: int, seed: int = 0) -> Observation:
    draw = np.random.default_rng(seed)
    rows = Rows.of_envs(count)
    rows.step[:] = seed
    streams = {
        "joint_pos": draw.normal(size=(count, 4)).astype(np.float32),
        "camera": draw.integers(0, 255, (count, 3, 3, 3), dtype=np.uint8),
    }
    return Observation(rows, streams, np.full(count, seed / 20))


def same(one: ActionChunk, two: ActionChunk) -> None:
    """Assert that two chunks are equal bit for bit, whatever their weights' versions."""
    for name in ("actions", "log_probs", "values"):
        left, right = getattr(one, name), getattr(two, name)
        assert left.dtype == right.dtype and left.shape == right.shape and left.tobytes() == right.tobytes(), name
    for name, array in one.rows.arrays().items():
        np.testing.assert_array_equal(array, two.rows.arrays()[name])
    assert (one.policy, one.valid_s) == (two.policy, two.valid_s)


def raw(address: str) -> zmq.Socket[bytes]:
    """A bare socket."""
    sock = zmq.Context.instance().socket(zmq.DEALER)
    sock.linger = 0
    sock.connect(address)
    return sock


def act_arrays(seen: Observation) -> dict[str, NDArray[Any]]:
    """The arrays of an `act`."""
    return {**observation_to_arrays(seen), "noise_keys": seen.rows.noise_keys(0)}


def _serve(address: str, pipe: Connection) -> None:
    def announce(line: str) -> None:
        assert line.startswith("serving policy tiny")
        pipe.send(line.rpartition(" at ")[2])

    serve(push_slots(VersionedPolicy(TinyPolicy())), address, announce=announce)
    pipe.send("drained")


def start_server(
    address: str, target: Callable[[str, Connection], None] = _serve
) -> tuple[BaseProcess, Connection, str]:
    """A server process, the pipe it tells its end on, and the address it listens on."""
    ours, theirs = SPAWN.Pipe()
    process = SPAWN.Process(target=target, args=(address, theirs), daemon=True)
    process.start()
    theirs.close()
    assert ours.poll(60), "the server did not start"
    return process, ours, ours.recv()


def kill(process: BaseProcess) -> None:
    process.kill()
    process.join(10)


@contextmanager
def server(address: str) -> Iterator[str]:
    process, _, bound = start_server(address)
    try:
        yield bound
    finally:
        kill(process)


def resident(pid: int | None) -> int:
    """Bytes of memory of a process."""
    with open(f"/proc/{pid}/statm") as file:  # noqa: PTH123
        return int(file.read().split()[1]) * resource.getpagesize()


def ask_many(address: str, seed: int, count: int, pipe: Connection) -> None:
    """A client process: asks `count` times and sends back (observation rows, seed, chunk) of each."""
    client = RemoteClient(address, timeout_s=20)
    client.hello(BODY)
    answers = []
    for step in range(count):
        rows = 1 + (seed + step) % 4
        seen = observation(rows, 100 * seed + step)
        answers.append((rows, 100 * seed + step, client.act(seen, seen.rows.noise_keys(seed), "sample")))
    pipe.send(answers)
    client.close()
