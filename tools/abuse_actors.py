"""Processes and connections of `abuse.py`: a robot, openpi's clients, edges, floods, and a server on a slow disk.

`python abuse_actors.py KIND ARGUMENT ...` prints `ready`; then each line SECONDS on its input makes it act for so long
and print its latencies in seconds and the number of failed requests as a line of JSON.
"""

import json
import os
import resource
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np

PERIOD_S = 0.05
PATIENCE_S = 5.0
START_S = 120.0
SLOW_S = 0.3


@dataclass
class Latencies:
    """Seconds that each answered request took, and the number of the others."""

    seconds: list[float]
    failed: int

    @property
    def p99(self) -> float:
        """The 99th percentile in milliseconds; NaN without answers."""
        return 1000 * float(np.percentile(self.seconds, 99)) if self.seconds else float("nan")

    @property
    def cell(self) -> str:
        """Median, 99th percentile and failures, for a table."""
        if not self.seconds:
            return f"none, {self.failed}" if self.failed else "-"
        return f"{1000 * float(np.median(self.seconds)):.1f} / {self.p99:.1f}, {self.failed}"


class Actor:
    """A process of this file that acts on demand.

    Args:
        kind: One of `KINDS`.
        arguments: Of that kind.

    Attributes:
        version: Version that answered a robot's first request.
    """

    def __init__(self, kind: str, *arguments: str) -> None:
        command = [sys.executable, __file__, kind, *arguments]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        timer = threading.Timer(START_S, self._process.kill)
        timer.start()
        assert self._process.stdout is not None
        said = self._process.stdout.readline().strip()
        timer.cancel()
        self._ready, _, self.version = said.partition(" ")

    def ask(self, seconds: float) -> Latencies:
        """Act for so long; a process that never was ready counts as one failure."""
        if self._ready != "ready":
            return Latencies([], 1)
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(f"{seconds}\n")
        self._process.stdin.flush()
        timer = threading.Timer(seconds + 4 * START_S, self._process.kill)
        timer.start()
        line = self._process.stdout.readline()
        timer.cancel()
        return Latencies(*json.loads(line)) if line else Latencies([], 1)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._process.kill()
        self._process.wait()


@contextmanager
def silent_connections(address: str, count: int) -> Iterator[None]:
    """Connections to `host:port` that never say anything; as many as are accepted within five seconds."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 8192), hard))
    host, _, port = address.rpartition(":")
    made: list[socket.socket] = []
    limit = time.monotonic() + PATIENCE_S
    try:
        while len(made) < count and time.monotonic() < limit:
            try:
                made.append(socket.create_connection((host, int(port)), timeout=0.5))
            except OSError:
                time.sleep(0.01)
        yield
    finally:
        for sock in made:
            sock.close()


Ask = Callable[[], object]
"""One request and its answer."""


def robot(address: str, credentials: str = "") -> list[Ask]:
    """One client with the priority of a robot."""
    from embodied.client import RemoteClient
    from embodied.data import Observation, Rows

    client = RemoteClient(address, PATIENCE_S, credentials or None, priority="robot")
    spec, rows = client.hello(), Rows.of_envs(1)
    sensed = {s.name: np.zeros((1, *s.shape), s.dtype) for s in spec.agent.observations}
    seen = Observation(rows, sensed, np.zeros(1))

    def ask() -> str:
        rows.step += 1
        return str(client.act(seen, rows.noise_keys(0), "mean").versions[0])

    return [ask]


def openpi(address: str, count: str) -> list[Ask]:
    """Clients of openpi's protocol."""
    return [_openpi(address) for _ in range(int(count))]


def _openpi(address: str) -> Ask:
    from websockets.sync.client import connect

    from embodied.gateways.openpi import messages

    connection = connect(f"ws://{address}", compression=None, max_size=None, open_timeout=PATIENCE_S, legacy=True)
    served = messages.decode(_binary(connection.recv(PATIENCE_S)))
    observation: dict[str, Any] = {}
    for entry in served["observation"].values():
        *above, key = entry["path"]
        node = observation
        for name in above:
            node = node.setdefault(name, {})
        node[key] = "lift" if entry["dtype"] == "str" else np.zeros(entry["shape"], entry["dtype"])
    request = messages.encode(observation)

    def ask() -> None:
        connection.send(request)
        messages.decode(_binary(connection.recv(PATIENCE_S)))

    return ask


def _binary(data: str | bytes) -> bytes:
    if isinstance(data, str):
        raise ConnectionError(data)
    return data


def edges(address: str, count: str) -> list[Ask]:
    """Edges, each of which fetches one range of the active version after the other."""
    from embodied.weights.manifest import Manifest
    from embodied.weights.transfer import RANGE_BYTES
    from embodied.wire.endpoint import Requester

    def edge() -> Ask:
        link = Requester(address, "policy server", timeout_s=PATIENCE_S)
        manifest = Manifest.from_dict(link.request("fetch", body={"version": ""}).body["manifest"])
        offset = 0

        def ask() -> None:
            nonlocal offset
            size = min(RANGE_BYTES, manifest.nbytes - offset)
            link.request("fetch", body={"version": manifest.label, "offset": offset, "size": size})
            offset = (offset + size) % manifest.nbytes

        return ask

    return [edge() for _ in range(int(count))]


def flood(address: str, megabytes: str) -> list[Ask]:
    """A client whose observations are that large."""
    from embodied.errors import EmbodiedError
    from embodied.wire.endpoint import Requester

    link = Requester(address, "policy server", timeout_s=PATIENCE_S)
    arrays = {"picture": np.zeros(int(megabytes) * 10**6, np.uint8)}

    def ask() -> None:
        try:
            link.request("act", arrays=arrays)
        except EmbodiedError:  # a refusal is an answer
            time.sleep(0.01)

    return [ask]


def push(address: str, number: str) -> list[Ask]:
    """A learner that pushes one version, before it is ready."""
    from embodied.client import RemoteClient
    from embodied.runs.parts import build_policy
    from embodied.weights.manifest import Manifest

    client = RemoteClient(address, 60.0)
    spec = client.hello()
    tensors = build_policy(client.build, spec.whole_agent, int(number)).tensors()
    client.push(Manifest.of(spec.name, int(number), tensors, spec.to_dict()), tensors)
    return [lambda: time.sleep(PERIOD_S)]


def slow(folder: str, *words: str) -> int:
    """Run a command of `embodied`; each look at a file below `folder/weights` takes 300 ms while `slow` exists."""
    stat, below, switch = os.stat, str(Path(folder, "weights")), Path(folder, "slow")

    def slowed(call: Callable[..., Any]) -> Callable[..., Any]:
        def slow_call(path: Any, *args: Any, **kwargs: Any) -> Any:
            if isinstance(path, str | os.PathLike) and os.fspath(path).startswith(below):
                try:
                    stat(switch)
                    time.sleep(SLOW_S)
                except FileNotFoundError:
                    pass
            return call(path, *args, **kwargs)

        return slow_call

    import builtins
    import io

    for module, name in (
        (os, "stat"),
        (os, "open"),
        (os, "scandir"),
        (os, "listdir"),
        (io, "open"),
        (builtins, "open"),
    ):
        setattr(module, name, slowed(getattr(module, name)))
    from embodied.cli.main import run as embodied

    return embodied(list(words))


KINDS: dict[str, Callable[..., list[Ask]]] = {
    "robot": robot, "openpi": openpi, "edges": edges, "flood": flood, "push": push
}  # fmt: skip
PACED = {"robot", "openpi"}


def act(kind: str, asks: list[Ask], seconds: float) -> Latencies:
    """Ask for so long, each client in a thread of its own."""
    result = Latencies([], 0)
    end = time.monotonic() + seconds

    def one(ask: Ask) -> None:
        while (begin := time.monotonic()) < end:
            try:
                ask()
                result.seconds.append(time.monotonic() - begin)
            except Exception as error:
                print(f"{kind}: {type(error).__name__}: {error}", file=sys.stderr)
                result.failed += 1
                time.sleep(0.1)
            if kind in PACED:
                time.sleep(max(begin + PERIOD_S * len(asks) - time.monotonic(), 0.0))

    threads = [threading.Thread(target=one, args=(ask,)) for ask in asks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return result


def main(kind: str, *arguments: str) -> int:
    if kind == "slow":
        return slow(*arguments)
    asks = KINDS[kind](*arguments)
    print("ready", asks[0]() if kind == "robot" else "", flush=True)
    for line in sys.stdin:
        done = act(kind, asks, float(line))
        print(json.dumps([done.seconds, done.failed]), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
