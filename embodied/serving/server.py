"""The policy server: a ROUTER socket around a `ServerStation`, one thread, one process."""

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import zmq
from zmq.auth.thread import ThreadAuthenticator

from embodied.serving.host import PolicyHost
from embodied.serving.station import Reply, ServerStation
from embodied.wire import addresses
from embodied.wire.keys import AllowList, doorman
from embodied.wire.message import LIMITS, Limits

_QUEUE = 1000
_LOOK_S = 0.1  # how often a request to stop is looked for
_AT_ONCE = 64  # messages taken in between two batches
_DRAIN_S = 5.0


class PolicyServer:
    """Serves one host on one address.

    Args:
        host: Decides.
        address: `tcp://host:port` or `ipc://path`; port 0 takes a free one.
        keys: Folder of CURVE keys, see `embodied.wire.addresses`; needed beyond this machine.
        limits: What is taken from the wire.
        options: For `ServerStation`.
    """

    def __init__(
        self,
        host: PolicyHost,
        address: str,
        keys: str | Path | None = None,
        limits: Limits = LIMITS,
        **options: Any,
    ) -> None:
        addresses.check(address)
        self.host, self.address = host, address
        self._keys, self._limits = Path(keys) if keys else None, limits
        self._station = ServerStation(host, limits=limits, **options)
        self._context: zmq.Context[zmq.Socket[bytes]] | None = None
        self._socket: zmq.Socket[bytes] | None = None
        self._doorman: ThreadAuthenticator | None = None

    def open(self) -> str:
        """Listen; returns the address, with the port that was found.

        Raises:
            UserError: It is in use, not of this machine, without its folder, or open to others without keys.
        """
        self._context = zmq.Context()
        try:
            if self._keys is not None:
                self._doorman = doorman(self._context, AllowList(self._keys))
            sock = self._context.socket(zmq.ROUTER)
            sock.sndhwm = sock.rcvhwm = _QUEUE  # a client that never reads loses its own answers, nobody else's
            sock.maxmsgsize = max(self._limits.frame_bytes, self._limits.header_bytes)
            self.address = addresses.bind(sock, self.address, self._keys)
        except BaseException:
            self.close()
            raise
        self._socket = sock
        return self.address

    def run(self, stop: threading.Event) -> None:
        """Serve until `stop` is set, then answer what has arrived, say goodbye and close."""
        if self._socket is None:
            self.open()
        sock, station = self._socket, self._station
        assert sock is not None
        try:
            while not stop.is_set():
                sock.poll(round(min(station.wait(), _LOOK_S) * 1000), zmq.POLLIN)
                _take_in(sock, station, _AT_ONCE)
                _send(sock, station.tick())
            _take_in(sock, station, _QUEUE)
            limit = time.monotonic() + _DRAIN_S
            while station.waiting and time.monotonic() < limit:
                _send(sock, station.tick(draining=True))
            _send(sock, station.farewell())
        finally:
            self.close()

    def close(self) -> None:
        """Stop listening; a socket file is removed."""
        if self._doorman is not None:
            self._doorman.stop()
        if self._socket is not None and self.address.startswith("ipc://"):
            Path(self.address.removeprefix("ipc://")).unlink(missing_ok=True)  # before a successor can make its own
        if self._context is not None:
            self._context.destroy()
        self._context = self._socket = self._doorman = None


def serve(
    host: PolicyHost,
    address: str,
    keys: str | Path | None = None,
    announce: Callable[[str], object] = print,
    stop: threading.Event | None = None,
) -> None:
    """Serve until SIGINT, SIGTERM or `stop`; says one line when ready.

    Raises:
        UserError: The address cannot be listened on.
    """
    stop = stop or threading.Event()
    server = PolicyServer(host, address, keys)
    with _signals(stop):
        bound = server.open()
        number, digest = host.version
        label = f"version {number}-{digest}" if digest else "its initial weights"
        announce(f"serving policy {host.spec.name}, {label}, at {bound}")
        server.run(stop)


def _take_in(sock: zmq.Socket[bytes], station: ServerStation, most: int) -> None:
    for _ in range(most):
        if not sock.poll(0, zmq.POLLIN):
            return
        peer, *frames = sock.recv_multipart(zmq.NOBLOCK, copy=False)
        station.handle(peer.bytes, [frame.buffer for frame in frames])


def _send(sock: zmq.Socket[bytes], replies: list[Reply]) -> None:
    for peer, frames in replies:
        sock.send_multipart([peer, *frames], zmq.NOBLOCK, copy=False)


@contextmanager
def _signals(stop: threading.Event) -> Iterator[None]:
    """Turn SIGINT and SIGTERM into `stop`, where this is the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    caught = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.signal(number, lambda *_: stop.set()) for number in caught}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
