"""The present version on seeds, a part of them at once: what became of each, and the first episodes whole."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embodied.data import ActionChunk, Episode, Observation
from embodied.evaluate.cell import BATCH
from embodied.rollout.env import Env
from embodied.rollout.play import Counts, Decide, Played, play
from embodied.runs.parts import make_env
from embodied.spec import PolicySpec
from embodied.train.settings import Settings


@dataclass(frozen=True)
class Evaluation(Counts):
    """N episodes.

    Attributes:
        outcomes: [N] uint8 of `Outcome`.
        lengths: [N] steps.
        shown: The first of them, as many as the run's video shows.
    """

    outcomes: NDArray[np.uint8]
    lengths: NDArray[np.int32]
    shown: list[Episode]


class Evaluator:
    """Plays tests on envs that it keeps for the next one.

    Args:
        settings: Of the run.
        spec: Of the policy that decides.
        decide: What answers.
        store: Makes episodes of what was played, and stores them.
    """

    def __init__(
        self,
        settings: Settings,
        spec: PolicySpec,
        decide: Decide,
        store: Callable[[Played], list[Episode]],
    ) -> None:
        self._settings, self._spec, self._decide, self._store = settings, spec, decide, store
        self._env: Env | None = None
        self._size, self._times = 0, 0

    def test(self, seeds: NDArray[Any], name: str) -> Evaluation:
        """Play each of [N] seeds exactly once, at most `BATCH` at a time, of which alone pictures are in memory.

        Args:
            name: Of the segments.
        """
        self._times = self._times + 1 if len(seeds) == self._size else 0
        self._size, first = len(seeds), 0
        outcomes, lengths, shown = list[NDArray[np.uint8]](), list[NDArray[np.int32]](), list[Episode]()
        for some in np.array_split(seeds, -(-len(seeds) // BATCH)):
            env = self._envs(len(some))
            decide = self._decide if len(some) == len(seeds) else self._as_part(first)
            played = play(env, decide, some, self._spec, id=name, mode="evaluation")
            first += len(some)
            episodes = self._store(played)
            shown += episodes[: max(self._settings.render.episodes - len(shown), 0)]
            outcomes.append(played.outcomes)
            lengths.append(played.lengths)
        return Evaluation(np.concatenate(outcomes), np.concatenate(lengths), shown)

    def _as_part(self, first: int) -> Decide:
        """Decisions for envs from `first` on of a test, with the noise that all of them at once would have."""
        times = self._times

        def decide(seen: Observation) -> ActionChunk:
            rows = replace(seen.rows, env=seen.rows.env + first, episode=np.full_like(seen.rows.episode, times))
            return replace(self._decide(Observation(rows, seen.streams, seen.time)), rows=seen.rows)

        return decide

    def close(self) -> None:
        if self._env is not None:
            self._env.close()
            self._env = None

    def _envs(self, count: int) -> Env:
        if self._env is None or self._env.num_envs != count:
            self.close()
            settings = self._settings
            self._env = make_env(settings.task, settings.env, count, settings.seed, autoreset=False)
        return self._env
