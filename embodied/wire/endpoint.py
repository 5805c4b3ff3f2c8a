"""The asking side of the wire: one request at a time, each with a deadline."""

import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import zmq
from numpy.typing import NDArray

from embodied.errors import Busy, DeadlineExceeded, MessageError
from embodied.wire import addresses
from embodied.wire.codecs import error_from_body
from embodied.wire.message import LIMITS, Buffer, Limits, Message, decode, encode

_LOOK_S = 0.2  # how often a lost connection is looked for while waiting
_QUEUE = 1000
_MAX_RETRY_MS = 1000


class Requester:
    """Asks one server and waits for its answers. Not thread-safe; the socket is made at the first request.

    A request whose connection breaks is sent again when the server is back, within its deadline: requests may arrive
    twice, and what they do must bear that. Answers to requests given up are dropped.

    Args:
        address: `tcp://host:port` or `ipc://path`.
        server: Who is asked, in the words of an error.
        timeout_s: Deadline of a request that states none.
        heartbeat_s: Silence after which `tick` sends a heartbeat.
        keys: Folder of CURVE keys, see `embodied.wire.addresses`.
        limits: What is sent and taken.

    Raises:
        UserError: The address is malformed, without its folder, or beyond this machine without keys.
    """

    def __init__(
        self,
        address: str,
        server: str = "server",
        *,
        timeout_s: float = 10.0,
        heartbeat_s: float = 1.0,
        keys: str | Path | None = None,
        limits: Limits = LIMITS,
    ) -> None:
        addresses.check_call(address, Path(keys) if keys else None)
        self.address, self.server, self.timeout_s, self.heartbeat_s = address, server, timeout_s, heartbeat_s
        self.session = uuid.uuid4().hex
        self._keys, self._limits = Path(keys) if keys else None, limits
        self._context: zmq.Context[zmq.Socket[bytes]] | None = None
        self._socket: zmq.Socket[bytes] | None = None
        self._id = 0
        self._heard = self._said = -float("inf")
        self._farewell = False

    def request(
        self,
        kind: str,
        *,
        policy: str = "",
        body: Mapping[str, Any] | None = None,
        arrays: Mapping[str, NDArray[Any]] | None = None,
        timeout_s: float | None = None,
    ) -> Message:
        """Ask, and return the answer. A busy server is asked again until the deadline.

        Raises:
            DeadlineExceeded: No answer in time; says who did not answer, what was asked, and what is known of them.
            Busy: The server was still busy at the deadline.
            MessageError: The request or the answer is malformed or too large.
            EmbodiedError: The error the server answered with, of its own class.
        """
        wait = self.timeout_s if timeout_s is None else timeout_s
        limit = time.monotonic() + wait
        while True:
            self._id += 1
            left = max(limit - time.monotonic(), 0.0)
            message = Message(
                kind, self._id, self.session, policy, max(int(left * 1000), 1), dict(body or {}), dict(arrays or {})
            )
            answer = self._exchange(message, limit, wait)
            if answer.kind != "error":
                return answer
            error, retry_ms = error_from_body(answer.body), answer.body.get("retry_ms")
            if not isinstance(error, Busy) or type(retry_ms) is not int:
                raise error
            pause = min(max(retry_ms, 1), _MAX_RETRY_MS) / 1000
            if time.monotonic() + pause >= limit:
                raise error
            time.sleep(pause)

    def tick(self) -> None:
        """Keep the session alive between requests: take in what has arrived, send a heartbeat if one is due."""
        sock = self._open()
        self._drain(sock)
        if time.monotonic() - self._said >= self.heartbeat_s and sock.poll(0, zmq.POLLOUT):
            self._send(sock, encode(Message("heartbeat", session=self.session), self._limits))

    def close(self) -> None:
        """Say goodbye if anybody is there, and drop the connection."""
        if self._socket is not None and self._socket.poll(0, zmq.POLLOUT):
            self._send(self._socket, encode(Message("bye", session=self.session), self._limits))
        self._hang_up()

    def _exchange(self, message: Message, limit: float, wait: float) -> Message:
        frames = encode(message, self._limits)
        sock = self._open()
        self._drain(sock)
        sent = False
        while (left := limit - time.monotonic()) > 0:
            if not sent:
                if not sock.poll(_ms(left), zmq.POLLOUT):
                    break
                self._send(sock, frames)
                sent = True
            elif sock.poll(_ms(min(left, _LOOK_S)), zmq.POLLIN):
                answer = self._receive(sock)
                if answer.id == message.id or (answer.kind == "error" and answer.id == 0):
                    return answer
            else:
                sent = bool(sock.poll(0, zmq.POLLOUT))
        diagnosis = self._diagnosis(sent)
        self._hang_up()  # a half-open connection would stay silent for ever; the next request makes a new one
        raise DeadlineExceeded(
            f"no answer to {message.kind} within {wait:g} s", f"{self.server} at {self.address}", diagnosis
        )

    def _diagnosis(self, connected: bool) -> str:
        if not connected:
            gone = "it said goodbye" if self._farewell else "nobody listens there, or its keys differ"
            return f"{gone}; start it, then ask again"
        silence = time.monotonic() - self._heard
        if silence == float("inf"):
            return "it took the connection and never said a word; look whether that is the right server"
        return f"it was last heard {silence:.1f} s ago; it is busy or hangs: look at its log, or allow more time"

    def _open(self) -> zmq.Socket[bytes]:
        if self._socket is None:
            self._context = zmq.Context()
            sock = self._context.socket(zmq.DEALER)
            sock.sndhwm = sock.rcvhwm = _QUEUE
            sock.maxmsgsize = max(self._limits.frame_bytes, self._limits.header_bytes)
            sock.immediate = True  # a request to a dead server waits here, not in a queue that outlives its deadline
            sock.reconnect_ivl, sock.reconnect_ivl_max = 50, 1000
            self._socket = sock
            try:
                addresses.connect(sock, self.address, self._keys)
            except BaseException:
                self._hang_up()
                raise
        return self._socket

    def _hang_up(self) -> None:
        if self._context is not None:
            self._context.destroy()
        self._context = self._socket = None

    def _send(self, sock: zmq.Socket[bytes], frames: list[Buffer]) -> None:
        # Frames above pyzmq's copy threshold (64 KiB) are sent from the arrays themselves.
        sock.send_multipart(frames, zmq.NOBLOCK, copy=False)
        self._said = time.monotonic()

    def _drain(self, sock: zmq.Socket[bytes]) -> None:
        for _ in range(2 * _QUEUE):
            if not sock.poll(0, zmq.POLLIN):
                return
            self._receive(sock)

    def _receive(self, sock: zmq.Socket[bytes]) -> Message:
        frames = sock.recv_multipart(zmq.NOBLOCK, copy=False)
        try:
            message = decode([frame.buffer for frame in frames], self._limits)
        except MessageError as error:
            raise MessageError(error.what, f"answer of {self.server} at {self.address}", error.fix) from None
        self._heard, self._farewell = time.monotonic(), message.kind == "bye"
        return message


def _ms(seconds: float) -> int:
    return int(seconds * 1000) + 1
