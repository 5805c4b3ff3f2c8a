"""An upstream server and edges in processes of their own, each with a registry, and a TCP proxy between them."""

import socket
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embodied.client import RemoteClient
from embodied.errors import EmbodiedError, WeightsRefused
from embodied.serving.loader import Loader
from embodied.serving.policy_slot import PolicySlot
from embodied.serving.server import serve
from embodied.serving.versioned_policy import VersionedPolicy
from embodied.weight_sync.push_receiver import PushReceiver
from embodied.weight_sync.registry_watcher import RegistryWatcher, audited
from embodied.weight_sync.upstream import UpstreamClient
from embodied.weight_sync.version_server import VersionServer
from embodied.weights.manifest import Version
from embodied.weights.registry import Registry
from tests.serving.tiny import SPAWN, SPEC, TinyPolicy, tensors

BALLAST = 2**20
BUILD = {"_target_": "policies.mlp.build", "hidden": [8]}


def heavy(tag: int) -> dict[str, NDArray[Any]]:
    """Weights as of `tiny.tensors`, with a megabyte besides."""
    return {**tensors(tag), "ballast": np.random.default_rng(tag).integers(0, 255, BALLAST, dtype=np.uint8)}


class HeavyPolicy(TinyPolicy):
    def __init__(self) -> None:
        self._tensors = heavy(0)

    def load(self, tensors: Mapping[str, NDArray[Any]]) -> None:
        if tensors["ballast"].shape != (BALLAST,):
            raise WeightsRefused("tensor ballast does not fit", "policy tiny", "send what it has")
        super().load(tensors)


def publish(registry: Registry, tag: int) -> Version:
    return registry.publish("tiny", registry.reserve("tiny"), heavy(tag), SPEC.to_dict()).version


def _slot(registry: Registry, upstream: UpstreamClient | None = None) -> dict[str, PolicySlot]:
    host = VersionedPolicy(HeavyPolicy(), HeavyPolicy())
    loader = Loader(host, audited(registry, "tiny", "test"))
    follower, offer = RegistryWatcher(host, loader, registry), VersionServer(host, registry=registry, build=BUILD)
    if upstream is not None:
        upstream.start(registry, heavy(0), lambda: host.version)
    return {"served": PolicySlot(host, loader, upstream or PushReceiver(host, loader), offer, follower, BUILD)}


def _upstream(address: str, folder: str, pipe: Connection) -> None:
    serve(_slot(Registry(folder)), address, announce=lambda line: pipe.send(line.rpartition(" at ")[2]))


def _edge(upstream: str, folder: str, name: str, mbit: float, pipe: Connection) -> None:
    follow = UpstreamClient(upstream, folder, name=name, bandwidth_mbit=mbit, poll_s=0.05)
    try:
        follow.connect(20)
        slots = _slot(Registry(folder), follow)
    except EmbodiedError as error:
        pipe.send(error.line())
        return
    serve(slots, "tcp://127.0.0.1:0", announce=lambda line: pipe.send(line.rpartition(" at ")[2]))


def _start(target: Callable[..., None], *args: Any) -> tuple[BaseProcess, str]:
    ours, theirs = SPAWN.Pipe()
    process = SPAWN.Process(target=target, args=(*args, theirs), daemon=True)
    process.start()
    theirs.close()
    assert ours.poll(60), "the server did not start"
    return process, ours.recv()


def start_upstream(folder: Path, address: str = "tcp://127.0.0.1:0") -> tuple[BaseProcess, str]:
    return _start(_upstream, address, str(folder))


def start_edge(upstream: str, folder: Path, name: str = "arm", mbit: float = 0.0) -> tuple[BaseProcess, str]:
    """The process, and its address or the error it did not start for."""
    return _start(_edge, upstream, str(folder), name, mbit)


def status(address: str) -> dict[str, Any]:
    client = RemoteClient(address, timeout_s=20)
    try:
        return client.status()
    finally:
        client.close()


def wait_for(what: Callable[[], bool]) -> None:
    end = time.monotonic() + 40
    while not what():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.02)


def wait_until_serving(address: str, number: int) -> None:
    wait_for(lambda: status(address)["number"] == number)


class Proxy:
    """Passes TCP connections on to `target` until it is cut; what comes back at `rate` bytes per second.

    Attributes:
        address: Where it listens.
        passed: Bytes that came back.
        most: Cut by itself once that many bytes have come back; None for never.
    """

    def __init__(self, target: str, rate: float = float("inf")) -> None:
        self.target, self.rate, self.passed = target, rate, 0
        self.most: int | None = None
        self.open = True
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"tcp://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        """Pass nothing on any more; what has come back still arrives."""
        self.open = False
        pairs, self._pairs = self._pairs, []
        for near, far in pairs:
            for one, how in ((far, socket.SHUT_RDWR), (near, socket.SHUT_WR)):
                with suppress(OSError):
                    one.shutdown(how)

    def restore(self) -> None:
        self.most, self.open = None, True

    def close(self) -> None:
        self.cut()
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            if not self.open:
                near.close()
                continue
            host, port = self.target.removeprefix("tcp://").rsplit(":", 1)
            try:
                far = socket.create_connection((host, int(port)), 5)
            except OSError:
                near.close()
                continue
            self._pairs.append((near, far))
            threading.Thread(target=self._pass, args=(near, far, False), daemon=True).start()
            threading.Thread(target=self._pass, args=(far, near, True), daemon=True).start()

    def _pass(self, source: socket.socket, sink: socket.socket, back: bool) -> None:
        with suppress(OSError):
            while (data := source.recv(2**14)) and self.open:
                sink.sendall(data)
                if back:
                    self.passed += len(data)
                    if self.most is not None and self.passed >= self.most:
                        self.cut()
                        return
                    time.sleep(len(data) / self.rate)
        with suppress(OSError):
            sink.shutdown(socket.SHUT_WR)
