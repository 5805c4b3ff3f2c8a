"""Core of the policy server, a state machine without sockets: messages in, messages out, on any clock."""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from embodied.errors import Busy, EmbodiedError, MessageError, Unauthorized, UserError, nearest
from embodied.serving.answer import Answer, Caller
from embodied.serving.batcher import Batcher
from embodied.serving.error_log import ErrorLog
from embodied.serving.meters import Counts
from embodied.serving.policy_queue import Form, PolicyQueue, unexpected
from embodied.serving.policy_slot import PolicySlot
from embodied.serving.rate_limits import Rates
from embodied.serving.replies import Replies, Reply
from embodied.serving.sessions import PRIORITIES, Session, Sessions
from embodied.wire.credentials import ACT, ADMINISTER, PUSH
from embodied.wire.message import LIMITS, Buffer, Header, Limits, Message, decode_arrays, decode_header

log = logging.getLogger(__name__)
errors = ErrorLog(log)

_MAX_SESSIONS = 1024
_SUCCESSOR_S = 0.5  # when clients of a stopping server should retry
_LOADING_WAIT_S = 0.001  # longest wait of a loaded version for its switch
_VIEW_BYTES = 1 << 16  # larger arrays remain in the received frames until a batch copies them

_GREEDY = ("this client sends more than its share", "ask more slowly")
_STOPPING = ("the server is stopping", "ask its successor, or another server")

LOCAL = Caller()

# Permission that each kind of message needs; None for none.
_PERMISSIONS = {
    "hello": None, "status": None, "heartbeat": None, "bye": None, "act": ACT, "reset": ACT, "outcome": ACT,
    "fetch": ACT, "probe": PUSH, "offer": PUSH, "range": PUSH, "set_active": ADMINISTER,
}  # fmt: skip


class ServerCore:
    """Core of a server of several policies for many clients.

    Weights are switched in `tick`, between batches, since one thread does both.

    Args:
        slots: Name to policy slot. A message that names no policy goes to the only one.
        max_wait_s: Longest wait for other simulators' requests, seconds; robots and lone clients never wait.
        max_rows: Rows of one batch.
        max_requests: Waiting requests of one policy; a further one is refused as busy.
        heartbeat_s: Silence after which a session is sent a heartbeat.
        expire_s: Silence after which a session is dropped; it may return as a new one.
        rates: Rate limits of one connection.
        limits: Limits on the size of messages.
        clock: Monotonic seconds.

    Attributes:
        draining: Whether the server is about to end.
        stopping: Whether it answers only messages received before, and refuses others.
    """

    def __init__(
        self,
        slots: Mapping[str, PolicySlot],
        *,
        max_wait_s: float = 0.002,
        max_rows: int = 1024,
        max_requests: int = 256,
        heartbeat_s: float = 1.0,
        expire_s: float = 30.0,
        rates: Rates = Rates(),  # noqa: B008 (frozen)
        limits: Limits = LIMITS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if not slots:
            raise UserError("a server without a policy", "policy server", "give it one")
        self.draining = self.stopping = False
        self._replies, self._limits, self._clock, self._heartbeat_s = Replies(limits), limits, clock, heartbeat_s
        self._queues = {
            name: PolicyQueue(name, slot, Batcher(max_wait_s, max_rows, max_requests), self._replies, clock)
            for name, slot in slots.items()
        }
        self._sessions = Sessions(_MAX_SESSIONS, heartbeat_s, expire_s, rates, clock())
        self._refused = Counts()
        self._said = {
            "max_wait_s": max_wait_s, "max_rows": max_rows, "max_requests": max_requests, "max_sessions": _MAX_SESSIONS,
            "expire_s": expire_s, "messages_per_s": rates.messages, "bytes_per_s": rates.bytes,
        }  # fmt: skip

    @property
    def slots(self) -> Mapping[str, PolicySlot]:
        return {name: queue.slot for name, queue in self._queues.items()}

    @property
    def counts(self) -> Counts:
        """Counts of all policies, and of messages refused before they reached one."""
        return sum((queue.counts for queue in self._queues.values()), self._refused)

    @property
    def waiting(self) -> int:
        """Waiting requests."""
        return sum(queue.waiting for queue in self._queues.values())

    @property
    def loading(self) -> bool:
        """Whether a version is being loaded, or a message about weights will soon be answered."""
        return any(queue.slot.busy for queue in self._queues.values())

    @property
    def computing_since(self) -> float | None:
        """Start of the batch that is being computed, None between batches. From any thread."""
        return next((s.computing_since for s in self._queues.values() if s.computing_since is not None), None)

    def handle(self, peer: bytes, frames: Sequence[Buffer], caller: Caller | None = LOCAL, waited: float = 0.0) -> None:
        """Handle one message. Every fault is answered with one `error`, and never raised.

        Args:
            peer: Connection that it came over, to which the answer goes.
            frames: Its frames; large ones are read until their batch has been computed.
            caller: Its sender; None for an unknown or removed key.
            waited: Seconds that it may have waited already.
        """
        id, queue = 0, None
        try:
            header = self._open(peer, frames)
            message = header.message
            if message.kind == "error":
                return  # answering an error with an error would never end
            id = message.id
            _authorize(caller, message)
            assert caller is not None
            if self.stopping and message.kind not in ("heartbeat", "bye"):
                raise _Pressed(_STOPPING, _SUCCESSOR_S)
            self._charge(peer, message.kind, frames)
            queue = self._find(message)
            decode_arrays(header, frames[1:], _VIEW_BYTES)
            session = self._sessions.hear(peer, caller.name, message.session, self._clock())
            self._dispatch(peer, session, message, header.arrays, waited, queue)
        except EmbodiedError as error:
            self._refuse(peer, id, error, queue)
        except Exception as error:
            errors.record("a message could not be handled", error)
            self._refuse(peer, id, unexpected(error, queue.name if queue else ", ".join(self._queues)), queue)

    def tick(self, draining: bool = False) -> list[Reply]:
        """Switch weights, then compute at most one batch, if one is ready or the server is `draining`.

        Returns:
            Replies, to be sent before the next `tick`: frames may be views of arrays that a policy reuses.
        """
        now = self._clock()
        ready = []
        for queue in self._queues.values():
            queue.switch()
            if queue.waiting:
                queue.refuse_late(now)
                if queue.waiting and (draining or queue.due(now) <= now):
                    ready.append(queue)
        if ready:
            min(ready, key=lambda queue: queue.rank).compute()
        for session in self._sessions.tick(now):
            self._replies.say(session.peer, "heartbeat", session=session.key[1])
        return self._replies.take()

    def wait(self) -> float:
        """Seconds until `tick` has something to do, at most the heartbeat's interval."""
        now = self._clock()
        due = min(queue.due(now) for queue in self._queues.values())
        longest = _LOADING_WAIT_S if self.loading else self._heartbeat_s
        return min(max(due - now, 0.0), longest)

    def dismiss(self) -> list[Reply]:
        """Refuse all waiting requests."""
        for queue in self._queues.values():
            queue.dismiss(_Pressed(_STOPPING, _SUCCESSOR_S), _SUCCESSOR_S)
        return self._replies.take()

    def farewell(self) -> list[Reply]:
        """Send `bye` to every session."""
        for session in self._sessions:
            self._replies.say(session.peer, "bye", session=session.key[1])
        return self._replies.take()

    def status(self, policy: str = "") -> dict[str, Any]:
        """Status of a policy, or of the only one."""
        return self._named(policy).status(len(self._sessions))

    def snapshot(self) -> dict[str, Any]:
        """State of the server in plain values: `ready`, `draining`, `sessions`, `policies`, `limits`."""
        sessions = len(self._sessions)
        return {
            "ready": not self.draining,
            "draining": self.draining,
            "sessions": sessions,
            "refused": dict(vars(self._refused)),
            "policies": {name: queue.measured(sessions) for name, queue in self._queues.items()},
            "limits": dict(self._said),
        }

    def _open(self, peer: bytes, frames: Sequence[Buffer]) -> Header:
        try:
            if not frames:
                raise MessageError("a message without frames", "header", "send a header frame first")
            return decode_header(frames[0], self._limits)
        except MessageError:
            self._sessions.charge(peer, 0, self._clock())
            raise

    def _charge(self, peer: bytes, kind: str, frames: Sequence[Buffer]) -> None:
        size = 0 if kind in ("offer", "range") else sum(map(len, frames))
        wait = self._sessions.charge(peer, size, self._clock())
        if wait:
            raise _Pressed(_GREEDY, wait)

    def _find(self, message: Message) -> PolicyQueue | None:
        """Queue of the policy that a message concerns; None for a message about the session."""
        if message.kind in ("heartbeat", "bye"):
            return None
        if message.kind not in _PERMISSIONS:
            raise MessageError(
                f"a policy server takes no {message.kind}", "policy server", "send it to the right server"
            )
        return self._named(message.policy)

    def _named(self, name: str) -> PolicyQueue:
        """Queue of the policy served under a name, or with that own name; the only one for no name."""
        queue = self._queues.get(name)
        if queue is not None:
            return queue
        known = list(self._queues.values())
        same = [one for one in known if name in ("", one.policy.spec.name)]
        if len(same) == 1:
            return same[0]
        served = f"this one serves {', '.join(sorted(self._queues))}"
        if not name:
            raise UserError("several policies are served here and none is named", "policy server", served)
        raise UserError(
            f"policy {name[:100]} is not served here",
            "policy server",
            served if len(known) == 1 else f"{served}; {nearest(name, self._queues)}",
        )

    def _dispatch(
        self, peer: bytes, session: Session, message: Message, form: Form, waited: float, queue: PolicyQueue | None
    ) -> None:
        _set_priority(session, message)
        if queue is None:
            if message.kind == "bye":
                for one in self._queues.values():
                    one.forget(session, peer)
                    one.slot.leave(session.label)
                self._sessions.forget(session)
            return
        match message.kind:
            case "act":
                queue.enqueue(peer, session, message, form, waited)
            case "hello":
                queue.greet(peer, session, message)
            case "outcome":
                if message.id > session.outcome:  # else sent again after a lost connection
                    queue.count_outcomes(message)
                    session.outcome = message.id
                self._replies.say(peer, "ack", message.id)
            case "reset":
                self._replies.say(peer, "ack", message.id, {"forgotten": queue.forget(session, peer)})
            case "status":
                record = getattr(queue.slot.versions, "record_edge", None)
                if record is not None and "follow" in message.body:
                    record(session.label, message.body)
                self._replies.say(peer, "status", message.id, queue.status(len(self._sessions)))
            case _:
                queue.slot.handle(message, self._answer(peer, session, message.id, queue))

    def _answer(self, peer: bytes, session: Session, id: int, queue: PolicyQueue) -> Answer:
        return Answer(
            session.label,
            lambda kind, body, arrays: self._replies.say(peer, kind, id, body, arrays),
            lambda error: queue.refuse(peer, id, error),
        )

    def _refuse(self, peer: bytes, id: int, error: EmbodiedError, queue: PolicyQueue | None) -> None:
        retry_s = error.wait_s if isinstance(error, _Pressed) else None
        if queue is not None:
            queue.refuse(peer, id, error, retry_s)
            return
        self._refused.errors += 1
        self._refused.busy += isinstance(error, Busy)
        self._replies.refuse(peer, id, error, retry_s or 0.0)


class _Pressed(Busy):
    """Busy, with the time after which to retry."""

    def __init__(self, why: tuple[str, str], wait_s: float) -> None:
        what, fix = why
        super().__init__(what, "policy server", fix)
        self.wait_s = wait_s


def _authorize(caller: Caller | None, message: Message) -> None:
    if caller is None:
        raise Unauthorized(
            "this key is not let in any more",
            "policy server",
            "have it added on the server: embodied credentials add FOLDER NAME permission=PERMISSIONS",
        )
    permission = _PERMISSIONS.get(message.kind)
    if permission is not None:
        caller.require(permission, message.kind)
    if message.kind == "offer" and message.body.get("back"):
        caller.require(ADMINISTER, "going back to an older version")


def _set_priority(session: Session, message: Message) -> None:
    """Set a session's priority by a `hello`, or by an `act`, since a restarted server received no `hello`."""
    if message.kind not in ("hello", "act"):
        return
    priority = message.body.get("priority")
    if priority is None:
        return
    if type(priority) is not str or priority not in PRIORITIES:
        what = f"unknown priority {str(priority)[:20]!r}"
        raise UserError(what, "priority", f"send one of {', '.join(PRIORITIES)}")
    session.priority = priority
