"""Requests in flight on one connection to a server, each with a deadline."""

import math
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embodied.errors import Busy, DeadlineExceeded, EmbodiedError, MessageError, UserError
from embodied.wire import addresses
from embodied.wire.codecs import error_from_body
from embodied.wire.connection import Connection
from embodied.wire.message import LIMITS, Buffer, Limits, Message, decode, encode

IN_FLIGHT = 64
"""Requests that may wait for their answers at once."""

Serve = Callable[[Message], Message]
"""Answers a `fetch` of the server, which it sends before it answers a request."""

_LOOK_S = 0.2  # how often a lost connection is looked for
_SILENT_S = 3.0  # a connection silent for this long at a missed deadline is given up for a new one
_AT_ONCE = 2000  # messages taken in by one tick
_MAX_RETRY_MS = 1000
_DAY_S = 86400


@dataclass
class _Asked:
    """A request in flight: until when its answer is of use, when it may be sent again, and its answer."""

    message: Message
    wait: float
    limit: float
    after: float = 0.0
    answer: Message | None = None
    serve: Serve | None = None


class Requester:
    """Asks one server. Not thread-safe; the connection is made at the first request.

    What was sent over a connection that broke is sent again when the server is back, and what a busy server refused
    when its time comes, within the deadline: requests may arrive twice, and what they do must bear that. Answers to
    requests given up are dropped. Arrays must stay unchanged until their request is answered.

    Args:
        address: `tcp://host:port` or `ipc://path`.
        server: Name of the server in errors.
        timeout_s: Deadline of a request that states none.
        heartbeat_s: Silence after which `tick` sends a heartbeat.
        credentials: Folder of CURVE credentials, see `embodied.wire.addresses`.
        limits: What is sent and taken.

    Attributes:
        greeting: Sent before anything else over a connection that replaces a lost one, or None. Its answer is
            dropped; an error it is answered with is the answer to the oldest request.

    Raises:
        UserError: The address is malformed, without its folder, or beyond this machine without credentials; or
            `timeout_s` is no number above 0, of a day at most.
    """

    def __init__(
        self,
        address: str,
        server: str = "server",
        *,
        timeout_s: float = 10.0,
        heartbeat_s: float = 1.0,
        credentials: str | Path | None = None,
        limits: Limits = LIMITS,
    ) -> None:
        addresses.check_call(address, Path(credentials) if credentials else None)
        check_seconds(timeout_s, "timeout_s")
        self.address, self.server = addresses.resolve(address), server
        self.timeout_s, self.heartbeat_s = timeout_s, heartbeat_s
        self.session = uuid.uuid4().hex
        self.greeting: Message | None = None
        self._credentials, self._limits = Path(credentials) if credentials else None, limits
        self._connection: Connection | None = None
        self._asked: dict[int, _Asked] = {}
        self._unsent: dict[int, _Asked] = {}
        self._served: deque[Message] = deque(maxlen=IN_FLIGHT)
        self._greet = False
        self._id = 0
        self._heard = self._said = self._looked = -float("inf")
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
        """Ask, and return the answer: `submit` and `collect`.

        Raises:
            DeadlineExceeded: No answer in time; says who did not answer, what was asked, and what is known of them.
            Busy: The server was still busy at the deadline.
            MessageError: The request or the answer is malformed or too large.
            EmbodiedError: The error the server answered with, of its own class.
        """
        id = self.submit(kind, policy=policy, body=body, arrays=arrays, timeout_s=timeout_s)
        try:
            return self.collect((id,))
        finally:
            self._forget(id)

    def submit(
        self,
        kind: str,
        *,
        policy: str = "",
        body: Mapping[str, Any] | None = None,
        arrays: Mapping[str, NDArray[Any]] | None = None,
        timeout_s: float | None = None,
        serve: Serve | None = None,
    ) -> int:
        """Ask, and return at once the number under which `collect` gives the answer.

        What cannot be sent yet, with no connection or after a refusal, leaves in `collect`, `answered` or `tick`.

        Args:
            serve: Called within `collect`, `answered` or `tick` for every `fetch` that the server sends under the
                request's number before it answers; its message is sent back under that number.

        Raises:
            Busy: `IN_FLIGHT` requests are neither collected nor cancelled.
            MessageError: The request is malformed or too large.
        """
        if len(self._asked) >= IN_FLIGHT:
            raise Busy(f"{IN_FLIGHT} requests are in flight", f"{self.server} at {self.address}", "collect some first")
        wait = self.timeout_s if timeout_s is None else _seconds(timeout_s)
        now = time.monotonic()
        id, wait_ms = self._id + 1, max(int(wait * 1000), 1)
        message = Message(kind, id, self.session, policy, wait_ms, dict(body or {}), dict(arrays or {}))
        frames = encode(message, self._limits)
        self._open(now)
        self._id, self._asked[id] = id, (asked := _Asked(message, wait, now + wait, serve=serve))
        if self._unsent or not self._send(frames, now):
            self._unsent[id] = asked
        return id

    def collect(self, ids: Iterable[int], timeout_s: float | None = None) -> Message:
        """Wait for the next answer to one of `ids`, in whatever order answers come; its `id` says which.

        Args:
            ids: What `submit` returned, not collected before.
            timeout_s: Longest wait here; the requests stay in flight after it. Their own deadlines count always.

        Raises:
            DeadlineExceeded: No answer in time. `request` names the one whose deadline passed; None at `timeout_s`.
            EmbodiedError: The error a request was answered with, of its own class; `request` names it.
            MessageError: An answer is malformed.
            ValueError: An id is not in flight.
        """
        wanted = tuple(ids)
        if not wanted or any(id not in self._asked for id in wanted):
            raise ValueError(f"requests {[id for id in wanted if id not in self._asked]} are not in flight")
        start = now = time.monotonic()
        first = wanted[0] if len(wanted) == 1 else min(wanted, key=lambda id: self._asked[id].limit)
        limit = self._asked[first].limit
        end = limit if timeout_s is None else min(limit, start + _seconds(timeout_s))
        while True:
            for id in wanted:
                if (answer := self._asked[id].answer) is not None:
                    del self._asked[id]
                    return self._judge(answer, id)
            if now >= end:
                raise self._late(first, now) if now >= limit else self._nothing(wanted, now - start)
            self._step(end, now)
            now = time.monotonic()

    def answered(self, id: int) -> bool:
        """Whether `collect` would return, or raise, at once; takes in what has arrived without waiting."""
        asked, now = self._asked.get(id), time.monotonic()
        while asked is not None and asked.answer is None and self._step(now, now):
            pass
        return asked is None or asked.answer is not None or now >= asked.limit

    def cancel(self, ids: Iterable[int]) -> None:
        """Give requests up: they are not sent again, and their answers are dropped."""
        for id in tuple(ids):
            self._forget(id)

    def tick(self) -> None:
        """Keep the session alive between requests: take in what has arrived, send a heartbeat if one is due."""
        now = time.monotonic()
        self._open(now)
        for _ in range(_AT_ONCE):
            if not self._step(now, now):
                break
        if now - self._said >= self.heartbeat_s:
            self._send(encode(Message("heartbeat", session=self.session), self._limits), now)

    def fileno(self) -> int:
        """Descriptor of the present connection, -1 for none. `tick` must follow each of its signals, and each send."""
        return -1 if self._connection is None else self._connection.fileno()

    def reconnect(self) -> None:
        """Give up a connection that may be half-open: what is in flight is sent again over a new one."""
        self._hang_up()

    def close(self) -> None:
        """Say goodbye if anybody is there, and drop the connection and what is in flight."""
        said = False
        with suppress(UserError):  # in a forked process: the goodbye is its parent's to say
            said = self._connection is not None and self._send(
                encode(Message("bye", session=self.session), self._limits), time.monotonic()
            )
        self._asked.clear()
        self._hang_up(said)

    def _step(self, end: float, now: float) -> bool:
        """Send what is due, then take in one message, waiting until `end` at most; whether one came."""
        link = self._open(now)
        end, blocked = min(end, now + _LOOK_S), False
        while self._served and not blocked:
            blocked = not self._send(encode(self._served[0], self._limits), now)
            if not blocked:
                self._served.popleft()
        if self._unsent and not blocked:
            blocked, again = self._send_due(now)
            end = min(end, again)
        frames = link.receive(end - now, blocked)
        if frames is not None:
            self._take(frames)
        return frames is not None

    def _take(self, frames: list[Buffer]) -> None:
        try:
            message = decode(frames, self._limits)
        except MessageError as error:
            raise MessageError(error.what, f"answer of {self.server} at {self.address}", error.fix) from None
        self._heard, self._farewell = time.monotonic(), message.kind == "bye"
        id = message.id
        if id == 0 and message.kind == "error":  # it could not read what it was sent, so not say which either
            id = next((id for id, asked in self._asked.items() if asked.answer is None), 0)
        asked = self._asked.get(id)
        if asked is None or asked.answer is not None:
            return
        if message.kind == "fetch" and asked.serve is not None:
            part = asked.serve(message)
            part.id, part.session = id, self.session
            self._served.append(part)
            return
        retry_ms = message.body.get("retry_ms") if message.kind == "error" else None
        if type(retry_ms) is int and message.body.get("code") == Busy.code:
            again = self._heard + min(max(retry_ms, 1), _MAX_RETRY_MS) / 1000
            if again < asked.limit:
                asked.after = again
                self._unsent[id] = asked
                return
        asked.answer = message
        self._unsent.pop(id, None)

    def _send_due(self, now: float) -> tuple[bool, float]:
        """Send again what is due, in order: whether it has to wait for a connection, and when more is due."""
        again = float("inf")
        for id, asked in sorted(self._unsent.items()):
            if asked.limit <= now:
                del self._unsent[id]
            elif asked.after > now:
                again = min(again, asked.after)
            else:
                asked.message.deadline_ms = max(int((asked.limit - now) * 1000), 1)
                if not self._send(encode(asked.message, self._limits), now):
                    return True, again
                del self._unsent[id]
        return False, again

    def _send(self, frames: list[Buffer], now: float) -> bool:
        assert self._connection is not None
        if self._greet and self.greeting is not None:
            if not self._connection.send(encode(self.greeting, self._limits)):
                return False
            self._greet = False
        if not self._connection.send(frames):
            return False
        self._said = now
        return True

    def _open(self, now: float) -> Connection:
        """The connection; what was sent over one that broke in the meantime is due again."""
        if self._connection is None:
            self._connection, self._looked = Connection(self.address, self._credentials, self._limits), now
        elif now - self._looked >= _LOOK_S:
            self._looked = now
            if self._connection.lost():
                self._due_again()
        return self._connection

    def _due_again(self) -> None:
        self._greet = True
        self._served.clear()  # the server fetches again from the request that is sent again
        self._unsent = {id: asked for id, asked in self._asked.items() if asked.answer is None}

    def _hang_up(self, goodbye: bool = False) -> None:
        if self._connection is not None:
            self._connection.close(goodbye)
        self._connection = None
        self._due_again()

    def _forget(self, id: int) -> None:
        self._asked.pop(id, None)
        self._unsent.pop(id, None)
        if self._served:
            self._served = deque((part for part in self._served if part.id != id), maxlen=IN_FLIGHT)

    def _judge(self, answer: Message, id: int) -> Message:
        if answer.kind != "error":
            return answer
        error: EmbodiedError = error_from_body(answer.body)
        error.request = id
        raise error

    def _late(self, id: int, now: float) -> DeadlineExceeded:
        asked, connection = self._asked[id], self._connection
        error = DeadlineExceeded(
            f"no answer to {asked.message.kind} within {asked.wait:g} s",
            f"{self.server} at {self.address}",
            self._diagnosis(id not in self._unsent, now),
        )
        error.request = id
        self._forget(id)
        if connection is not None and now - max(self._heard, connection.opened) >= _SILENT_S:
            self._hang_up()  # a half-open connection would stay silent for ever
        return error

    def _nothing(self, ids: tuple[int, ...], waited: float) -> DeadlineExceeded:
        return DeadlineExceeded(
            f"no answer to any of {len(ids)} requests within {waited:.3g} s",
            f"{self.server} at {self.address}",
            self._diagnosis(ids[0] not in self._unsent, time.monotonic()),
        )

    def _diagnosis(self, connected: bool, now: float) -> str:
        if not connected:
            gone = "it said goodbye" if self._farewell else "no server listens there, or its credentials differ"
            return f"{gone}; start it, then ask again"
        silence = now - self._heard
        if silence == float("inf"):
            return "it took the connection and never said a word; look whether that is the right server"
        return f"it was last heard {silence:.1f} s ago; it is busy or hangs: look at its log, or allow more time"


def check_seconds(value: float, name: str) -> None:
    """Raise `UserError` unless a deadline is a number above 0, of a day at most."""
    if (type(value) not in (int, float) and not isinstance(value, np.integer | np.floating)) or not 0 < value <= _DAY_S:
        raise UserError(f"a deadline of {value!r}", name, f"give seconds above 0, at most {_DAY_S}")


def _seconds(value: float) -> float:
    """A time to wait; raises `UserError` where it is no finite number."""
    try:
        if math.isfinite(value):
            return value
    except TypeError:
        pass
    raise UserError(f"a deadline of {value!r}", "timeout_s", "give a finite number of seconds")
