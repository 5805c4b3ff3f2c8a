"""Resets of episodes drawn ahead, many at once: drawing a few in every step would cost more than the observations."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from embodied import noise
from simulators.task import Start

BLOCK_ROWS = 2048


class ResetsAhead:
    """The starts of each env's next few episodes, whose seeds follow from (seed, env, episode).

    Args:
        draw: Resets of the episodes of given seeds, such as `Task.start`.
        count: B.
    """

    def __init__(self, draw: Callable[[NDArray[np.int64]], Start], count: int) -> None:
        self._draw_starts, self._count = draw, count
        self._depth = min(max(BLOCK_ROWS // count, 1), 32)
        self._seed: int | None = None
        self._first = np.zeros(count, np.int64)
        self._seeds = np.zeros(count * self._depth, np.int64)
        self._start = Start({})

    def take(self, seed: int, ids: NDArray[np.int32], episode: NDArray[np.int64]) -> tuple[NDArray[np.int64], Start]:
        """Seeds [M] and starts of the episodes `episode[ids]`.

        Args:
            seed: The environment's seed.
            ids: [M] envs.
            episode: [B] episode counts of all envs.
        """
        slot = episode[ids] - self._first[ids]
        if seed != self._seed or (slot < 0).any() or (slot >= self._depth).any():
            self._draw(seed, episode)
            slot = np.zeros(len(ids), np.int64)
        at = ids * self._depth + slot
        start = Start(
            {name: values[at] for name, values in self._start.state.items()},
            {name: values[at] for name, values in self._start.drawn.items()},
        )
        return self._seeds[at], start

    def _draw(self, seed: int, episode: NDArray[np.int64]) -> None:
        """Fill the block with every env's episodes from `episode` on."""
        keys = np.zeros((self._count * self._depth, 5), np.int64)
        keys[:, 0] = seed
        keys[:, 1] = np.repeat(np.arange(self._count), self._depth)
        keys[:, 3] = (episode[:, None] + np.arange(self._depth)).ravel()
        self._seed, self._first = seed, episode.copy()
        self._seeds = noise.integers(keys)
        self._start = self._draw_starts(self._seeds)
