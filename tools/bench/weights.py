"""A learner's new weights, live in a policy server: 403 MB of float32 in 200 tensors.

`full_live_over_memcpy`: from the learner holding tensors, the hashing of its manifest included, to the answer of a
server in another process that it serves them, every byte hashed there after it was out of the learner's reach; over
one warm memcpy of the same bytes. `signed_tcp_over_memcpy` is the same in ranges over tcp, with a signature that
the server checks.

`switch_pause_batches`: a client asks without a pause; the time from its last answer under the old version to its first
under the new one, beyond the median time between two answers, in such medians. Beside it `push_slowest_batches`, the
same for the slowest answer while the version was on its way, which shares this machine's cores with the push, and
`swap_ms`, the longest that the server's own thread spent on a switch.
"""

import argparse
import multiprocessing
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from results import emit

from embodied.client import RemoteClient
from embodied.client.pushing import push
from embodied.data import ActionChunk, Observation, Rows
from embodied.serving.loader import Loader
from embodied.serving.policy_slot import PolicySlot
from embodied.serving.server import PolicyServer
from embodied.serving.versioned_policy import VersionedPolicy
from embodied.spec import AgentSpec, PolicySpec, Stream
from embodied.weight_sync.push_receiver import PushReceiver
from embodied.weights.manifest import Manifest
from embodied.weights.shared import SharedBlock
from embodied.weights.signing import PUBLIC, Signer, Trusted, create_signing_keys
from embodied.wire.endpoint import Requester

SPAWN = multiprocessing.get_context("spawn")
NBYTES, TENSORS = 403_000_000, 200
FLOATS = NBYTES // 4 // TENSORS
TARGETS = {"full_live_over_memcpy": 8.0, "switch_pause_batches": 1.0}
SPEC = PolicySpec(
    "big", AgentSpec((Stream("joint_pos", (64,), unit="rad"),), (Stream("joint_vel", (2,), unit="rad/s"),))
)


class BigPolicy:
    """200 tensors of which only the first decide, in a few milliseconds."""

    spec = SPEC

    def __init__(self) -> None:
        self._tensors = {f"layer{i:03d}": np.zeros(FLOATS, np.float32) for i in range(TENSORS)}

    def act(self, observation: Observation, noise_keys: NDArray[np.int64], mode: str) -> ActionChunk:
        count = len(observation.rows)
        numbers = self._tensors["layer000"]
        for _ in range(3):
            numbers = np.tanh(numbers)
        actions = np.full((count, 1, 2), numbers[0], np.float32)
        zeros = np.zeros(count, np.float32)
        return ActionChunk(observation.rows, actions, np.zeros_like(actions), zeros, np.zeros(count, np.int64), "")

    def tensors(self) -> dict[str, NDArray[Any]]:
        return {name: array.copy() for name, array in self._tensors.items()}

    def load(self, tensors: Mapping[str, NDArray[Any]]) -> None:
        for name, array in self._tensors.items():
            np.copyto(array, tensors[name])


class TimedLoader(Loader):
    """Knows the longest `tick`, which is the longest switch."""

    longest_s = 0.0

    def tick(self) -> None:
        start = time.perf_counter()
        super().tick()
        self.longest_s = max(self.longest_s, time.perf_counter() - start)


def serve(address: str, key: Path | None, pipe: Connection) -> None:
    """A server process; sends its address, and after a word the longest switch in seconds."""
    host = VersionedPolicy(BigPolicy(), BigPolicy())
    loader = TimedLoader(host)
    receiver = PushReceiver(host, loader, trusted=Trusted([key]) if key else None)
    server = PolicyServer({SPEC.name: PolicySlot(host, loader, receiver)}, address)
    server.warm_up()
    pipe.send(server.open())
    server.run(Stop(lambda: pipe.poll(0)))
    pipe.send(loader.longest_s)


class Stop:
    """A `threading.Event` that the parent process sets through a pipe."""

    def __init__(self, is_set: Callable[[], bool]) -> None:
        self.is_set = is_set


def ask(address: str, pipe: Connection) -> None:
    """A client process: asks without a pause; after a word, sends (time, version, seconds taken) of its answers."""
    client = RemoteClient(address, timeout_s=60)
    client.hello()
    rows = Rows.of_envs(1)
    seen = Observation(rows, {"joint_pos": np.zeros((1, 64), np.float32)}, np.zeros(1))
    answers, keys = [], rows.noise_keys(0)
    pipe.send("ready")
    while not pipe.poll(0):
        start = time.monotonic()
        number = int(client.act(seen, keys, "mean").versions[0])
        end = time.monotonic()
        answers.append((end, number, end - start))
    pipe.send(answers)
    client.close()


@contextmanager
def process(target: Callable[..., None], *args: Any) -> Iterator[Connection]:
    ours, theirs = SPAWN.Pipe()
    child = SPAWN.Process(target=target, args=(*args, theirs), daemon=True)
    child.start()
    theirs.close()
    try:
        yield ours
    finally:
        child.join(10)
        child.kill()


def receive(pipe: Connection) -> Any:
    if not pipe.poll(120):
        raise SystemExit("a process of the benchmark does not answer")
    return pipe.recv()


class Learner:
    """Publishes versions to one server.

    Args:
        address: Of the server.
        block: For a server on this host.
        signer: Signs.
    """

    def __init__(self, address: str, block: SharedBlock | None, signer: Signer | None) -> None:
        self._requester, self._block, self._signer = Requester(address, "policy server"), block, signer
        self.number = 0

    def publish(self, tensors: Mapping[str, NDArray[Any]]) -> float:
        """Seconds from holding tensors to their being served."""
        self.number += 1
        tensors["layer000"][0] = self.number  # a new version has new content
        start = time.perf_counter()
        manifest = Manifest.of(SPEC.name, self.number, tensors, SPEC.to_dict())
        signature = self._signer.sign(manifest) if self._signer else ""
        served = push(self._requester, SPEC.name, manifest, tensors, signature=signature, shared=self._block)
        taken = time.perf_counter() - start
        if served != manifest.version:
            raise SystemExit(f"the server serves {served}, not {manifest.version}")
        return taken


def copy_s(source: NDArray[Any], target: NDArray[Any]) -> float:
    start = time.perf_counter()
    np.copyto(target, source)
    return time.perf_counter() - start


def ratios(rounds: int, folder: Path) -> dict[str, float]:
    """Medians over rounds of a push's time over a memcpy's, shared memory and signed ranges in turn."""
    create_signing_keys(folder)
    draw = np.random.default_rng(0)
    tensors = {f"layer{i:03d}": draw.normal(size=FLOATS).astype(np.float32) for i in range(TENSORS)}
    source, target = np.ones(NBYTES // 4, np.float32), np.ones(NBYTES // 4, np.float32)
    took: dict[str, list[float]] = {"full_live_over_memcpy": [], "signed_tcp_over_memcpy": []}
    memcpy_ms = []
    with (
        process(serve, f"ipc://{folder}/policy", None) as near,
        process(serve, "tcp://127.0.0.1:0", folder / PUBLIC) as far,
        SharedBlock() as block,
    ):
        learners = (
            Learner(receive(near), block, None),
            Learner(receive(far), None, Signer(folder / "signing.key_secret")),
        )
        for turn in range(rounds + 2):
            for name, learner in zip(took, learners, strict=True):
                memcpy = float(np.median([copy_s(source, target) for _ in range(3)]))
                pushed = learner.publish(tensors)
                if turn >= 2:  # before, pages are cold
                    took[name].append(pushed / memcpy)
                    memcpy_ms.append(memcpy * 1000)
        near.send("stop")
        far.send("stop")
    return {name: float(np.median(values)) for name, values in took.items()} | {
        "memcpy_ms": float(np.median(memcpy_ms))
    }


def pauses(rounds: int, folder: Path) -> dict[str, float]:
    """Pause of a switch, seen by a client that asks without a pause; medians over rounds."""
    draw = np.random.default_rng(0)
    tensors = {f"layer{i:03d}": draw.normal(size=FLOATS).astype(np.float32) for i in range(TENSORS)}
    windows = []
    with process(serve, f"ipc://{folder}/asked", None) as server, SharedBlock() as block:
        address = receive(server)
        learner = Learner(address, block, None)
        learner.publish(tensors)
        learner.publish(tensors)
        with process(ask, address) as client:
            receive(client)
            for _ in range(rounds):
                time.sleep(0.5)
                start = time.monotonic()
                learner.publish(tensors)
                windows.append((start, time.monotonic()))
            time.sleep(0.5)
            client.send("stop")
            answers = receive(client)
        server.send("stop")
        swap_s = receive(server)
    ends, numbers, taken = (np.array(column) for column in zip(*answers, strict=True))
    outside = np.all([(ends < start) | (ends > stop + 0.05) for start, stop in windows], axis=0)
    median = float(np.median(taken[outside]))
    gaps = np.diff(ends)
    switches = gaps[np.flatnonzero(np.diff(numbers))]
    slowest = [taken[(ends >= start) & (ends <= stop + 0.05)].max() for start, stop in windows]
    return {
        "switch_pause_batches": float(np.median(switches) - np.median(gaps[outside[1:]])) / median,
        "push_slowest_batches": (float(np.median(slowest)) - median) / median,
        "batch_ms": median * 1000,
        "swap_ms": swap_s * 1000,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory() as folder:
        values = ratios(rounds, Path(folder)) | pauses(rounds, Path(folder))
    units = {name: name.rpartition("_")[2] for name in values if name.endswith(("_ms", "_batches"))}
    emit(values, TARGETS, units, at_most=TARGETS)


if __name__ == "__main__":
    main()
