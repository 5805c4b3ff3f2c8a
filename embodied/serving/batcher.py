"""Which requests are computed together, and when. No clock of its own, no transport, no policy."""

from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from embodied.data import ActionChunk, Observation, Rows
from embodied.errors import Busy
from policies.base import Mode


@dataclass(frozen=True)
class Request:
    """One client's observation rows.

    Attributes:
        peer: Where the answer goes.
        id: Number the answer repeats.
        session: Who asks.
        observation: The streams the policy needs, checked.
        noise_keys: [B, 4].
        mode: `sample` or `mean`; only requests of one mode are computed together.
        arrived: Time of arrival, seconds.
        expires: Time after which the answer is of no use, seconds.
    """

    peer: bytes
    id: int
    session: str
    observation: Observation
    noise_keys: NDArray[np.int64]
    mode: Mode
    arrived: float
    expires: float

    @property
    def rows(self) -> int:
        return len(self.observation.rows)


class Batcher:
    """A bounded queue that gives batches.

    A batch is ready when it is full, when everyone who might join has asked, or when its oldest request has waited
    `max_wait_s`. So a lone client never waits.

    Args:
        max_wait_s: Longest wait for companions, seconds.
        max_rows: Rows of a full batch; a larger request is a batch of its own.
        max_requests: Length of the queue.
    """

    def __init__(self, max_wait_s: float, max_rows: int, max_requests: int) -> None:
        self._max_wait_s, self._max_rows, self._max_requests = max_wait_s, max_rows, max_requests
        self._queue: deque[Request] = deque()

    def __len__(self) -> int:
        return len(self._queue)

    def add(self, request: Request) -> None:
        """Queue a request; raises `Busy` when the queue is full."""
        if len(self._queue) >= self._max_requests:
            raise Busy(f"{len(self._queue)} requests wait already", "policy server", "ask again later, or add a server")
        self._queue.append(request)

    def expired(self, now: float) -> list[Request]:
        """Take out the requests whose answers would come too late."""
        late = [request for request in self._queue if request.expires <= now]
        if late:
            self._queue = deque(request for request in self._queue if request.expires > now)
        return late

    def forget(self, session: str) -> int:
        """Take out what a session has asked; returns how many requests."""
        before = len(self._queue)
        self._queue = deque(request for request in self._queue if request.session != session)
        return before - len(self._queue)

    def due(self, active: Collection[str]) -> float:
        """When the next batch is ready: infinity with an empty queue, minus infinity for at once.

        Args:
            active: Sessions that might ask soon.
        """
        if not self._queue:
            return float("inf")
        waiting = {request.session for request in self._queue}
        full = sum(request.rows for request in self._queue) >= self._max_rows
        if full or waiting.issuperset(active):
            return -float("inf")
        return self._queue[0].arrived + self._max_wait_s

    def take(self) -> list[Request]:
        """The batch around the oldest request: those of its mode that fit, oldest first."""
        batch: list[Request] = []
        rows, rest = 0, deque[Request]()
        while self._queue:
            request = self._queue.popleft()
            fits = not batch or (request.mode == batch[0].mode and rows + request.rows <= self._max_rows)
            if fits:
                batch.append(request)
                rows += request.rows
            else:
                rest.append(request)
        self._queue = rest
        return batch


def concatenate(batch: Sequence[Request]) -> tuple[Observation, NDArray[np.int64]]:
    """All rows of a batch, in order, and their noise keys."""
    if len(batch) == 1:
        return batch[0].observation, batch[0].noise_keys
    seen = [request.observation for request in batch]
    rows = Rows(*(np.concatenate([getattr(o.rows, f.name) for o in seen]) for f in fields(Rows)))
    streams = {name: np.concatenate([o.streams[name] for o in seen]) for name in seen[0].streams}
    observation = Observation(rows, streams, np.concatenate([o.time for o in seen]))
    return observation, np.concatenate([request.noise_keys for request in batch])


def split(chunk: ActionChunk, batch: Sequence[Request]) -> list[ActionChunk]:
    """Each request's part of a batch's answer."""
    parts, start = [], 0
    for request in batch:
        part = slice(start, start + request.rows)
        parts.append(
            ActionChunk(
                chunk.rows.take(part),
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
