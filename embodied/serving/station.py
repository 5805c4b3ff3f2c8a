"""The policy server as a state machine: messages in, messages out, no sockets; testable with a fake clock."""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from embodied.data import ActionChunk, Observation
from embodied.errors import Busy, DeadlineExceeded, EmbodiedError, InfrastructureError, MessageError, UserError
from embodied.serving.batcher import Batcher, Request, concatenate, split
from embodied.serving.host import PolicyHost
from embodied.spec import BodySpec
from embodied.weights.manifest import Manifest
from embodied.wire.codecs import chunk_to_message, observation_from_arrays, rows_from_arrays, take_array
from embodied.wire.message import LIMITS, Buffer, Limits, Message, decode_arrays, decode_header, encode

log = logging.getLogger(__name__)

_ACTIVE_S = 0.5  # a session that asked this recently is waited for
_MAX_SESSIONS = 1024
_TEXT = 2000

Reply = tuple[bytes, list[Buffer]]


@dataclass
class Session:
    """One client: where it is, when it was last heard, spoken to and asked to act, and its last counted outcome."""

    peer: bytes
    heard: float
    spoken: float
    acted: float = -float("inf")
    outcome: int = 0


@dataclass
class Counts:
    """What a server has done since it started."""

    requests: int = 0
    rows: int = 0
    batches: int = 0
    switches: int = 0
    errors: int = 0
    busy: int = 0
    late: int = 0


class ServerStation:
    """Answers the messages of many clients with one `PolicyHost`.

    Weights switch when their message is handled, which is between batches, since one thread does both.

    Args:
        host: Decides.
        max_wait_s: Longest wait for other clients' requests, seconds; a lone client never waits.
        max_rows: Rows of one batch.
        max_requests: Requests that wait at most; a further one is told to come back.
        heartbeat_s: Silence after which a session is sent a heartbeat.
        expire_s: Silence after which a session is forgotten; it may come back as a new one.
        limits: What is taken from the wire.
        clock: Seconds, monotonic.
    """

    def __init__(
        self,
        host: PolicyHost,
        *,
        max_wait_s: float = 0.002,
        max_rows: int = 1024,
        max_requests: int = 256,
        heartbeat_s: float = 1.0,
        expire_s: float = 30.0,
        limits: Limits = LIMITS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.host, self.counts = host, Counts()
        self._batcher = Batcher(max_wait_s, max_rows, max_requests)
        self._heartbeat_s, self._expire_s, self._limits, self._clock = heartbeat_s, expire_s, limits, clock
        self._sessions: dict[str, Session] = {}
        self._replies: list[Reply] = []
        self._batch_s = 0.0

    def handle(self, peer: bytes, frames: Sequence[Buffer]) -> None:
        """Take in one message. Whatever is wrong with it is answered with an `error`, never raised."""
        id = 0
        try:
            if not frames:
                raise MessageError("a message without frames", "header", "send a header frame first")
            header = decode_header(frames[0], self._limits)
            id = header.message.id
            self._dispatch(peer, decode_arrays(header, frames[1:]))
        except EmbodiedError as error:
            self._refuse(peer, id, error)
        except Exception as error:
            log.exception("a message could not be handled")
            self._refuse(peer, id, _unexpected(error, self.host.spec.name))

    def tick(self, draining: bool = False) -> list[Reply]:
        """Compute at most one batch, if one is ready or the server is `draining`; returns what is to be sent."""
        now = self._clock()
        for request in self._batcher.expired(now):
            self.counts.late += 1
            waited = f"{(now - request.arrived) * 1000:.0f} ms"
            late = DeadlineExceeded(
                f"the request waited {waited} and its deadline passed", "policy server", "allow more time"
            )
            self._refuse(request.peer, request.id, late)
        if len(self._batcher) and (draining or self._batcher.due(self._active(now)) <= now):
            self._compute(self._batcher.take())
        self._keep_sessions(self._clock())
        replies, self._replies = self._replies, []
        return replies

    def wait(self) -> float:
        """Seconds until `tick` has something to do, at most the heartbeat's interval."""
        now = self._clock()
        return min(max(self._batcher.due(self._active(now)) - now, 0.0), self._heartbeat_s)

    @property
    def waiting(self) -> int:
        """Requests in the queue."""
        return len(self._batcher)

    def farewell(self) -> list[Reply]:
        """A `bye` for every session."""
        return [(s.peer, encode(Message("bye", session=name))) for name, s in self._sessions.items()]

    def status(self) -> dict[str, Any]:
        """What the server says of itself."""
        number, digest = self.host.version
        return {
            "policy": self.host.spec.name,
            "number": number,
            "hash": digest,
            "sessions": len(self._sessions),
            "waiting": len(self._batcher),
            "batch_ms": self._batch_s * 1000,
            "counts": dict(vars(self.counts)),
            "outcomes": {str(number): counts.tolist() for number, counts in self.host.outcomes.items()},
        }

    def _dispatch(self, peer: bytes, message: Message) -> None:
        if message.kind == "error":
            return  # answering an error with an error would never end
        session = self._session(peer, message.session)
        name = self.host.spec.name
        if message.policy not in ("", name):
            raise UserError(f"policy {message.policy} is not served here", "policy server", f"this one serves {name}")
        match message.kind:
            case "act":
                self._enqueue(peer, session, message)
            case "hello":
                self._greet(peer, message)
            case "push":
                served = self.host.version
                number, digest = self.host.switch(Manifest.from_dict(message.body.get("manifest")), message.arrays)
                self.counts.switches += served != self.host.version
                self._reply(peer, "ack", message.id, {"number": number, "hash": digest})
            case "outcome":
                if message.id > session.outcome:  # else sent again after a lost connection
                    self._count_outcomes(message)
                    session.outcome = message.id
                self._reply(peer, "ack", message.id)
            case "reset":
                self._reply(peer, "ack", message.id, {"forgotten": self._batcher.forget(message.session)})
            case "status":
                self._reply(peer, "status", message.id, self.status())
            case "heartbeat":
                pass
            case "bye":
                self._batcher.forget(message.session)
                del self._sessions[message.session]
            case _:
                raise MessageError(f"a policy server takes no {message.kind}", "policy server", "ask the right station")

    def _session(self, peer: bytes, name: str) -> Session:
        now = self._clock()
        session = self._sessions.get(name)
        if session is None:
            if len(self._sessions) >= _MAX_SESSIONS:
                raise Busy(f"{_MAX_SESSIONS} sessions are open", "policy server", "close some, or add a server")
            session = self._sessions[name] = Session(peer, now, now)
        session.peer, session.heard = peer, now
        return session

    def _greet(self, peer: bytes, message: Message) -> None:
        body, agent = message.body.get("body"), message.body.get("agent")
        if body is not None:
            self.host.spec.check_body(BodySpec.from_dict(body), str(agent))
        number, digest = self.host.version
        self._reply(peer, "hello", message.id, {"spec": self.host.spec.to_dict(), "number": number, "hash": digest})

    def _enqueue(self, peer: bytes, session: Session, message: Message) -> None:
        seen = observation_from_arrays(message.arrays)
        keys = take_array(message.arrays, "noise_keys", "int64", (len(seen.rows), 4))
        mode: Any = message.body.get("mode")
        self.host.check(seen, keys, mode)
        needed = {stream.name: seen.streams[stream.name] for stream in self.host.spec.agent.observations}
        now = session.acted = self._clock()
        expires = now + message.deadline_ms / 1000 if message.deadline_ms else float("inf")
        observation = Observation(seen.rows, needed, seen.time)
        self._batcher.add(Request(peer, message.id, message.session, observation, keys, mode, now, expires))

    def _count_outcomes(self, message: Message) -> None:
        rows = rows_from_arrays(message.arrays)
        outcomes = take_array(message.arrays, "outcomes", "uint8", (len(rows),))
        given = "versions" in message.arrays
        versions = take_array(message.arrays, "versions", "int64", (len(rows),)) if given else None
        self.host.outcome(rows, outcomes, versions)

    def _compute(self, batch: list[Request]) -> None:
        start = self._clock()
        try:
            observation, keys = concatenate(batch)
            parts = split(self.host.decide(observation, keys, batch[0].mode), batch)
            answers = [self._answer(request, part) for request, part in zip(batch, parts, strict=True)]
        except Exception as error:
            if len(batch) > 1:  # one client's rows must not fail the others'
                for request in batch:
                    self._compute([request])
            elif isinstance(error, EmbodiedError):
                self._refuse(batch[0].peer, batch[0].id, error)
            else:
                log.exception("the policy failed")
                self._refuse(batch[0].peer, batch[0].id, _unexpected(error, self.host.spec.name))
            return
        self._batch_s += 0.1 * (self._clock() - start - self._batch_s)
        self.counts.batches += 1
        self.counts.requests += len(batch)
        self.counts.rows += sum(request.rows for request in batch)
        self._replies.extend(answers)

    def _answer(self, request: Request, chunk: ActionChunk) -> Reply:
        body, arrays = chunk_to_message(chunk)
        return request.peer, encode(Message("act", request.id, body=body, arrays=arrays), self._limits)

    def _active(self, now: float) -> set[str]:
        return {name for name, session in self._sessions.items() if now - session.acted < _ACTIVE_S}

    def _keep_sessions(self, now: float) -> None:
        for name, session in list(self._sessions.items()):
            if now - session.heard >= self._expire_s:
                del self._sessions[name]
            elif now - session.spoken >= self._heartbeat_s:
                session.spoken = now
                self._replies.append((session.peer, encode(Message("heartbeat", session=name))))

    def _reply(self, peer: bytes, kind: str, id: int, body: dict[str, Any] | None = None) -> None:
        self._replies.append((peer, encode(Message(kind, id, body=body or {}), self._limits)))

    def _refuse(self, peer: bytes, id: int, error: EmbodiedError) -> None:
        self.counts.errors += 1
        body: dict[str, Any] = error.to_dict()
        if isinstance(error, Busy):
            self.counts.busy += 1
            body["retry_ms"] = int(np.clip(self._batch_s * 1000 * 2, 5, 1000))
        self._reply(peer, "error", id, {k: _plain(v) if isinstance(v, str) else v for k, v in body.items()})


def _plain(text: str) -> str:
    """Text that surely can be packed."""
    return text[:_TEXT].encode("utf-8", "replace").decode()


def _unexpected(error: Exception, policy: str) -> InfrastructureError:
    return InfrastructureError(f"{type(error).__name__}: {error}", f"server of policy {policy}", "see the server's log")
