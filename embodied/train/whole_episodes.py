"""Whole episodes of evaluations and demonstrations, with ids that name their seeds."""

from collections.abc import Callable, Collection
from dataclasses import replace

from embodied.buffer.assembler import EpisodeAssembler
from embodied.data import Segment
from embodied.episode import Episode
from embodied.rollout.play import Played
from embodied.spec import EnvSpec
from embodied.train.rollout import ORIGIN


class WholeEpisodes:
    """Makes episodes of played segments, with ids `<origin>/<mode>/<attempt>-<count>-<seed>`.

    Args:
        spec: Of the environments.
        attempt: Start of the run.
        score: Gives segments their rewards.
        omit: Names of streams that episodes lack.

    Attributes:
        count: Segments so far, over resumes too.
    """

    def __init__(
        self, spec: EnvSpec, attempt: int, score: Callable[[Segment], Segment], omit: Collection[str] = ()
    ) -> None:
        self._spec, self._attempt, self._score, self._omit = spec, attempt, score, omit
        self.count = 0

    def __call__(self, played: Played) -> list[Episode]:
        segment = self._score(played.segment)
        episodes = EpisodeAssembler(self._spec, self._attempt, omit=self._omit).add(segment)
        self.count += 1
        name = f"{ORIGIN}/{segment.mode}/{self._attempt}-{self.count:04d}"
        return [replace(episode, id=f"{name}-{episode.seed}") for episode in episodes]
