"""The first `execute` actions of a chunk, then a new decision: receding horizon; all of them: open loop."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from embodied.client.execution.kept import Floats, Kept, newest
from embodied.data import ActionChunk, Rows
from embodied.errors import ConfigError


@dataclass(frozen=True)
class RecedingHorizon:
    """Each step executes the newest chunk's action for it; a decision is due after `execute` of them.

    Attributes:
        execute: Actions of a chunk to execute before asking again, 1 to K. While the answer is awaited the rest of
            the chunk is executed; K is open loop, which then has nothing left.
    """

    execute: int
    on_policy = True
    prefixed = False

    def __post_init__(self) -> None:
        if self.execute < 1:
            raise ConfigError(f"execute is {self.execute}", "execute", "give 1 or more")

    def kept(self, chunk: int) -> int:
        return 1

    def choose(self, kept: Kept) -> Floats:
        return newest(kept)


class ChunkCursor:
    """Where each of B rows stands in its chunk.

    Args:
        rows: B.
        chunk: K, most actions in a chunk.
        execute: Actions of a chunk to execute before a new decision is due, 1 to K.
        action_dim: D.
    """

    def __init__(self, rows: int, chunk: int, execute: int, action_dim: int) -> None:
        if not 1 <= execute <= chunk:
            raise ValueError(f"execute is {execute}, a chunk has {chunk} actions")
        self._execute = execute
        self._actions = np.zeros((rows, chunk, action_dim), np.float32)
        self._k = np.zeros(rows, np.int32)
        self._length = np.zeros(rows, np.int32)
        self._episode = np.full(rows, -1, np.int64)
        self._everyone = np.arange(rows)

    def due(self, rows: Rows) -> NDArray[np.bool_]:
        """[B] true where a decision is needed: the chunk is used up, reset, or of another episode than `rows`."""
        return (self._k >= self._length) | (self._episode != rows.episode)

    def accept(self, ids: ArrayLike, chunk: ActionChunk) -> None:
        """Begin the chunk's rows on rows `ids` [M]; a chunk shorter than `execute` is used up at its end."""
        index = np.asarray(ids)
        length = chunk.actions.shape[1]
        self._actions[index, :length] = chunk.actions
        self._length[index] = min(self._execute, length)
        self._k[index] = 0
        self._episode[index] = chunk.rows.episode

    def next(self) -> tuple[NDArray[np.float32], NDArray[np.int32]]:
        """The next action of every row, [B, D], and its index k in its chunk, [B]; both owned by the caller.

        Raises:
            ValueError: A row has no action left; `due` says so beforehand.
        """
        if (self._k >= self._length).any():
            late = np.flatnonzero(self._k >= self._length)
            raise ValueError(f"rows {late[:8].tolist()} need a decision first")
        k = self._k.copy()
        self._k += 1
        return self._actions[self._everyone, k], k

    def reset(self, ids: ArrayLike) -> None:
        """Make a decision due on rows `ids`, whatever is left of their chunks."""
        index = np.asarray(ids)
        self._k[index] = self._length[index]
