"""Evaluator stage: plays the present version on seeds, a part of them per tick."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embodied.data import ActionChunk, Observation
from embodied.episode import Episode
from embodied.evaluate.cell import BATCH
from embodied.monitor.timing import Stopwatch
from embodied.rollout.env import Env
from embodied.rollout.play import Counts, Decide, Played, play
from embodied.runs.parts import make_env
from embodied.runs.settings import Settings
from embodied.spec import PolicySpec
from embodied.train.mailbox import Inbox, Outbox, Stage
from embodied.train.messages import EVALUATOR, KEEPER, METRICS, Episodes, Evaluated, Published
from embodied.train.metrics import evaluation_metrics


@dataclass(frozen=True)
class Evaluation(Counts):
    """Results of N episodes.

    Attributes:
        outcomes: [N] uint8 of `Outcome`.
        lengths: [N] steps.
        shown: The first of them, as many as the run's video shows.
    """

    outcomes: NDArray[np.uint8]
    lengths: NDArray[np.int32]
    shown: list[Episode]


@dataclass
class _Running:
    """An evaluation in progress: its segments' name, the seeds of each part, and the results of the parts played."""

    name: str
    parts: list[NDArray[Any]]
    step: int | None
    outcomes: list[NDArray[np.uint8]] = field(default_factory=list)
    lengths: list[NDArray[np.int32]] = field(default_factory=list)
    shown: list[Episode] = field(default_factory=list)
    seeds: int = 0


class Evaluator(Stage):
    """Evaluates every version that is due, on environments that it keeps for the next evaluation.

    At most `BATCH` episodes are played at once, and only their pictures are in memory.

    Args:
        settings: Of the run.
        spec: Of the policy.
        decide: Answers observations with the version that is served.
        episodes: Makes whole episodes, with their rewards.
        attempt: Start of the run.
        watch: Gets the seconds of `evaluation`.
        keep_best: Keeps the version that is served, which did best so far; returns its number.

    Attributes:
        reached: Evaluations in a row that reached the target.
        best: Success rate and number of the version that did best; the newest of equals, None before the first.
        success: Rate of the last one; NaN before the first.
        result: Of the evaluation that was started last; None while it runs.
    """

    name = EVALUATOR

    def __init__(
        self,
        settings: Settings,
        spec: PolicySpec,
        decide: Decide,
        episodes: Callable[[Played], list[Episode]],
        attempt: int,
        watch: Stopwatch,
        keep_best: Callable[[], int],
    ) -> None:
        self._settings, self._spec, self._decide, self._episodes = settings, spec, decide, episodes
        self.watch, self._attempt, self._keep_best = watch, attempt, keep_best
        self.inbox, self.outbox = Inbox(), Outbox(self.name, attempt)
        self.reached, self.success = 0, math.nan
        self.best: tuple[float, int] | None = None
        self.result: Evaluation | None = None
        self._running: _Running | None = None
        self._env: Env | None = None
        self._size, self._times = 0, 0

    def start(self, seeds: NDArray[Any], name: str, step: int | None = None) -> None:
        """Begin to play each of [N] seeds exactly once.

        Args:
            seeds: Whole numbers.
            name: Of the segments.
            step: Update whose evaluation is reported to the metrics; None for `result` alone.
        """
        self._times = self._times + 1 if len(seeds) == self._size else 0
        self._size, self.result = len(seeds), None
        parts = np.array_split(seeds, -(-len(seeds) // BATCH))
        self._running = _Running(f"{self._attempt}-{name}", list(parts), step)

    def start_regular(self, step: int, report: bool = False) -> None:
        """Begin the evaluation that is repeated throughout a run."""
        given = self._settings.evaluate
        self.start(np.arange(given.seed, given.seed + given.episodes), f"eval-{step}", step if report else None)

    def tick(self, now: float) -> bool:
        """Play one part of an evaluation, or look whether a version is due for one."""
        if self.outbox.room < 2:
            return False
        if self._running is None:
            if (message := self.inbox.take()) is None:
                return False
            published: Published = message.body
            if published.fresh and self._due(published):
                self.start_regular(published.step, report=True)
            elif published.fresh:
                self.outbox.put(METRICS, Evaluated(published.step, {}))
            return True
        with self.watch("evaluation"):
            self._play(self._running)
        return True

    def doing(self) -> str:
        return "evaluation" if self._running is not None else ""

    def state(self) -> dict[str, Any]:
        return {"reached": self.reached, "best": self.best}

    def load(self, state: Mapping[str, Any]) -> None:
        self.reached = int(state["reached"])
        if best := state.get("best"):
            self.best = float(best[0]), int(best[1])

    def judge(self, result: Evaluation) -> dict[str, float]:
        """Compare a regular evaluation with the target; its metrics."""
        values = evaluation_metrics(result, result.lengths)
        self.success = values["eval/success_rate"]
        if self.best is None or self.success >= self.best[0]:
            self.best = self.success, self._keep_best()
        self.reached = self.reached + 1 if self.success >= self._settings.evaluate.target else 0
        return values

    def close(self) -> None:
        """Close the environments."""
        if self._env is not None:
            self._env.close()
            self._env = None

    def _due(self, published: Published) -> bool:
        every, budget = self._settings.evaluate.every, self._settings.budget.env_steps
        return published.step % every == 0 or published.env_steps >= budget

    def _play(self, running: _Running) -> None:
        seeds = running.parts.pop(0)
        env = self._envs(len(seeds))
        decide = self._decide if len(seeds) == self._size else self._as_part(running.seeds)
        played = play(env, decide, seeds, self._spec, id=running.name, mode="evaluation")
        episodes = self._episodes(played)
        self.outbox.put(KEEPER, Episodes(episodes))
        running.shown += episodes[: max(self._settings.render.episodes - len(running.shown), 0)]
        running.seeds += len(seeds)
        running.outcomes.append(played.outcomes)
        running.lengths.append(played.lengths)
        if running.parts:
            return
        self.result = Evaluation(np.concatenate(running.outcomes), np.concatenate(running.lengths), running.shown)
        self._running = None
        if running.step is not None:
            self.outbox.put(METRICS, Evaluated(running.step, self.judge(self.result)))

    def _as_part(self, first: int) -> Decide:
        """Decisions for envs from `first` on of an evaluation, with the noise that all of them at once would have."""
        times = self._times

        def decide(seen: Observation) -> ActionChunk:
            rows = replace(seen.rows, env=seen.rows.env + first, episode=np.full_like(seen.rows.episode, times))
            return replace(self._decide(Observation(rows, seen.streams, seen.time)), rows=seen.rows)

        return decide

    def _envs(self, count: int) -> Env:
        if self._env is None or self._env.num_envs != count:
            self.close()
            settings = self._settings
            self._env = make_env(settings.task, settings.env, count, settings.seed, autoreset=False)
        return self._env
