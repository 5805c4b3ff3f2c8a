"""The present version on seeds, a part of them at once: what became of each, and the first episodes whole."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embodied.data import ActionChunk, Episode, Observation
from embodied.rollout.body import Body
from embodied.rollout.play import Counts, Decide, Played, play
from embodied.runtime.measuring import BATCH
from embodied.runtime.parts import make_body
from embodied.runtime.settings import Settings
from embodied.spec import PolicySpec


@dataclass(frozen=True)
class Tested(Counts):
    """N episodes.

    Attributes:
        outcomes: [N] uint8 of `Outcome`.
        lengths: [N] steps.
        shown: The first of them, as many as the run's video shows.
    """

    outcomes: NDArray[np.uint8]
    lengths: NDArray[np.int32]
    shown: list[Episode]


class Tester:
    """Plays tests on bodies that it keeps for the next one.

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
        self._body: Body | None = None
        self._size, self._times = 0, 0

    def test(self, seeds: NDArray[Any], name: str) -> Tested:
        """Play each of [N] seeds exactly once, at most `BATCH` at a time, of which alone pictures are in memory.

        Args:
            name: Of the segments.
        """
        self._times = self._times + 1 if len(seeds) == self._size else 0
        self._size, first = len(seeds), 0
        outcomes, lengths, shown = list[NDArray[np.uint8]](), list[NDArray[np.int32]](), list[Episode]()
        for some in np.array_split(seeds, -(-len(seeds) // BATCH)):
            body = self._bodies(len(some))
            decide = self._decide if len(some) == len(seeds) else self._as_part(first)
            played = play(body, decide, some, self._spec, id=name, mode="evaluation")
            first += len(some)
            episodes = self._store(played)
            shown += episodes[: max(self._settings.render.episodes - len(shown), 0)]
            outcomes.append(played.outcomes)
            lengths.append(played.lengths)
        return Tested(np.concatenate(outcomes), np.concatenate(lengths), shown)

    def _as_part(self, first: int) -> Decide:
        """Decisions for bodies from `first` on of a test, with the noise that all of them at once would have."""
        times = self._times

        def decide(seen: Observation) -> ActionChunk:
            rows = replace(seen.rows, body=seen.rows.body + first, episode=np.full_like(seen.rows.episode, times))
            return replace(self._decide(Observation(rows, seen.streams, seen.time)), rows=seen.rows)

        return decide

    def close(self) -> None:
        if self._body is not None:
            self._body.close()
            self._body = None

    def _bodies(self, count: int) -> Body:
        if self._body is None or self._body.num_bodies != count:
            self.close()
            settings = self._settings
            self._body = make_body(settings.task, settings.body, count, settings.seed, autoreset=False)
        return self._body
