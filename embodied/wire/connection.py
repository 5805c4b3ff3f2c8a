"""Connection to a server: a DEALER socket that tells when it broke, so that requests can be sent again."""

import os
import time
import weakref
from collections.abc import Sequence
from pathlib import Path

import zmq

from embodied.errors import UserError
from embodied.wire import addresses
from embodied.wire import frames as wire_frames
from embodied.wire.message import Buffer, Limits

_QUEUE = 1000
_GOODBYE_MS = 200  # time for a last message to leave
_SETTLE_S = 0.005


class Connection:
    """Opens at construction, and reconnects when the server is back. Not thread-safe.

    It belongs to the process that made it: in a forked one every method raises `UserError`, and `close` does nothing.

    Args:
        address: `tcp://host:port` or `ipc://path`.
        credentials: Folder of CURVE credentials, see `embodied.wire.addresses`.
        limits: Limits on the size of messages.

    Attributes:
        opened: Time of construction, seconds of `time.monotonic`.

    Raises:
        UserError: The address is malformed, without its folder, or beyond this machine without credentials.
    """

    def __init__(self, address: str, credentials: Path | None, limits: Limits) -> None:
        self.opened, self._address, self._pid = time.monotonic(), address, os.getpid()
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        sockets: list[zmq.Socket[bytes]] = []
        # Before pyzmq's own destructors, whose order is undefined: a context waits without limit for open sockets.
        self._drop = weakref.finalize(self, _drop, self._context, sockets, self._pid)
        sock = self._socket = self._context.socket(zmq.DEALER)
        sockets.append(sock)
        sock.sndhwm = sock.rcvhwm = _QUEUE
        sock.maxmsgsize = max(limits.frame_bytes, limits.header_bytes)
        sock.immediate = True  # messages to a dead server wait here, not in a queue that outlives a deadline
        sock.reconnect_ivl, sock.reconnect_ivl_max = 50, 1000
        sock.tcp_keepalive, sock.tcp_keepalive_idle = 1, 5  # a machine that lost its power sends no goodbye
        sock.tcp_keepalive_intvl, sock.tcp_keepalive_cnt = 1, 5
        self._wait_ms = -1
        try:
            self._events = sock.get_monitor_socket(zmq.EVENT_DISCONNECTED)
            sockets.append(self._events)
            addresses.connect(sock, address, credentials)
        except BaseException:
            self._drop()
            raise
        self._poller = zmq.Poller()
        self._poller.register(sock, zmq.POLLIN | zmq.POLLOUT)

    def send(self, frames: Sequence[Buffer]) -> bool:
        """Send a message, copied; false without a connection, or with a full queue."""
        self._check_process()
        try:
            wire_frames.send(self._socket, frames)
        except zmq.Again:
            return False
        return True

    def receive(self, wait_s: float, writable: bool = False) -> list[Buffer] | None:
        """Next message; None after `wait_s`, or, with `writable`, as soon as a message can be sent."""
        self._check_process()
        wait_ms = int(wait_s * 1000) + 1 if wait_s > 0 else 0
        if writable:
            if not dict(self._poller.poll(wait_ms)).get(self._socket, 0) & zmq.POLLIN:
                return None
            wait_ms = 0
        if wait_ms != self._wait_ms:
            self._socket.setsockopt(zmq.RCVTIMEO, wait_ms)
            self._wait_ms = wait_ms
        try:
            return [frame.buffer for frame in wire_frames.receive(self._socket, 0)]
        except zmq.Again:
            return None

    def fileno(self) -> int:
        """Descriptor that becomes readable, once, when the socket's state has changed: see ZMQ_FD."""
        return int(self._socket.getsockopt(zmq.FD))

    def lost(self) -> bool:
        """Whether the connection broke since the last call; it may be open again."""
        self._check_process()
        broke = False
        while True:
            try:
                self._events.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                break
            broke = True
        if broke:
            time.sleep(_SETTLE_S)  # the event comes a moment before the socket stops accepting messages
        return broke

    def close(self, goodbye: bool = False) -> None:
        """Close the connection; with `goodbye` the last message has a moment to leave."""
        if goodbye and self._pid == os.getpid():
            self._socket.close(_GOODBYE_MS)
        self._drop()

    def _check_process(self) -> None:
        if self._pid != os.getpid():
            raise UserError("this client was made in another process", self._address, "make a client in each process")


def _drop(context: zmq.Context[zmq.Socket[bytes]], sockets: list[zmq.Socket[bytes]], pid: int) -> None:
    if pid != os.getpid():
        return  # a forked process lacks the I/O threads, so `term` would wait without limit
    for sock in sockets:
        sock.close(0)
    context.term()
