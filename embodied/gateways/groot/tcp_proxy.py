"""A door in front of a ZeroMQ socket: TCP connections are passed on frame by frame, within limits ZeroMQ cannot keep.

ZeroMQ takes any number of connections, each with messages of any number of frames, waits for ever for the rest of one,
and queues what is not read yet. Here are bounded: connections; the bytes of one message and the time it takes to
arrive; messages of one connection, and bytes of all, that have begun to arrive and are not answered yet. So the socket
behind holds `budget` bytes of requests at most, whoever calls. Answers that are not read end their connection.

It reads of ZMTP 3 (RFC 23, 37) only where frames end, and lets in nothing else that ZeroMQ understands; what frames
hold is the affair of the socket behind, which must answer every message once.
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

from embodied.gateways.send_watchdog import Watch, cut_off

log = logging.getLogger(__name__)

_SIGNATURE, _GREETING = 10, 64  # bytes of ZMTP 3, sent in both directions before any frame
_SHAKE_S = 5.0
_COMMAND = 4096
_FRAMES, _ENVELOPE = 8, 256  # of one message, and bytes of each but the last
_UNANSWERED = 4  # messages of one connection
_PIECE = 1 << 18
_MORE, _LONG, _IS_COMMAND = 1, 2, 4
_COMMANDS = (b"\x05READY", b"\x05ERROR", b"\x04PING", b"\x04PONG")  # others would arrive as messages


@dataclass(eq=False)
class _Line:
    """One connection: the client's socket and the one behind; claimed bytes per message that waits for its answer."""

    near: socket.socket
    far: socket.socket
    heard: float
    claims: deque[int] = field(default_factory=deque)
    said: threading.Lock = field(default_factory=threading.Lock)
    threads: int = 2


class TcpProxy:
    """Passes connections of a listening socket on; `start`, then `close`.

    Args:
        listener: Where clients call.
        behind: Path of the socket behind.
        most: Bytes of one message; of a longer one nothing is kept, and its answer is `refusal`.
        budget: Bytes of all messages that are not answered yet.
        connections: At a time; for one more the one that was silent longest is cut off, and may call again.
        patience_s: For a message to arrive once it has begun, and for an answer to be taken.
        refusal: The answer to a message of so many bytes.
    """

    def __init__(
        self,
        listener: socket.socket,
        behind: str,
        *,
        most: int,
        budget: int,
        connections: int,
        patience_s: float,
        refusal: Callable[[int], bytes],
    ) -> None:
        self._listener, self._behind, self._most, self._left = listener, behind, most, budget
        self._connections, self._patience_s, self._refusal = connections, patience_s, refusal
        self._lines: set[_Line] = set()
        self._change = threading.Condition()
        self._watch = Watch()

    def start(self) -> None:
        self._watch.start()
        threading.Thread(target=self._accept, name="door", daemon=True).start()

    def close(self, wait_s: float = 0.0) -> None:
        """End all connections, after `wait_s` those that the socket behind has not ended by then."""
        cut_off(self._listener)  # else accept would wait for ever
        self._listener.close()
        with self._change:
            self._change.wait_for(lambda: not self._lines, wait_s)
            lines = list(self._lines)
        for line in lines:
            self._end(line)
        self._watch.close()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                if self._listener.fileno() == -1:
                    return
                time.sleep(0.05)  # too many files are open, say
                continue
            far = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                near.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                far.connect(self._behind)
            except OSError:
                near.close()
                far.close()
                continue
            line = _Line(near, far, time.monotonic())
            with self._change:
                self._lines.add(line)
                full = len(self._lines) > self._connections
                silent = min(self._lines - {line}, key=lambda other: (len(other.claims), other.heard), default=line)
            if full:
                self._end(silent)
            for passes in (self._up, self._down):
                threading.Thread(target=self._run, args=(passes, line), name="door", daemon=True).start()

    def _run(self, passes: Callable[[_Line], None], line: _Line) -> None:
        with suppress(OSError, EOFError):
            passes(line)
        self._end(line)
        with self._change:
            line.threads -= 1
        if line.threads == 0:
            line.near.close()
            line.far.close()

    def _end(self, line: _Line) -> None:
        with self._change:
            if line not in self._lines:
                return
            self._lines.discard(line)
            self._left += sum(line.claims)
            line.claims.clear()
            self._change.notify_all()
        cut_off(line.near)
        cut_off(line.far)

    def _up(self, line: _Line) -> None:
        """From the client to the socket behind."""
        with self._watch.within(line.near, _SHAKE_S):
            signature = _take(line.near, _SIGNATURE)
            if signature[0] != 0xFF or not signature[-1] & 1:
                raise EOFError  # an older protocol, whose frames would be misread here
            line.far.sendall(signature)
            if (revision := _take(line.near, 1))[0] < 3:
                raise EOFError
            line.far.sendall(revision)
            _pass(line.near, line.far, _GREETING - _SIGNATURE - 1)
        while True:
            flags = _take(line.near, 1)
            with self._watch.within(line.near, self._patience_s):
                self._message(line, flags)

    def _message(self, line: _Line, flags: bytes) -> None:
        """One message, or one command, of which the first byte has come."""
        envelope: list[bytes] = []
        while True:
            raw = _take(line.near, 8 if flags[0] & _LONG else 1)
            size = int.from_bytes(raw, "big")
            if flags[0] & _IS_COMMAND:
                body = _take(line.near, size) if size <= _COMMAND else b""
                if flags[0] & _MORE or not body.startswith(_COMMANDS):
                    raise EOFError
                line.far.sendall(flags + raw + body)
                if not envelope:
                    return
            elif flags[0] & _MORE:
                if size > _ENVELOPE or len(envelope) == _FRAMES:
                    raise EOFError
                envelope.append(flags + raw + _take(line.near, size))
            else:
                break
            flags = _take(line.near, 1)
        line.heard = time.monotonic()
        if size > self._most:
            self._refuse(line, envelope, size)
            return
        self._claim(line, size)
        line.far.sendall(b"".join(envelope) + flags + raw)
        _pass(line.near, line.far, size)

    def _refuse(self, line: _Line, envelope: list[bytes], size: int) -> None:
        """Take in what is too long without keeping it, and answer it here."""
        if size > 64 * self._most:
            raise EOFError
        _pass(line.near, None, size)
        answer = self._refusal(size)
        with line.said, self._watch.within(line.near, self._patience_s):
            line.near.sendall(b"".join(envelope) + bytes([_LONG]) + struct.pack(">Q", len(answer)) + answer)

    def _claim(self, line: _Line, size: int) -> None:
        limit = time.monotonic() + self._patience_s
        with self._change:
            while line in self._lines and (len(line.claims) >= _UNANSWERED or size > self._left):
                if not self._change.wait(limit - time.monotonic()) and time.monotonic() >= limit:
                    raise EOFError
            if line not in self._lines:
                raise EOFError
            self._left -= size
            line.claims.append(size)

    def _down(self, line: _Line) -> None:
        """From the socket behind to the client; the end of each message frees what its question took."""
        _pass(line.far, line.near, _GREETING)
        while True:
            flags, more = _take(line.far, 1), True
            with line.said, self._watch.within(line.near, self._patience_s):
                while more:
                    raw = _take(line.far, 8 if flags[0] & _LONG else 1)
                    line.near.sendall(flags + raw)
                    _pass(line.far, line.near, int.from_bytes(raw, "big"))
                    more = bool(flags[0] & _MORE)
                    if more:
                        flags = _take(line.far, 1)
            if not flags[0] & _IS_COMMAND:
                with self._change:
                    self._left += line.claims.popleft() if line.claims else 0
                    self._change.notify_all()


def _take(sock: socket.socket, size: int) -> bytes:
    """Exactly `size` bytes, few; raises `EOFError` at the end."""
    got = b""
    while len(got) < size:
        if not (piece := sock.recv(size - len(got))):
            raise EOFError
        got += piece
    return got


def _pass(source: socket.socket, sink: socket.socket | None, size: int) -> None:
    """Pass exactly `size` bytes on as they come, or drop them; raises `EOFError` at the end."""
    while size:
        if not (piece := source.recv(min(size, _PIECE))):
            raise EOFError
        if sink is not None:
            sink.sendall(piece)
        size -= len(piece)
