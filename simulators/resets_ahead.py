"""Initial states drawn ahead, many at once: a few draws in every step would cost more than the observations."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from embodied import noise
from simulators.task import InitialStates

BLOCK_ROWS = 2048


class ResetsAhead:
    """Initial states of the next few episodes of B environments; seeds follow from (seed, env, episode).

    Args:
        draw: Initial states of the episodes of given seeds, such as `Task.initial_states`.
        count: B.
        first: Global index of the first environment.
    """

    def __init__(self, draw: Callable[[NDArray[np.int64]], InitialStates], count: int, first: int = 0) -> None:
        self._draw_states, self._count, self._first_env = draw, count, first
        self._depth = min(max(BLOCK_ROWS // count, 1), 32)
        self._seed: int | None = None
        self._first = np.zeros(count, np.int64)
        self._seeds = np.zeros(count * self._depth, np.int64)
        self._states = InitialStates({})

    def take(
        self, seed: int, ids: NDArray[np.int32], episode: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], InitialStates]:
        """Seeds [M] and initial states of the episodes `episode[ids]`.

        Args:
            seed: The seed of `BatchEnv`.
            ids: [M] environments, counted from 0.
            episode: [B] episode counts of all environments.
        """
        slot = episode[ids] - self._first[ids]
        if seed != self._seed or (slot < 0).any() or (slot >= self._depth).any():
            self._draw(seed, episode)
            slot = np.zeros(len(ids), np.int64)
        at = ids * self._depth + slot
        states = InitialStates(
            {name: values[at] for name, values in self._states.state.items()},
            {name: values[at] for name, values in self._states.drawn.items()},
        )
        return self._seeds[at], states

    def _draw(self, seed: int, episode: NDArray[np.int64]) -> None:
        """Fill the block with every environment's episodes from `episode` on."""
        keys = np.zeros((self._count * self._depth, 5), np.int64)
        keys[:, 0] = seed
        keys[:, 1] = np.repeat(self._first_env + np.arange(self._count), self._depth)
        keys[:, 3] = (episode[:, None] + np.arange(self._depth)).ravel()
        self._seed, self._first = seed, episode.copy()
        self._seeds = noise.integers(keys)
        self._states = self._draw_states(self._seeds)
