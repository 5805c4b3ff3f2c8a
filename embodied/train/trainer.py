"""Trainer stage: one update of the learner for each round of segments, by versions that are fresh enough."""

from collections import deque
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any

from embodied.data import Segment
from embodied.errors import RolloutMismatch
from embodied.learning.learner import EpisodeLearner, Learner
from embodied.monitor.timing import Stopwatch
from embodied.rollout.staleness import drop_stale, version_lags
from embodied.train.mailbox import Inbox, Outbox, Stage
from embodied.train.messages import METRICS, PUBLISHER, TRAINER, Collected, Credit, Learned, Published, Update, address
from embodied.train.metrics import ended, rollout_metrics, successes
from embodied.weights.manifest import Version
from embodied.weights.pointers import Hold

Explain = Callable[[RolloutMismatch, list[Segment], int], RolloutMismatch]


class Trainer(Stage):
    """Updates a learner with the next segment of every origin, in the order of their counts.

    Credits for the next segments are sent once the version of an update is served. Every segment is then of that
    version, even where messages are lost or delayed.

    Args:
        learner: Trained; an `EpisodeLearner` is only published.
        attempt: Start of the run.
        watch: Gets the seconds of `learning`.
        origins: Names of the rollouts, each of which gives one segment per update.
        max_lag: Updates that the version of a trained step may be behind the newest; see `drop_stale`.
        lag: Updates along the lineage from an older version number to a newer one; None where it is no ancestor.
        budget: Environment steps after which no more segments are asked for.
        explain: Completes the error of an update that refuses its segment.
        policy: Name of the policy in a run that trains several; empty in others.

    Attributes:
        step: Updates so far.
        env_steps: Environment steps consumed, those of demonstrations included.
        version: Last version served; None before the first.
    """

    def __init__(
        self,
        learner: Learner | EpisodeLearner,
        attempt: int,
        watch: Stopwatch,
        origins: Collection[str],
        max_lag: int,
        lag: Callable[[int, int], int | None],
        budget: float,
        explain: Explain = lambda error, segments, newest: error,
        policy: str = "",
    ) -> None:
        self.name, self._publisher = address(TRAINER, policy), address(PUBLISHER, policy)
        self.learner, self.watch, self.max_lag, self.budget = learner, watch, max_lag, budget
        self._versions_lag, self._explain = lag, explain
        self.inbox, self.outbox = Inbox(), Outbox(self.name, attempt)
        self.step, self.env_steps = 0, 0
        self.version: Version | None = None
        self._consumed = dict.fromkeys(origins, 0)
        self._waiting: dict[str, deque[Collected]] = {origin: deque() for origin in origins}
        self._unserved = False

    @property
    def served(self) -> bool:
        """Whether the server answers with the weights of the last update."""
        return self.version is not None and not self._unserved

    def present(self, restored: Hold | None = None, parent: int | None = None) -> None:
        """Have the present weights published, as a run does that starts or resumes; see `Update`."""
        self._send(Update(self.step, self.env_steps, self.learner.tensors(), (), False, restored, parent))

    def tick(self, now: float) -> bool:
        """Take messages in, and update once where a segment of every origin is there."""
        if self.outbox.room < 2 + len(self._waiting):
            return False
        busy = False
        while (message := self.inbox.take()) is not None:
            busy = True
            match message.body:
                case Published() as published:
                    self._take_served(published)
                case Collected() as collected:
                    self._waiting[collected.origin].append(collected)
        if not self.served or not self._waiting or not all(self._waiting.values()):
            return busy
        self._update([queue.popleft() for queue in self._waiting.values()])
        return True

    def doing(self) -> str:
        return "training" if self._waiting else ""

    def state(self) -> dict[str, Any]:
        counts = {"step": self.step, "env_steps": self.env_steps, "consumed": dict(self._consumed)}
        return {"learner": self.learner.state(), **counts}

    def load(self, state: Mapping[str, Any]) -> None:
        """Continue from `state`; `present` then asks for segments.

        Raises:
            CorruptFile: As `Trained.load`.
        """
        self.learner.load(state["learner"])
        self.step, self.env_steps = int(state["step"]), int(state["env_steps"])
        self._consumed |= {origin: int(count) for origin, count in state["consumed"].items()}

    def _take_served(self, published: Published) -> None:
        self.learner.published(published.version)
        self.version, self._unserved = published.version, False
        if self.env_steps < self.budget:
            for origin, count in self._consumed.items():
                self.outbox.put(origin, Credit(count + 1))

    def _update(self, taken: list[Collected]) -> None:
        assert self.version is not None and not isinstance(self.learner, EpisodeLearner)
        newest = self.version.number
        lags = [version_lags(collected.segment, partial(self._lag, newest)) for collected in taken]
        corrected = self.learner.has_ratio
        segments = [drop_stale(c.segment, lag, self.max_lag, corrected) for c, lag in zip(taken, lags, strict=True)]
        with self.watch("learning"):
            try:
                values = self.learner.update(segments)
            except RolloutMismatch as error:
                raise self._explain(error, segments, newest) from None
            tensors = self.learner.tensors()
        steps = sum(segment.steps for segment in segments)
        self.step, self.env_steps = self.step + 1, self.env_steps + steps
        self._consumed |= {collected.origin: collected.count for collected in taken}
        values |= rollout_metrics([c.segment for c in taken], segments, lags, sum(c.faults for c in taken))
        counts = ended(segments), successes(segments)
        self.outbox.put(METRICS, Learned(self.step, self.env_steps, steps, *counts, values))
        self._send(Update(self.step, self.env_steps, tensors, tuple(segment.id for segment in segments)))

    def _lag(self, newest: int, version: int) -> int | None:
        return 0 if version == newest else self._versions_lag(version, newest)

    def _send(self, update: Update) -> None:
        self.outbox.put(self._publisher, update)
        self._unserved = True
