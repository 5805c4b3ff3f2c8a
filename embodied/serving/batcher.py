"""Which requests are computed together, and when. No clock of its own, no transport, no policy."""

from collections import Counter
from collections.abc import Hashable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, fields
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from embodied.data import ActionChunk, Observation, Rows
from embodied.errors import Busy
from policies.base import Mode


@dataclass(frozen=True, eq=False)
class Request:
    """One client's observation rows.

    Attributes:
        peer: Where the answer goes.
        id: Number the answer repeats.
        session: Who asks.
        observation: The streams the policy needs, checked; they may be read-only views of what arrived.
        noise_keys: [B, 4].
        mode: `sample` or `mean`; only requests of one mode are computed together.
        arrived: Time of arrival, seconds.
        expires: Time after which the answer is of no use, seconds.
        robot: Whether something moves while it waits.
    """

    peer: bytes
    id: int
    session: Hashable
    observation: Observation
    noise_keys: NDArray[np.int64]
    mode: Mode
    arrived: float
    expires: float
    robot: bool = False

    @property
    def rows(self) -> int:
        return len(self.observation.rows)

    @cached_property
    def size(self) -> int:
        """Bytes."""
        return sum(stream.nbytes for stream in self.observation.streams.values())


class Batcher:
    """A bounded queue that gives batches: robots first, then simulators, each session in turn.

    A batch is ready when it is full, when a robot waits, when every simulator that might join has asked, or when the
    oldest request has waited `max_wait_s`. So neither a robot nor a lone client ever waits for companions. A simulator
    that has waited `age_s` goes before later robots.

    Args:
        max_wait_s: Longest wait for companions, seconds.
        max_rows: Rows of a full batch; a larger request is a batch of its own.
        max_requests: Length of the queue.
        max_per_session: Requests of one session in the queue.
        max_bytes: Size of what waits.
        age_s: Wait after which a simulator counts as a robot, seconds.
    """

    def __init__(
        self,
        max_wait_s: float,
        max_rows: int,
        max_requests: int,
        *,
        max_per_session: int = 32,
        max_bytes: int = 1 << 30,
        age_s: float = 0.5,
    ) -> None:
        self._max_wait_s, self._max_rows, self._max_requests = max_wait_s, max_rows, max_requests
        self._max_per_session, self._max_bytes, self._age_s = max_per_session, max_bytes, age_s
        self._queue: list[Request] = []
        self._fill([])

    def __len__(self) -> int:
        return len(self._queue)

    @property
    def robots(self) -> int:
        """Robots' requests that wait."""
        return self._robots

    @property
    def oldest(self) -> float:
        """When the oldest request arrived; infinity for none."""
        return self._queue[0].arrived if self._queue else float("inf")

    def ahead(self, robot: bool) -> int:
        """Full batches that would be computed before a request that arrives now."""
        return sum(r.rows for r in self._queue if r.robot or not robot) // self._max_rows if self._queue else 0

    def add(self, request: Request) -> Request | None:
        """Queue a request. In a full one it may displace one of a greedier session, or a simulator's if it is a
        robot's; returns that one.

        Raises:
            Busy: The queue is full, or the session has too many in it.
        """
        mine = self._waiting[request.session]
        if mine >= self._max_per_session:
            raise _busy(f"{mine} requests of this session wait already")
        displaced = None
        if len(self._queue) >= self._max_requests or self._bytes + request.size > self._max_bytes:
            displaced = self._greediest(request)
            if displaced is None or self._bytes - displaced.size + request.size > self._max_bytes:
                raise _busy(f"{len(self._queue)} requests wait already")
            self._fill([other for other in self._queue if other is not displaced])
        self._queue.append(request)
        self._count(request)
        return displaced

    def expired(self, before: float) -> list[Request]:
        """Take out the requests that expire until then."""
        if before < self._first_expiry:
            return []
        late = [request for request in self._queue if request.expires <= before]
        self._fill([request for request in self._queue if request.expires > before])
        return late

    def forget(self, session: Hashable, peer: bytes | None = None) -> int:
        """Take out what a session has asked, over one connection or any; returns how many requests."""
        before = len(self._queue)
        self._fill([r for r in self._queue if r.session != session or peer not in (None, r.peer)])
        return before - len(self._queue)

    def due(self, active: AbstractSet[Hashable]) -> float:
        """When the next batch is ready: infinity with an empty queue, minus infinity for at once.

        Args:
            active: Simulators that might ask soon.
        """
        if not self._queue:
            return float("inf")
        if self._robots or self._rows >= self._max_rows or active <= self._waiting.keys():
            return -float("inf")
        return self._queue[0].arrived + self._max_wait_s

    def take(self, now: float) -> list[Request]:
        """The next batch: the first request's mode, as many as fit."""
        if len(self._queue) <= 1:
            batch = self._queue
            self._fill([])
            return batch
        batch, rows = [], 0
        for request in self._in_order(now):
            if not batch or (request.mode == batch[0].mode and rows + request.rows <= self._max_rows):
                batch.append(request)
                rows += request.rows
        taken = {id(request) for request in batch}
        self._fill([request for request in self._queue if id(request) not in taken])
        return batch

    def _in_order(self, now: float) -> list[Request]:
        turns: Counter[Hashable] = Counter()
        ranked = []
        for place, request in enumerate(self._queue):
            first = request.robot or now - request.arrived >= self._age_s
            ranked.append((not first, turns[request.session], place))
            turns[request.session] += 1
        return [self._queue[place] for _, _, place in sorted(ranked)]

    def _greediest(self, newcomer: Request) -> Request | None:
        """The newest request of the session that has most, if the newcomer deserves its place."""
        last = {request.session: request for request in self._queue}
        if newcomer.robot and self._robots < len(self._queue):
            last = {session: request for session, request in last.items() if not request.robot} or last
        most = max(last, key=lambda session: self._waiting[session])
        if newcomer.robot and not last[most].robot:
            return last[most]
        if last[most].robot and not newcomer.robot:
            return None
        return last[most] if self._waiting[most] > self._waiting[newcomer.session] + 1 else None

    def _fill(self, requests: list[Request]) -> None:
        self._queue = requests
        self._waiting: Counter[Hashable] = Counter()
        self._rows = self._bytes = self._robots = 0
        self._first_expiry = float("inf")
        for request in requests:
            self._count(request)

    def _count(self, request: Request) -> None:
        self._waiting[request.session] += 1
        self._rows += request.rows
        self._bytes += request.size
        self._robots += request.robot
        self._first_expiry = min(self._first_expiry, request.expires)


def concatenate(batch: Sequence[Request]) -> tuple[Observation, NDArray[np.int64]]:
    """All rows of a batch, in order, and their noise keys: owned, writable copies."""
    seen = [request.observation for request in batch]
    rows = Rows(*(np.concatenate([getattr(o.rows, f.name) for o in seen]) for f in fields(Rows)))
    streams = {name: np.concatenate([o.streams[name] for o in seen]) for name in seen[0].streams}
    observation = Observation(rows, streams, np.concatenate([o.time for o in seen]))
    return observation, np.concatenate([request.noise_keys for request in batch])


def split(chunk: ActionChunk, batch: Sequence[Request]) -> list[ActionChunk]:
    """Each request's part of a batch's answer: owned copies, since a policy may use its arrays again."""
    parts, start = [], 0
    for request in batch:
        part = slice(start, start + request.rows)
        parts.append(
            ActionChunk(
                chunk.rows.take(part),
                chunk.actions[part].copy(),
                chunk.log_probs[part].copy(),
                chunk.values[part].copy(),
                chunk.versions[part].copy(),
                chunk.policy,
                chunk.valid_s,
            )
        )
        start += request.rows
    return parts


def _busy(what: str) -> Busy:
    return Busy(what, "policy server", "ask again later, or add a server")
