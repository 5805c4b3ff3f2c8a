"""TCP proxy in front of a ZeroMQ socket: it forwards connections frame by frame, within limits that ZeroMQ lacks.

ZeroMQ accepts any number of connections and of frames in a message, waits without limit for the rest of a message, and
queues unread messages. The proxy bounds the connections; the bytes of one message and the time that it takes to arrive;
the unanswered messages of one connection, and the bytes of all. So the backend socket holds at most `budget` bytes of
requests. A connection whose answers are not read is closed.

The proxy parses the framing of ZMTP 3 (RFC 23, 37) and rejects older protocols and other commands. The contents of
frames concern only the backend, which must answer every message once.
"""

import logging
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from embodied.gateways.send_watchdog import SendWatchdog, cut_off

log = logging.getLogger(__name__)

_SIGNATURE, _GREETING = 10, 64  # bytes of ZMTP 3, sent in both directions before any frame
_SHAKE_S = 5.0
_COMMAND = 4096
_FRAMES, _ENVELOPE = 8, 256  # of one message, and bytes of each but the last
_UNANSWERED = 4  # messages of one connection
_PIECE = 1 << 18
_MORE, _LONG, _IS_COMMAND = 1, 2, 4
_COMMANDS = (b"\x05READY", b"\x05ERROR", b"\x04PING", b"\x04PONG")  # the backend would read others as messages


@dataclass(eq=False)
class _ProxiedConnection:
    """One connection: sockets of client and backend, and the claimed bytes of each unanswered message."""

    client: socket.socket
    backend: socket.socket
    heard: float
    claims: deque[int] = field(default_factory=deque)
    sending: threading.Lock = field(default_factory=threading.Lock)
    threads: int = 2


class TcpProxy:
    """Forwards connections of a listening socket; `start`, then `close`.

    Args:
        listener: Socket that listens for clients.
        backend: Path of the backend's socket.
        most: Bytes of one message; a longer one is read, dropped and answered with `refusal`.
        budget: Bytes of all unanswered messages.
        connections: Connections at a time; for one more the one that was silent longest is closed.
        patience_s: Seconds for a message to arrive once it has begun, and for an answer to be read.
        refusal: Answer to a message of so many bytes.
    """

    def __init__(
        self,
        listener: socket.socket,
        backend: str,
        *,
        most: int,
        budget: int,
        connections: int,
        patience_s: float,
        refusal: Callable[[int], bytes],
    ) -> None:
        self._listener, self._backend, self._most, self._left = listener, backend, most, budget
        self._connections, self._patience_s, self._refusal = connections, patience_s, refusal
        self._links: set[_ProxiedConnection] = set()
        self._change = threading.Condition()
        self._watch = SendWatchdog()

    def start(self) -> None:
        self._watch.start()
        threading.Thread(target=self._accept, name="proxy", daemon=True).start()

    def close(self, wait_s: float = 0.0) -> None:
        """Close all connections; the backend has `wait_s` to close them first."""
        cut_off(self._listener)  # else `accept` would wait without limit
        self._listener.close()
        with self._change:
            self._change.wait_for(lambda: not self._links, wait_s)
            links = list(self._links)
        for link in links:
            self._end(link)
        self._watch.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                if self._listener.fileno() == -1:
                    return
                time.sleep(0.05)  # for example too many open files
                continue
            backend = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                backend.connect(self._backend)
            except OSError:
                client.close()
                backend.close()
                continue
            link = _ProxiedConnection(client, backend, time.monotonic())
            with self._change:
                self._links.add(link)
                full = len(self._links) > self._connections
                silent = min(self._links - {link}, key=lambda other: (len(other.claims), other.heard), default=link)
            if full:
                self._end(silent)
            for passes in (self._up, self._down):
                threading.Thread(target=self._run, args=(passes, link), name="proxy", daemon=True).start()

    def _run(self, passes: Callable[[_ProxiedConnection], None], link: _ProxiedConnection) -> None:
        with suppress(OSError, EOFError):
            passes(link)
        self._end(link)
        with self._change:
            link.threads -= 1
        if link.threads == 0:
            link.client.close()
            link.backend.close()

    def _end(self, link: _ProxiedConnection) -> None:
        with self._change:
            if link not in self._links:
                return
            self._links.discard(link)
            self._left += sum(link.claims)
            link.claims.clear()
            self._change.notify_all()
        cut_off(link.client)
        cut_off(link.backend)

    def _up(self, link: _ProxiedConnection) -> None:
        """Forward from the client to the backend."""
        with self._watch.within(link.client, _SHAKE_S):
            signature = _take(link.client, _SIGNATURE)
            if signature[0] != 0xFF or not signature[-1] & 1:
                raise EOFError  # an older protocol with another framing
            link.backend.sendall(signature)
            if (revision := _take(link.client, 1))[0] < 3:
                raise EOFError
            link.backend.sendall(revision)
            _pass(link.client, link.backend, _GREETING - _SIGNATURE - 1)
        while True:
            flags = _take(link.client, 1)
            with self._watch.within(link.client, self._patience_s):
                self._message(link, flags)

    def _message(self, link: _ProxiedConnection, flags: bytes) -> None:
        """Forward one message or command, whose first byte is `flags`."""
        envelope: list[bytes] = []
        while True:
            raw = _take(link.client, 8 if flags[0] & _LONG else 1)
            size = int.from_bytes(raw, "big")
            if flags[0] & _IS_COMMAND:
                body = _take(link.client, size) if size <= _COMMAND else b""
                if flags[0] & _MORE or not body.startswith(_COMMANDS):
                    raise EOFError
                link.backend.sendall(flags + raw + body)
                if not envelope:
                    return
            elif flags[0] & _MORE:
                if size > _ENVELOPE or len(envelope) == _FRAMES:
                    raise EOFError
                envelope.append(flags + raw + _take(link.client, size))
            else:
                break
            flags = _take(link.client, 1)
        link.heard = time.monotonic()
        if size > self._most:
            self._refuse(link, envelope, size)
            return
        self._claim(link, size)
        link.backend.sendall(b"".join(envelope) + flags + raw)
        _pass(link.client, link.backend, size)

    def _refuse(self, link: _ProxiedConnection, envelope: list[bytes], size: int) -> None:
        """Read and drop a message that is too long, and answer it."""
        if size > 64 * self._most:
            raise EOFError
        _pass(link.client, None, size)
        answer = self._refusal(size)
        with link.sending, self._watch.within(link.client, self._patience_s):
            link.client.sendall(b"".join(envelope) + bytes([_LONG]) + struct.pack(">Q", len(answer)) + answer)

    def _claim(self, link: _ProxiedConnection, size: int) -> None:
        limit = time.monotonic() + self._patience_s
        with self._change:
            while link in self._links and (len(link.claims) >= _UNANSWERED or size > self._left):
                if not self._change.wait(limit - time.monotonic()) and time.monotonic() >= limit:
                    raise EOFError
            if link not in self._links:
                raise EOFError
            self._left -= size
            link.claims.append(size)

    def _down(self, link: _ProxiedConnection) -> None:
        """Forward from the backend to the client; the end of each answer frees the claim of its request."""
        _pass(link.backend, link.client, _GREETING)
        while True:
            flags, more = _take(link.backend, 1), True
            with link.sending, self._watch.within(link.client, self._patience_s):
                while more:
                    raw = _take(link.backend, 8 if flags[0] & _LONG else 1)
                    link.client.sendall(flags + raw)
                    _pass(link.backend, link.client, int.from_bytes(raw, "big"))
                    more = bool(flags[0] & _MORE)
                    if more:
                        flags = _take(link.backend, 1)
            if not flags[0] & _IS_COMMAND:
                with self._change:
                    self._left += link.claims.popleft() if link.claims else 0
                    self._change.notify_all()


def _take(sock: socket.socket, size: int) -> bytes:
    """Read exactly `size` bytes, few of them; raises `EOFError` at the end."""
    got = b""
    while len(got) < size:
        if not (piece := sock.recv(size - len(got))):
            raise EOFError
        got += piece
    return got


def _pass(source: socket.socket, sink: socket.socket | None, size: int) -> None:
    """Forward exactly `size` bytes as they come, or drop them; raises `EOFError` at the end."""
    while size:
        if not (piece := source.recv(min(size, _PIECE))):
            raise EOFError
        if sink is not None:
            sink.sendall(piece)
        size -= len(piece)
