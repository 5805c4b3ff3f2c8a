"""Policy server: a ROUTER socket around a `ServerCore`, in one thread of one process."""

import gc
import math
import signal
import threading
import time
from collections import deque
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
from embodied.wire.descriptors import raise_limit
from embodied.wire.message import LIMITS, Limits

_QUEUE = 64  # messages of one client that wait in either direction
_RECEIVE_BYTES = 1 << 19  # of one connection, read at once by the one I/O thread, which others wait for
_LOOK_S = 0.1  # interval at which `stop` is checked
_AT_ONCE = 64  # messages received between two batches, for this long at most
_AT_ONCE_S = 0.002
_AT_ONCE_BYTES = 1 << 26
_MATTERS_S = 0.002  # a shorter batch makes no request late
_DRAIN_S = 5.0
_CLOSE_S = 3.0  # for versions that are being loaded
_QUIET_S = 0.05  # a stopping server has answered all clients after this silence
_LAST_S = 1.0  # longest wait for that silence
_SNAPSHOT_S = 0.5
_WARM_ROWS = (1, 8)

Served = Mapping[str, PolicySlot]
_Early = tuple[zmq.Frame, list[zmq.Frame], float]
"""Connection and frames of a message that arrived during a batch, and the time at which that began."""


class PolicyServer:
    """Server of policies at one address.

    No client takes more than its share: ZeroMQ receives one message of each connection in turn, a connection's queues
    are bounded and unread replies are dropped, and `ServerCore` bounds the rest.

    Args:
        served: Name to policy slot.
        address: `tcp://host:port` or `ipc://path`; port 0 takes a free one.
        credentials: Folder of the server's credentials, see `embodied.wire.addresses`; needed beyond this machine.
        limits: Limits on the size of messages.
        options: Options of `ServerCore`.

    Attributes:
        core: State machine that answers.
        snapshot: State of the server in plain values, from any thread: `ServerCore.snapshot`, at most half a second
            old while the server is well, with `taken` and `computing_since`, seconds on the monotonic clock, by which a
            hanging server is recognised.
    """

    def __init__(
        self,
        served: Served,
        address: str,
        credentials: str | Path | None = None,
        limits: Limits = LIMITS,
        **options: Any,
    ) -> None:
        addresses.check(address)
        self.address = address
        self._credentials, self._limits = Path(credentials) if credentials else None, limits
        self.core = ServerCore(served, limits=limits, **options)
        self._callers = _Callers(self._credentials)
        self._poller = zmq.Poller()
        self._context: zmq.Context[zmq.Socket[bytes]] | None = None
        self._socket: zmq.Socket[bytes] | None = None
        self._authenticator: Any = None
        self._snapshot: dict[str, Any] = {}
        self._next_snapshot = -float("inf")
        self._take_snapshot()

    @property
    def snapshot(self) -> dict[str, Any]:
        return {**self._snapshot, "computing_since": self.core.computing_since}

    def warm_up(self, rows: Sequence[int] = _WARM_ROWS) -> None:
        """Let every policy decide once for each of these numbers of rows, before `open`, so that no client waits.

        Raises:
            InfrastructureError: A policy fails.
        """
        for name, slot in self.core.slots.items():
            for count in rows:
                try:
                    slot.policy.warm_up(count)
                except EmbodiedError:
                    raise
                except Exception as error:
                    raise InfrastructureError(
                        f"the policy failed on {count} made-up rows: {type(error).__name__}: {error}",
                        f"policy {name}",
                        "correct it, or serve another",
                    ) from error

    def open(self) -> str:
        """Listen; returns the address, with the port found for port 0.

        Raises:
            UserError: It is in use, not of this machine, without its folder, or open to others without credentials.
        """
        self._context = zmq.Context()
        try:
            self._authenticator = self._callers.authenticator(self._context)
            sock = self._context.socket(zmq.ROUTER)
            sock.rcvbuf = _RECEIVE_BYTES
            sock.sndhwm = sock.rcvhwm = _QUEUE  # a client that never reads loses only its own answers
            sock.maxmsgsize = max(self._limits.frame_bytes, self._limits.header_bytes)
            sock.tcp_keepalive, sock.tcp_keepalive_idle, sock.tcp_keepalive_intvl, sock.tcp_keepalive_cnt = 1, 30, 10, 3
            self.address = addresses.bind(sock, self.address, self._credentials)
        except BaseException:
            self.close()
            raise
        self._socket = sock
        self._poller.register(sock, zmq.POLLIN)
        return self.address

    def run(self, stop: threading.Event) -> None:
        """Serve until `stop` is set; then answer received requests, refuse later ones, send goodbyes and close."""
        if self._socket is None:
            self.open()
        sock, core, poll = self._socket, self.core, self._poller.poll
        assert sock is not None
        waited = 0.0
        early: deque[_Early] = deque()
        try:
            while not stop.is_set():
                if not early:
                    poll(_milliseconds(min(core.wait(), _LOOK_S)))
                    self._receive(sock, _AT_ONCE, _AT_ONCE_S, waited)
                began = time.monotonic()
                replies = core.tick()
                # A message that arrived during a batch may have arrived at its start and counts as that old: a late
                # refusal helps a robot less than an early one. These messages are received before any answer is sent,
                # so that a request that follows an answer does not count as having waited.
                waited = time.monotonic() - began
                more = False
                if waited >= _MATTERS_S and not early:
                    received, more = self._received(sock)
                    early.extend((peer, frames, began) for peer, frames in received)
                _send(sock, replies)
                now = limit = time.monotonic()
                limit += _AT_ONCE_S
                while early and now < limit:  # a batch that is due comes before the rest of them
                    peer, frames, since = early.popleft()
                    self._hand(peer, frames, now - since)
                    del peer, frames
                    now = time.monotonic()
                if not more:
                    waited = 0.0
                self._take_snapshot()
            for peer, frames, since in early:
                self._hand(peer, frames, time.monotonic() - since)
            self._drain(sock)
        finally:
            self.close()

    def serve(self, announce: Callable[[str], object] = print, stop: threading.Event | None = None) -> None:
        """Warm up, open, announce one line and run until SIGINT, SIGTERM or `stop`; a second signal ends at once."""
        stop = stop or threading.Event()
        raise_limit()
        with _signals(stop):
            self.warm_up()
            gc.collect()
            gc.freeze()  # else a full collection visits all imported modules while clients wait
            bound = self.open()
            what = ", ".join(f"{name}, {_version(slot.policy)}" for name, slot in sorted(self.core.slots.items()))
            announce(f"serving policy {what}, at {bound}")
            self.run(stop)

    def close(self) -> None:
        """Stop listening, remove a socket file, and refuse waiting loads."""
        self._close_slots()
        if self._authenticator is not None:
            self._authenticator.stop()
        if self._socket is not None:
            self._poller.unregister(self._socket)
            if self.address.startswith("ipc://"):  # before a successor can make its own
                Path(self.address.removeprefix("ipc://")).unlink(missing_ok=True)
        if self._context is not None:
            self._context.destroy()
        self._context = self._socket = self._authenticator = None

    def _close_slots(self) -> None:
        limit = time.monotonic() + _CLOSE_S
        for slot in self.core.slots.values():
            slot.close(max(limit - time.monotonic(), 0.1))

    def _receive(self, sock: zmq.Socket[bytes], most: int, seconds: float, waited: float = 0.0) -> None:
        """Receive messages and pass them to the core."""
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
        self.core.handle(peer.bytes, [frame.buffer for frame in frames], self._callers.of(peer, frames), waited)

    def _received(self, sock: zmq.Socket[bytes]) -> tuple[list[tuple[zmq.Frame, list[zmq.Frame]]], bool]:
        """Received messages, at most `_AT_ONCE`, and whether there may be more."""
        received: list[tuple[zmq.Frame, list[zmq.Frame]]] = []
        size = 0
        while len(received) < _AT_ONCE and size < _AT_ONCE_BYTES:
            if not self._poller.poll(0):
                return received, False
            peer, *frames = wire_frames.receive(sock)
            size += sum(len(frame.buffer) for frame in frames)
            received.append((peer, frames))
        return received, True

    def _drain(self, sock: zmq.Socket[bytes]) -> None:
        core = self.core
        core.draining = True
        self._take_snapshot(now=True)
        self._receive(sock, 1000, _DRAIN_S)
        core.stopping = True
        limit = time.monotonic() + _DRAIN_S
        while core.waiting and time.monotonic() < limit:
            _send(sock, core.tick(draining=True))
            self._receive(sock, _AT_ONCE, _AT_ONCE_S)
        _send(sock, core.dismiss())
        _send(sock, core.farewell())
        self._close_slots()
        limit = time.monotonic() + _LAST_S
        while True:
            self._receive(sock, _AT_ONCE, _AT_ONCE_S)
            _send(sock, core.tick())
            if time.monotonic() >= limit or not self._poller.poll(_milliseconds(_QUIET_S)):
                return

    def _take_snapshot(self, now: bool = False) -> None:
        at = time.monotonic()
        if now or at >= self._next_snapshot:
            self._next_snapshot = at + _SNAPSHOT_S
            state = self.core.snapshot()
            self._snapshot = {**state, "ready": state["ready"] and self._socket is not None, "taken": at}


def serve(
    served: Served,
    address: str,
    credentials: str | Path | None = None,
    announce: Callable[[str], object] = print,
    stop: threading.Event | None = None,
    **options: Any,
) -> None:
    """Serve until SIGINT, SIGTERM or `stop`; see `PolicyServer`.

    Args:
        served: Name to policy slot.
        address: Address to listen on.
        credentials: Folder of the server's credentials.
        announce: Called with one line when the server listens.
        stop: Ends the server when set.
        options: Options of `ServerCore`.

    Raises:
        UserError: The address cannot be listened on.
        InfrastructureError: The policy fails before the first client.
    """
    PolicyServer(served, address, credentials, **options).serve(announce, stop)


class _Callers:
    """Callers by the public keys of their frames."""

    def __init__(self, credentials: Path | None) -> None:
        self._allowed: Any = None
        if credentials is not None:
            from embodied.wire.authenticator import AllowList

            self._allowed = AllowList(credentials)

    def authenticator(self, context: "zmq.Context[zmq.Socket[bytes]]") -> Any:
        """Start the authenticator of a context; None without credentials."""
        if self._allowed is None:
            return None
        from embodied.wire.authenticator import authenticator

        return authenticator(context, self._allowed)

    def of(self, peer: zmq.Frame, frames: Sequence[zmq.Frame]) -> Caller | None:
        """Sender of a message; None for a removed key."""
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
        wire_frames.send(sock, [peer, *frames])  # copies, since a policy may reuse its arrays


def _milliseconds(seconds: float) -> int:
    return math.ceil(seconds * 1000)


def _version(policy: VersionedPolicy) -> str:
    number, digest = policy.version
    return f"version {number}-{digest}" if digest else "its initial weights"


@contextmanager
def _signals(stop: threading.Event) -> Iterator[None]:
    """Set `stop` on the first SIGINT or SIGTERM, in the main thread; the next one ends the process."""
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
