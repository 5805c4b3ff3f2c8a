"""Sessions of a policy server that all connections of an asyncio gateway share."""

import asyncio
from collections.abc import Callable
from contextlib import suppress

import numpy as np
from numpy.typing import NDArray

from embodied.client import RemoteClient
from embodied.client.pending import Pending
from embodied.data import ActionChunk, Observation
from embodied.errors import EmbodiedError
from policies.base import Mode

_SHARE = 16  # requests in flight of one session; the server refuses more than 32
_BUSY_S = 0.02  # interval of looks at deadlines and lost connections while requests are in flight
_REST_S = 0.5


class SharedClient:
    """Asks a policy server without blocking the event loop; sessions are opened as they are needed.

    Args:
        connect: Opens one more session.
    """

    def __init__(self, connect: Callable[[], RemoteClient]) -> None:
        self._connect = connect
        self._sessions: list[_Session] = []

    async def act(self, observation: Observation, noise_keys: NDArray[np.int64], mode: Mode) -> ActionChunk:
        """See `RemoteClient.act`. Streams and keys must stay unchanged until the answer."""
        session = next((one for one in self._sessions if len(one.waiting) < _SHARE), None)
        if session is None:
            session = _Session(self._connect())
            self._sessions.append(session)
        return await session.ask(session.client.submit(observation, noise_keys, mode))

    def close(self) -> None:
        """Close the sessions; requests in flight are given up."""
        for session in self._sessions:
            session.close()


class _Session:
    """One session and the requests that wait for its answers."""

    def __init__(self, client: RemoteClient) -> None:
        self.client = client
        self.waiting: dict[Pending, asyncio.Future[ActionChunk]] = {}
        self._loop = asyncio.get_running_loop()
        self._watched = -1
        self._timer = self._loop.call_later(_REST_S, self._tick)

    async def ask(self, pending: Pending) -> ActionChunk:
        future = self.waiting[pending] = self._loop.create_future()
        self._loop.call_soon(self._take)  # sending may have used up the signal of an answer that is there already
        self._timer.cancel()
        self._timer = self._loop.call_later(_BUSY_S, self._tick)
        try:
            return await future
        finally:
            self.waiting.pop(pending, None)
            pending.cancel()

    def close(self) -> None:
        self._timer.cancel()
        self._watch(-1)
        for future in self.waiting.values():
            future.cancel()
        self.client.close()

    def _tick(self) -> None:
        self._take()
        self._timer = self._loop.call_later(_BUSY_S if self.waiting else _REST_S, self._tick)

    def _take(self) -> None:
        """Hand over the answers that have arrived."""
        with suppress(EmbodiedError):  # of a malformed message; its request meets its deadline
            self.client.tick()
        self._watch(self.client.fileno())
        for pending, future in list(self.waiting.items()):
            if future.done():
                continue
            try:
                if pending.done():
                    future.set_result(pending.result(0.0))
            except Exception as error:
                future.set_exception(error)

    def _watch(self, file: int) -> None:
        """Watch the present connection, which a lost one may have been replaced by."""
        if file != self._watched:
            if self._watched >= 0:
                self._loop.remove_reader(self._watched)
            if file >= 0:
                self._loop.add_reader(file, self._take)
            self._watched = file
