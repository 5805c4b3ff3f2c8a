"""Queue of one policy of a server: its requests, batches and meters. No sockets."""

import logging
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from embodied.data import Observation, Rows
from embodied.errors import (
    Busy,
    DeadlineExceeded,
    EmbodiedError,
    InfrastructureError,
    MessageError,
    SpecMismatch,
    UserError,
    nearest,
)
from embodied.serving.batcher import Batcher, Request
from embodied.serving.error_log import ErrorLog
from embodied.serving.meters import BatchTime, Counts, Latency
from embodied.serving.policy_slot import PolicySlot
from embodied.serving.replies import Replies
from embodied.serving.sessions import ROBOT, SIMULATOR, Session
from embodied.serving.shared_memory import SharedMemoryReader
from embodied.serving.stacking import Stacker, split
from embodied.serving.versioned_policy import VersionedPolicy
from embodied.spec import EnvSpec
from embodied.wire.codecs import TIMES, chunk_to_message, observation_from_arrays, rows_from_arrays, take_array
from embodied.wire.header import Entry
from embodied.wire.message import Message
from policies.base import Mode

Form = tuple[Entry, ...]

log = logging.getLogger(__name__)
errors = ErrorLog(log)

_FORMS = 256  # announcements of `act` that passed their checks
_ACTIVE_S = 0.5  # a simulator that asked this recently is waited for


class PolicyQueue:
    """Queue of one policy: checks requests, computes batches, counts.

    Args:
        name: Name under which the policy is served.
        slot: Slot of the policy.
        batcher: Queue of its requests.
        replies: Replies of the server.
        clock: Monotonic seconds.

    Attributes:
        computing_since: Start of the batch that is being computed, None between batches; readable from any thread.
    """

    def __init__(
        self, name: str, slot: PolicySlot, batcher: Batcher, replies: Replies, clock: Callable[[], float]
    ) -> None:
        self.name, self.slot, self.counts = name, slot, Counts()
        self.computing_since: float | None = None
        self._batcher, self._replies, self._clock = batcher, replies, clock
        self._batch_time, self._latency, self._batch_s = BatchTime(), Latency(), 0.0
        self._active: OrderedDict[Session, float] = OrderedDict()
        self._stack, self._shared_memory = Stacker(), SharedMemoryReader()
        self._keys = [(s.name, f"stream/{s.name}") for s in slot.policy.spec.agent.observations]
        self._forms: dict[Form, list[tuple[str, str]]] = {}  # to the streams with a time of their own

    @property
    def policy(self) -> VersionedPolicy:
        return self.slot.policy

    @property
    def waiting(self) -> int:
        """Requests in the queue."""
        return len(self._batcher)

    @property
    def rank(self) -> tuple[bool, float]:
        """Sort key of several due queues; the least computes first."""
        return not self._batcher.robots, self._batcher.oldest

    def due(self, now: float) -> float:
        """Time at which a batch is ready, see `Batcher.due`."""
        while self._active and now - next(iter(self._active.values())) >= _ACTIVE_S:
            self._active.popitem(last=False)
        if not self._batcher:
            return float("inf")
        return self._batcher.due(self._active.keys(), self._batch_time.estimate(self._batcher.rows, now))

    def greet(self, peer: bytes, session: Session, message: Message) -> None:
        """Answer a `hello` with the policy's spec, after checking that it can drive the agents named."""
        env, agents = message.body.get("env"), message.body.get("agents", [])
        if type(agents) is not list or not all(type(name) is str for name in agents):
            raise MessageError("agents are no list of names", "hello", "send agents, an empty list without env")
        if env is None:
            session.agents.pop(self.name, None)
        else:
            offered = EnvSpec.from_dict(env)
            agents = agents or [offered.only_agent]
            for agent in agents:
                self.policy.spec.check_env(offered, agent)
            session.agents[self.name] = frozenset(map(list(offered.agents).index, agents))
        number, digest = self.policy.version
        manifest = self.policy.manifest
        self._replies.say(
            peer,
            "hello",
            message.id,
            {
                "spec": self.policy.spec.to_dict(),
                "number": number,
                "hash": digest,
                "policy": self.name,
                "build": dict(self.slot.build),
                "manifest": None if manifest is None else manifest.to_dict(),
            },
        )

    def enqueue(self, peer: bytes, session: Session, message: Message, form: Form, waited: float = 0.0) -> None:
        """Queue an `act`.

        Args:
            form: Arrays that its header announces; a form that passed its checks is not checked again.
            waited: Seconds that it may have waited already, taken off its deadline.

        Raises:
            DeadlineExceeded: Its answer would come too late.
            Busy: Too much waits.
            SpecMismatch: A row is of an agent that the session's `hello` did not name.
            EmbodiedError: As `VersionedPolicy.check`.
        """
        now, robot = self._clock(), session.priority == ROBOT
        expires = float("inf")
        if message.deadline_ms:
            left = message.deadline_ms / 1000 - waited
            expires = now + left
            rows = message.arrays.get("rows")
            count = rows.shape[-1] if rows is not None and rows.ndim else 1
            takes = self._batcher.wait(count, robot, lambda rows: self._batch_time.estimate(rows, now))
            if takes >= left:
                self.counts.late += 1
                raise _late(takes, left, waited)
        if "block" in message.body:
            form = form + self._shared_memory.fill(message)
        mode = _mode(message.body.get("mode"))
        seen, keys = self._read(message.arrays, form, mode)
        self.policy.check_content(seen)
        self._check_agents(session, seen.rows)
        if session.priority == SIMULATOR:
            self._active[session] = now
            self._active.move_to_end(session)
        request = Request(peer, message.id, session, seen, keys, mode, now, expires, robot)
        displaced = self._batcher.add(request)
        if displaced is not None:
            error = Busy("others have asked for less, or may not wait", "policy server", "ask again later")
            self.refuse(displaced.peer, displaced.id, error)

    def _check_agents(self, session: Session, rows: Rows) -> None:
        named = session.agents.get(self.name)
        if named is not None and (others := set(rows.agent.tolist()) - named):
            what = f"a row of agent {min(others)}, and hello named {', '.join(map(str, sorted(named)))}"
            raise SpecMismatch(what, "rows.agent", "send rows of these agents, or another hello")

    def _read(
        self, arrays: Mapping[str, NDArray[Any]], form: Form, mode: Mode
    ) -> tuple[Observation, NDArray[np.int64]]:
        """Streams that the policy needs, and noise keys, with names, dtypes and shapes checked."""
        if form in self._forms:
            env, agent, step = arrays["rows"]
            rows = Rows(env, agent, arrays["episode"], step)
            streams = {name: arrays[key] for name, key in self._keys}
            times = {name: arrays[key] for name, key in self._forms[form]}
            return Observation(rows, streams, arrays["time"], times), arrays["noise_keys"]
        needed = self.policy.spec.agent.observations
        seen = observation_from_arrays(arrays, needed)
        keys = take_array(arrays, "noise_keys", "int64", (len(seen.rows), 5))
        self.policy.check_form(seen, keys, mode)
        if len(seen.streams) > len(needed):
            seen.streams = {stream.name: seen.streams[stream.name] for stream in needed}
            seen.times = {name: array for name, array in seen.times.items() if name in seen.streams}
        if all(key in arrays for _, key in self._keys):  # JPEG images are checked one by one
            if len(self._forms) >= _FORMS:
                self._forms.clear()
            self._forms[form] = [(name, f"{TIMES}{name}") for name in seen.times]
        return seen, keys

    def dismiss(self, error: EmbodiedError, retry_s: float) -> None:
        """Refuse all waiting requests."""
        for request in self._batcher.clear():
            self.refuse(request.peer, request.id, error, retry_s)

    def forget(self, session: Session, peer: bytes | None = None) -> int:
        """Drop a session's requests, over one connection or any; returns their number."""
        self._active.pop(session, None)
        return self._batcher.forget(session, peer)

    def count_outcomes(self, message: Message) -> None:
        rows = rows_from_arrays(message.arrays)
        outcomes = take_array(message.arrays, "outcomes", "uint8", (len(rows),))
        given = "versions" in message.arrays
        versions = take_array(message.arrays, "versions", "int64", (len(rows),)) if given else None
        self.policy.outcome(rows, outcomes, versions)

    def switch(self) -> None:
        """Let the slot switch versions and send due answers; never raises."""
        policy = self.slot.policy
        before = policy.manifest
        try:
            self.slot.tick()
        except Exception as error:
            errors.record(f"the weights of policy {self.name} could not be switched", error)
        if policy.manifest is not before:
            self.counts.switches += 1

    def refuse_late(self, now: float) -> None:
        """Refuse requests that could not be answered in time if begun now."""
        for request in self._batcher.expired(now, lambda rows: self._batch_time.estimate(rows, now)):
            self.counts.late += 1
            takes = self._batch_time.estimate(request.rows, now)
            self.refuse(request.peer, request.id, _late(takes, request.expires - now, now - request.arrived))

    def compute(self) -> None:
        """Compute one batch."""
        now = self._clock()
        batch = self._batcher.take(now, lambda rows: self._batch_time.estimate(rows, now))
        if batch:
            self._compute(batch)

    def refuse(self, peer: bytes, id: int, error: EmbodiedError, retry_s: float | None = None) -> None:
        """Answer with an error."""
        self.counts.errors += 1
        self.counts.busy += isinstance(error, Busy)
        self._replies.refuse(peer, id, error, 2 * self._batch_s if retry_s is None else retry_s)

    def status(self, sessions: int) -> dict[str, Any]:
        """Status of this policy in plain values."""
        number, digest = self.policy.version
        return {
            **self.slot.status(),
            "policy": self.policy.spec.name,
            "served_as": self.name,
            "number": number,
            "hash": digest,
            "sessions": sessions,
            "waiting": len(self._batcher),
            "batch_ms": self._batch_s * 1000,
            "counts": dict(vars(self.counts)),
            "outcomes": {str(number): counts.tolist() for number, counts in self.policy.outcomes.items()},
        }

    def measured(self, sessions: int) -> dict[str, Any]:
        """Status with `latency`, the times from arrival to answer; see `Latency.to_dict`."""
        return {**self.status(sessions), "latency": self._latency.to_dict()}

    def _compute(self, batch: list[Request]) -> None:
        start = self.computing_since = self._clock()
        try:
            observation, keys = self._stack(batch)
            parts = split(self.policy.decide(observation, keys, batch[0].mode), batch)
            for request, part in zip(batch, parts, strict=True):
                body, arrays = chunk_to_message(part)
                self._replies.say(request.peer, "act", request.id, body, arrays)
        except Exception as error:
            if len(batch) > 1:  # one client's rows must not fail the others'
                for request in batch:
                    self._compute([request])
            elif isinstance(error, EmbodiedError):
                self.refuse(batch[0].peer, batch[0].id, error)
            else:
                errors.record(f"policy {self.name} failed", error)
                self.refuse(batch[0].peer, batch[0].id, unexpected(error, self.name))
            return
        finally:
            self.computing_since = None
        now = self._clock()
        self._batch_time.add(len(keys), now - start, now)
        self._batch_s += 0.1 * (now - start - self._batch_s)
        self.counts.batches += 1
        self.counts.requests += len(batch)
        for request in batch:
            self.counts.rows += request.rows
            self._latency.add(now - request.arrived)


def unexpected(error: Exception, policy: str) -> InfrastructureError:
    """Error for a client after an unexpected exception."""
    return InfrastructureError(f"{type(error).__name__}: {error}", f"server of policy {policy}", "see the server's log")


def _mode(given: Any) -> Mode:
    if type(given) is not str:
        raise MessageError(f"mode is no text but {type(given).__name__}", "act", "send sample or mean")
    if given not in get_args(Mode):
        raise UserError(f"unknown mode {given[:20]!r}", "mode", nearest(given, get_args(Mode)))
    return given  # type: ignore[return-value]


def _late(takes: float, left: float, waited: float = 0.0) -> DeadlineExceeded:
    waited_words = f" after waiting {waited * 1000:.0f} ms" if waited >= 0.0005 else ""
    return DeadlineExceeded(
        f"the answer would take about {takes * 1000:.0f} ms and its deadline is in {max(left, 0) * 1000:.0f} ms"
        f"{waited_words}",
        "policy server",
        "allow more time, or ask a less busy server",
    )
