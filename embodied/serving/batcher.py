"""Batching of requests: which ones are computed together, and when. No clock, transport or policy."""

from collections import Counter
from collections.abc import Callable, Hashable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from embodied.data import Observation
from embodied.errors import Busy
from policies.base import Mode

Takes = Callable[[int], float]
"""Maps the rows of a batch to the seconds that it takes."""


@dataclass(eq=False, slots=True)
class Request:
    """One client's observation rows.

    Attributes:
        peer: Connection for the answer.
        id: Number that the answer repeats.
        session: Session of the client.
        observation: Streams that the policy needs, checked; they may be read-only views of received frames.
        noise_keys: [B, 5].
        mode: `sample` or `mean`; only requests of one mode are computed together.
        arrived: Time of arrival, seconds.
        expires: Time after which the answer is of no use, seconds.
        robot: Whether a robot waits for the answer.
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


_NO_WAIT_S = 0.001  # a poll cannot wait for less


class Batcher:
    """Bounded queue that gives batches: robots first, then simulators, each session in turn.

    A batch is ready when it is full, when a robot waits, when every active simulator has asked, or when the oldest
    request has waited `max_wait_s`. So neither a robot nor a lone client waits for others. A simulator that has waited
    `age_s` precedes later robots.

    Args:
        max_wait_s: Longest wait for other requests, seconds.
        max_rows: Rows of a full batch; a larger request is a batch of its own.
        max_requests: Length of the queue.
        max_per_session: Requests of one session in the queue.
        max_bytes: Bytes of all waiting requests.
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
        self._served: dict[Hashable, int] = {}  # session with waiting requests to its last batch
        self._batch = 0
        self._fill([])

    def __len__(self) -> int:
        return len(self._queue)

    @property
    def robots(self) -> int:
        """Waiting requests of robots."""
        return self._robots

    @property
    def rows(self) -> int:
        """Waiting rows."""
        return self._rows

    @property
    def oldest(self) -> float:
        """Arrival time of the oldest request; infinity for none."""
        return self._queue[0].arrived if self._queue else float("inf")

    def wait(self, rows: int, robot: bool, takes: Takes) -> float:
        """Seconds until a request that arrives now would be answered.

        Args:
            rows: Rows of the request.
            robot: Whether only robots go first.
            takes: Seconds that a batch of so many rows takes.
        """
        ahead = sum(r.rows for r in self._queue if r.robot or not robot) if self._queue else 0
        full, rest = divmod(ahead + rows, self._max_rows)
        return (full * takes(self._max_rows) if full else 0.0) + (takes(rest) if rest else 0.0)

    def add(self, request: Request) -> Request | None:
        """Queue a request; returns a request that it displaced, or None.

        In a full queue it may displace one of a session with more requests, or a simulator's if it is a robot's.

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

    def expired(self, now: float, takes: Takes) -> list[Request]:
        """Remove the requests that could not be answered in time even if computed alone now."""
        if self._first_expiry == float("inf"):
            return []
        late = [request for request in self._queue if request.expires <= now + takes(request.rows)]
        if late:
            gone = {id(request) for request in late}
            self._fill([request for request in self._queue if id(request) not in gone])
        return late

    def clear(self) -> list[Request]:
        """Remove all requests."""
        gone = self._queue
        self._fill([])
        return gone

    def forget(self, session: Hashable, peer: bytes | None = None) -> int:
        """Remove a session's requests, over one connection or any; returns their number."""
        before = len(self._queue)
        self._fill([r for r in self._queue if r.session != session or peer not in (None, r.peer)])
        return before - len(self._queue)

    def due(self, active: AbstractSet[Hashable], takes_s: float = 0.0) -> float:
        """Time at which the next batch is ready: infinity with an empty queue, minus infinity for at once.

        Args:
            active: Simulators that are likely to ask soon.
            takes_s: Seconds that a batch takes, 0 for unknown; a longer wait for others gains nothing.
        """
        if not self._queue:
            return float("inf")
        if self._robots or self._rows >= self._max_rows or active <= self._waiting.keys():
            return -float("inf")
        if 0 < takes_s < _NO_WAIT_S:
            return -float("inf")
        return self._queue[0].arrived + min(self._max_wait_s, takes_s or self._max_wait_s)

    def take(self, now: float, takes: Takes) -> list[Request]:
        """Take the next batch: requests of the first one's mode, as many as fit without making one late."""
        if len(self._queue) <= 1:
            batch = self._queue
            self._fill([])
            self._served.clear()
            return batch
        batch, rows, expires = [], 0, float("inf")
        for request in self._in_order(now):
            more = rows + request.rows
            earliest = min(expires, request.expires)
            fits = not batch or (
                request.mode == batch[0].mode
                and more <= self._max_rows
                and (earliest == float("inf") or now + takes(more) < earliest)
            )
            if fits:
                batch.append(request)
                rows, expires = more, earliest
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
        """Newest request of the session with most requests, if the newcomer takes precedence over it."""
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


def _busy(what: str) -> Busy:
    return Busy(what, "policy server", "ask again later, or add a server")
