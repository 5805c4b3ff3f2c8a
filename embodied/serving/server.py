"""The policy server: a ROUTER socket around a `ServerCore`, one thread, one process."""

import gc
import math
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import zmq

from embodied.errors import EmbodiedError, InfrastructureError
from embodied.serving.answer import Caller
from embodied.serving.core import LOCAL, Reply, ServerCore
from embodied.serving.policy_slot import PolicySlot
from embodied.serving.versioned_policy import VersionedPolicy
from embodied.wire import addresses
from embodied.wire import frames as wire_frames
from embodied.wire.message import LIMITS, Limits

_QUEUE = 64  # messages of one client that wait in either direction
_LOOK_S = 0.1  # how often a request to stop is looked for
_AT_ONCE = 64  # messages taken in between two batches, for this long at most
_AT_ONCE_S = 0.002
_AT_ONCE_BYTES = 1 << 26
_MATTERS_S = 0.002  # a batch of less than this makes nobody late
_DRAIN_S = 5.0
_CLOSE_S = 3.0  # for versions that are being loaded
_QUIET_S = 0.05  # a server that ends has answered everyone when nothing came for so long
_LAST_S = 1.0  # and waits no longer than this for it
_SNAPSHOT_S = 0.5
_WARM_ROWS = (1, 8)

Served = Mapping[str, PolicySlot]


class PolicyServer:
    """Serves policies on one address.

    One client costs the others its share at most: ZeroMQ takes in one message of each connection in turn, a
    connection's queues are bounded and what it does not read is dropped, and `ServerCore` bounds the rest.

    Args:
        served: Name to policy.
        address: `tcp://host:port` or `ipc://path`; port 0 takes a free one.
        keys: Folder of the server's keys, see `embodied.wire.addresses`; needed beyond this machine.
        limits: What is taken from the wire.
        options: For `ServerCore`.

    Attributes:
        station: Answers.
        snapshot: The server's state in plain values for any thread: that of `ServerCore.snapshot`, at most half a
            second old while the server is well, with `taken` and `computing_since`, seconds on the monotonic clock: a
            server that hangs stops taking it, or computes for ever.
    """

    def __init__(
        self,
        served: Served,
        address: str,
        keys: str | Path | None = None,
        limits: Limits = LIMITS,
        **options: Any,
    ) -> None:
        addresses.check(address)
        self.address = address
        self._keys, self._limits = Path(keys) if keys else None, limits
        self.station = ServerCore(served, limits=limits, **options)
        self._callers = _Callers(self._keys)
        self._poller = zmq.Poller()
        self._context: zmq.Context[zmq.Socket[bytes]] | None = None
        self._socket: zmq.Socket[bytes] | None = None
        self._doorman: Any = None
        self._snapshot: dict[str, Any] = {}
        self._next_snapshot = -float("inf")
        self._look()

    @property
    def snapshot(self) -> dict[str, Any]:
        return {**self._snapshot, "computing_since": self.station.computing_since}

    def warm_up(self, rows: Sequence[int] = _WARM_ROWS) -> None:
        """Let every policy decide once for each of these numbers of rows; before `open`, so that no client waits.

        Raises:
            InfrastructureError: A policy fails.
        """
        for name, desk in self.station.desks.items():
            for count in rows:
                try:
                    desk.host.warm_up(count)
                except EmbodiedError:
                    raise
                except Exception as error:
                    raise InfrastructureError(
                        f"the policy failed on {count} made-up rows: {type(error).__name__}: {error}",
                        f"policy {name}",
                        "mend it, or serve another",
                    ) from error

    def open(self) -> str:
        """Listen; returns the address, with the port that was found.

        Raises:
            UserError: It is in use, not of this machine, without its folder, or open to others without keys.
        """
        self._context = zmq.Context()
        try:
            self._doorman = self._callers.authenticator(self._context)
            sock = self._context.socket(zmq.ROUTER)
            sock.sndhwm = sock.rcvhwm = _QUEUE  # a client that never reads loses its own answers, nobody else's
            sock.maxmsgsize = max(self._limits.frame_bytes, self._limits.header_bytes)
            sock.tcp_keepalive, sock.tcp_keepalive_idle, sock.tcp_keepalive_intvl, sock.tcp_keepalive_cnt = 1, 30, 10, 3
            self.address = addresses.bind(sock, self.address, self._keys)
        except BaseException:
            self.close()
            raise
        self._socket = sock
        self._poller.register(sock, zmq.POLLIN)
        return self.address

    def run(self, stop: threading.Event) -> None:
        """Serve until `stop` is set, then answer what has arrived, refuse what comes later, say goodbye and close."""
        if self._socket is None:
            self.open()
        sock, station, poll = self._socket, self.station, self._poller.poll
        assert sock is not None
        waited = 0.0
        try:
            while not stop.is_set():
                poll(_milliseconds(min(station.wait(), _LOOK_S)))
                self._take_in(sock, _AT_ONCE, _AT_ONCE_S, waited)
                began = time.monotonic()
                replies = station.tick()
                # What came while a batch was computed may have come when it was begun, and is taken for that old: a
                # robot is rather told at once that it will be too late than answered too late. Taken off the socket
                # before any answer is sent, so that who asks because it was answered does not count as having waited.
                waited = time.monotonic() - began
                came, more = self._came(sock) if waited >= _MATTERS_S else ([], False)
                _send(sock, replies)
                for peer, frames in came:
                    self._hand(peer, frames, waited)
                if not more:
                    waited = 0.0
                self._look()
            self._drain(sock)
        finally:
            self.close()

    def serve(self, announce: Callable[[str], object] = print, stop: threading.Event | None = None) -> None:
        """Warm up, `open`, say one line, and `run` until SIGINT, SIGTERM or `stop`; a second signal ends at once."""
        stop = stop or threading.Event()
        with _signals(stop):
            self.warm_up()
            gc.collect()
            gc.freeze()  # else a full collection looks at all that was imported, while clients wait
            bound = self.open()
            what = ", ".join(f"{name}, {_version(desk.host)}" for name, desk in sorted(self.station.desks.items()))
            announce(f"serving policy {what}, at {bound}")
            self.run(stop)

    def close(self) -> None:
        """Stop listening; a socket file is removed. Loads that wait are refused."""
        self._close_desks()
        if self._doorman is not None:
            self._doorman.stop()
        if self._socket is not None:
            self._poller.unregister(self._socket)
            if self.address.startswith("ipc://"):  # before a successor can make its own
                Path(self.address.removeprefix("ipc://")).unlink(missing_ok=True)
        if self._context is not None:
            self._context.destroy()
        self._context = self._socket = self._doorman = None

    def _close_desks(self) -> None:
        limit = time.monotonic() + _CLOSE_S
        for desk in self.station.desks.values():
            desk.close(max(limit - time.monotonic(), 0.1))

    def _take_in(self, sock: zmq.Socket[bytes], most: int, seconds: float, waited: float = 0.0) -> None:
        """Hand what has arrived to the station."""
        limit = time.monotonic() + seconds
        for _ in range(most):
            try:
                peer, *frames = wire_frames.receive(sock)
            except zmq.Again:
                return
            self._hand(peer, frames, waited)
            if time.monotonic() >= limit:
                return

    def _hand(self, peer: zmq.Frame, frames: list[zmq.Frame], waited: float) -> None:
        self.station.handle(peer.bytes, [frame.buffer for frame in frames], self._callers.of(peer, frames), waited)

    def _came(self, sock: zmq.Socket[bytes]) -> tuple[list[tuple[zmq.Frame, list[zmq.Frame]]], bool]:
        """What has arrived, at most `_AT_ONCE` messages, and whether there may be more."""
        came: list[tuple[zmq.Frame, list[zmq.Frame]]] = []
        size = 0
        while len(came) < _AT_ONCE and size < _AT_ONCE_BYTES:
            if not self._poller.poll(0):
                return came, False
            peer, *frames = wire_frames.receive(sock)
            size += sum(len(frame.buffer) for frame in frames)
            came.append((peer, frames))
        return came, True

    def _drain(self, sock: zmq.Socket[bytes]) -> None:
        station = self.station
        station.draining = True
        self._look(now=True)
        self._take_in(sock, 1000, _DRAIN_S)
        station.stopping = True
        limit = time.monotonic() + _DRAIN_S
        while station.waiting and time.monotonic() < limit:
            _send(sock, station.tick(draining=True))
            self._take_in(sock, _AT_ONCE, _AT_ONCE_S)
        _send(sock, station.dismiss())
        _send(sock, station.farewell())
        self._close_desks()
        limit = time.monotonic() + _LAST_S
        while True:
            self._take_in(sock, _AT_ONCE, _AT_ONCE_S)
            _send(sock, station.tick())
            if time.monotonic() >= limit or not self._poller.poll(_milliseconds(_QUIET_S)):
                return

    def _look(self, now: bool = False) -> None:
        at = time.monotonic()
        if now or at >= self._next_snapshot:
            self._next_snapshot = at + _SNAPSHOT_S
            state = self.station.snapshot()
            self._snapshot = {**state, "ready": state["ready"] and self._socket is not None, "taken": at}


def serve(
    served: Served,
    address: str,
    keys: str | Path | None = None,
    announce: Callable[[str], object] = print,
    stop: threading.Event | None = None,
    **options: Any,
) -> None:
    """Serve until SIGINT, SIGTERM or `stop`; says one line when ready. See `PolicyServer`.

    Raises:
        UserError: The address cannot be listened on.
        InfrastructureError: The policy fails before the first client.
    """
    PolicyServer(served, address, keys, **options).serve(announce, stop)


class _Callers:
    """Who is behind a connection, as the keys of its frames say."""

    def __init__(self, keys: Path | None) -> None:
        self._allowed: Any = None
        if keys is not None:
            from embodied.wire.authenticator import AllowList

            self._allowed = AllowList(keys)

    def authenticator(self, context: "zmq.Context[zmq.Socket[bytes]]") -> Any:
        """Lets known keys in, and no others; None without keys."""
        if self._allowed is None:
            return None
        from embodied.wire.authenticator import authenticator

        return authenticator(context, self._allowed)

    def of(self, peer: zmq.Frame, frames: Sequence[zmq.Frame]) -> Caller | None:
        """Who sent a message; None for one whose key was removed."""
        if self._allowed is None:
            return LOCAL
        try:
            user = (frames[0] if frames else peer).get("User-Id")
        except zmq.ZMQError:
            return None
        found = self._allowed.caller(str(user))
        return None if found is None else Caller(*found)


def _send(sock: zmq.Socket[bytes], replies: list[Reply]) -> None:
    for peer, frames in replies:
        wire_frames.send(sock, [peer, *frames])  # copies, since a policy may use its arrays again


def _milliseconds(seconds: float) -> int:
    return math.ceil(seconds * 1000)


def _version(host: VersionedPolicy) -> str:
    number, digest = host.version
    return f"version {number}-{digest}" if digest else "its initial weights"


@contextmanager
def _signals(stop: threading.Event) -> Iterator[None]:
    """Turn the first SIGINT or SIGTERM into `stop`, where this is the main thread; the next one ends the process."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    caught = (signal.SIGINT, signal.SIGTERM)

    def ask_to_stop(*_: object) -> None:
        stop.set()
        for number in caught:
            signal.signal(number, signal.SIG_DFL)

    before = {number: signal.signal(number, ask_to_stop) for number in caught}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
