"""Which requests are computed together, and when. No clock of its own, no transport, no policy."""

from collections import Counter
from collections.abc import Hashable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, fields
from sys import getrefcount
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embodied.data import ActionChunk, Observation, Rows
from embodied.errors import Busy
from policies.base import Mode

_ROWS = tuple(f.name for f in fields(Rows))
_SPARE = 2  # arrays of one size that are kept
_UNHELD = 3  # references: the list's, the loop's, the call's


@dataclass(eq=False, slots=True)
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
        rows: Number of rows.
        size: Bytes of the streams.
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
    rows: int = field(init=False)
    size: int = field(init=False)

    def __post_init__(self) -> None:
        self.rows, self.size = len(self.observation.rows), 0
        for stream in self.observation.streams.values():
            self.size += stream.nbytes


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
        self._served: dict[Hashable, int] = {}  # who waits again to the last batch they were in
        self._batch = 0
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
        mine = self._waiting.get(request.session, 0)
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
            self._served.clear()
            return batch
        batch, rows = [], 0
        for request in self._in_order(now):
            if not batch or (request.mode == batch[0].mode and rows + request.rows <= self._max_rows):
                batch.append(request)
                rows += request.rows
        taken = {id(request) for request in batch}
        self._fill([request for request in self._queue if id(request) not in taken])
        self._batch += 1
        for request in batch:
            self._served[request.session] = self._batch
        self._served = {session: turn for session, turn in self._served.items() if session in self._waiting}
        return batch

    def _in_order(self, now: float) -> list[Request]:
        turns: Counter[Hashable] = Counter()
        ranked = []
        for place, request in enumerate(self._queue):
            first = request.robot or now - request.arrived >= self._age_s
            session = request.session
            ranked.append((not first, turns[session], self._served.get(session, 0), place))
            turns[session] += 1
        return [self._queue[rank[-1]] for rank in sorted(ranked)]

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
        return last[most] if self._waiting[most] > self._waiting.get(newcomer.session, 0) + 1 else None

    def _fill(self, requests: list[Request]) -> None:
        self._queue = requests
        self._waiting: dict[Hashable, int] = {}
        self._rows = self._bytes = self._robots = 0
        self._first_expiry = float("inf")
        for request in requests:
            self._count(request)

    def _count(self, request: Request) -> None:
        self._waiting[request.session] = self._waiting.get(request.session, 0) + 1
        self._rows += request.rows
        self._bytes += request.size
        self._robots += request.robot
        if request.expires < self._first_expiry:
            self._first_expiry = request.expires


class Stacker:
    """Stacks a batch's rows in arrays that are used again once nobody holds them: new memory costs ten times a copy."""

    def __init__(self) -> None:
        self._spare: dict[tuple[str, int], list[NDArray[Any]]] = {}

    def __call__(self, batch: Sequence[Request]) -> tuple[Observation, NDArray[np.int64]]:
        """All rows of a batch, in order, and their noise keys: copies, writable, for whoever keeps them."""
        seen = [request.observation for request in batch]
        count = sum(len(o.rows) for o in seen)
        streams = {}
        for name, first in seen[0].streams.items():
            streams[name] = self._array(name, count, first)
            start = 0
            for o in seen:
                part = o.streams[name]
                streams[name][start : start + len(part)] = part
                start += len(part)
        if len(seen) == 1 and batch[0].noise_keys.flags.writeable:  # then all but the streams is copied already
            return Observation(seen[0].rows, streams, seen[0].time), batch[0].noise_keys
        rows = Rows(*(np.concatenate([getattr(o.rows, name) for o in seen]) for name in _ROWS))
        keys = np.concatenate([request.noise_keys for request in batch])
        return Observation(rows, streams, np.concatenate([o.time for o in seen])), keys

    def _array(self, name: str, count: int, like: NDArray[Any]) -> NDArray[Any]:
        """An array of `count` rows, a part of one with a power of two."""
        room = 1 << (count - 1).bit_length() if count else 1
        spare = self._spare.setdefault((name, room), [])
        for array in spare:
            if getrefcount(array) == _UNHELD and array.dtype == like.dtype and array.shape[1:] == like.shape[1:]:
                return array[:count]
        made = np.empty((room, *like.shape[1:]), like.dtype)
        if len(spare) < _SPARE:
            spare.append(made)
        return made[:count]


def split(chunk: ActionChunk, batch: Sequence[Request]) -> list[ActionChunk]:
    """Each request's part of a batch's answer: views, to be sent before the policy is asked again."""
    if len(batch) == 1:
        return [chunk]
    parts, start = [], 0
    for request in batch:
        part = slice(start, start + request.rows)
        rows = Rows(*(getattr(chunk.rows, name)[part] for name in _ROWS))
        parts.append(
            ActionChunk(
                rows,
                chunk.actions[part],
                chunk.log_probs[part],
                chunk.values[part],
                chunk.versions[part],
                chunk.policy,
                chunk.valid_s,
            )
        )
        start += request.rows
    return parts


def _busy(what: str) -> Busy:
    return Busy(what, "policy server", "ask again later, or add a server")
