"""The loop: the stages of one run in one process, ticked in turn, so that a seed repeats bit for bit."""

import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from embodied.buffer.assembler import EpisodeAssembler
from embodied.data import Segment
from embodied.errors import CorruptFile, RolloutMismatch
from embodied.learning.consistency import explain
from embodied.learning.ppo import PPO
from embodied.rollout.collector import Assignment, Collector
from embodied.rollout.play import by_policy
from embodied.runs.checkpoint import Loaded
from embodied.train import checkpointing
from embodied.train.evaluator import Evaluation, Evaluator
from embodied.train.keeper import Keeper
from embodied.train.mailbox import Stage, deliver
from embodied.train.metrics import StepMetrics
from embodied.train.parts import Parts
from embodied.train.publisher import Publisher
from embodied.train.rollout import ORIGIN, Rollout
from embodied.train.scorer import Scorer
from embodied.train.trainer import Trainer
from embodied.train.whole_episodes import WholeEpisodes
from embodied.weights.pointers import Hold

IDLE_S = 0.05


class Loop:
    """Stages of a run.

    Args:
        parts: Of the run.
        clock: Monotonic seconds.
        idle: Called where no stage has anything to do.
        deliver: Carries messages between stages.

    Attributes:
        origin: Source of the weights that the run began with, for its summary.
    """

    def __init__(
        self,
        parts: Parts,
        clock: Callable[[], float] = time.monotonic,
        idle: Callable[[], None] = lambda: time.sleep(IDLE_S),
        deliver: Callable[[Mapping[str, Stage], float], None] = deliver,
    ) -> None:
        self.parts, self._clock, self._idle, self._deliver = parts, clock, idle, deliver
        settings, env, spec, attempt, watch = parts.settings, parts.env, parts.spec, parts.attempt, parts.watch
        driven = [Assignment(parts.client, spec)]
        collector = Collector(env, driven, settings.rollout.steps, settings.seed, attempt, watch, ORIGIN)
        self.rollout = Rollout(collector, attempt)
        self.scorer = Scorer(parts.reward, attempt, watch)
        origins = [] if parts.learner is None else [self.rollout.name]
        budget = settings.budget.env_steps
        lag = partial(parts.registry.lag, spec.name)
        if isinstance(parts.learner, PPO):
            parts.learner.older.read = lambda number: parts.registry.read(spec.name, number)[1]
            parts.learner.older.say = parts.progress.say
        self.trainer = Trainer(
            parts.trained, attempt, watch, origins, settings.rollout.max_lag, lag, budget, self._explain
        )
        self.publisher = Publisher(parts.registry, parts.client, spec, attempt, parts.hold_wait, watch)
        self.keeper = Keeper(
            EpisodeAssembler(env.spec, attempt, omit=parts.omitted_streams), parts.store, attempt, watch
        )
        self.whole_episodes = WholeEpisodes(env.spec, attempt, parts.reward.score, parts.omitted_streams)
        decide = by_policy(parts.client, spec, settings.seed)
        self.evaluator = Evaluator(settings, spec, decide, self.whole_episodes, attempt, watch, self._keep_best)
        self.metrics = StepMetrics(parts.metrics, attempt, watch, lambda: self.elapsed_s, parts.progress)
        stages: list[Stage] = [
            self.rollout, self.scorer, self.trainer, self.publisher, self.keeper, self.evaluator, self.metrics
        ]  # fmt: skip
        self.stages = {stage.name: stage for stage in stages}
        self.origin: dict[str, Any] = {}
        self._earlier_s, self._start, self._saved = 0.0, clock(), 0

    def tick(self) -> bool:
        """Let every stage work; once all are at rest, save what is due and collect the next segment."""
        worked = [self._work(stage) for stage in self.stages.values() if stage is not self.rollout]
        if any(worked):
            return True
        if self.at_rest and self._due:
            self.checkpoint()
        return not self.finished and self._work(self.rollout)

    def _work(self, stage: Stage) -> bool:
        worked = stage.tick(self._clock())
        self._deliver(self.stages, self._clock())
        if worked and (phase := stage.doing()):
            self.parts.progress.update(phase=phase, success=self.evaluator.success)
        return worked

    @property
    def at_rest(self) -> bool:
        """Whether every stage is done with the last update."""
        idle = all(stage.outbox.empty for stage in self.stages.values() if stage is not self.trainer)
        return idle and self.trainer.served and self.metrics.step == self.trainer.step

    @property
    def _due(self) -> bool:
        step = self.metrics.step
        return step > self._saved and step % self.parts.settings.checkpoint.every == 0

    @property
    def finished(self) -> bool:
        """Whether the target is reached or the budget spent, and the last update complete."""
        budget, evaluate = self.parts.settings.budget, self.parts.settings.evaluate
        over = (
            self.parts.learner is None
            or self.evaluator.reached >= evaluate.patience
            or self.metrics.env_steps >= budget.env_steps
            or (0 < budget.wall_s <= self.elapsed_s)
        )
        return over and self.at_rest

    @property
    def elapsed_s(self) -> float:
        """Seconds that the run has taken, earlier attempts included, without waits after a rollback."""
        return self._earlier_s + self._clock() - self._start - self.publisher.waited_s

    def settle(self, done: Callable[[], bool]) -> None:
        """Tick until something is done; each stage bounds its own waits."""
        while not done():
            if not self.tick():
                self._idle()

    def update(self) -> None:
        """Tick until one more update is complete, or the run is finished."""
        last = self.metrics.step
        self.settle(lambda: self.finished or (self.metrics.step > last and self.at_rest))

    def publish(self, restored: Hold | None = None, parent: int | None = None) -> None:
        """Have the present weights served; see `messages.Update`."""
        self.trainer.present(restored, parent)
        self.settle(lambda: self.trainer.served)

    def _keep_best(self) -> int:
        """Keep the version last published as the best; its number."""
        number = self.publisher.number
        try:
            self.parts.registry.keep_best(self.parts.spec.name, number)
        except CorruptFile as error:
            self.parts.progress.say(f"version {number}, the best so far, may not be kept: {error.line()}")
        return number

    def evaluate(self, seeds: np.ndarray, name: str) -> Evaluation:
        """Play the version that is served on seeds, each exactly once, and store the episodes."""
        self.evaluator.start(seeds, name)
        self.settle(lambda: self.evaluator.result is not None)
        assert self.evaluator.result is not None
        return self.evaluator.result

    def evaluate_regular(self) -> dict[str, float]:
        """Evaluate the version that is served as throughout the run, before its first update; metrics."""
        self.evaluator.start_regular(0)
        self.settle(lambda: self.evaluator.result is not None)
        assert self.evaluator.result is not None
        return self.evaluator.judge(self.evaluator.result)

    def checkpoint(self) -> None:
        """Save the state of every stage and of the run."""
        state = {
            "origin": self.origin,
            "elapsed_s": self.elapsed_s,
            "version": self.publisher.number,
            "whole_episodes": self.whole_episodes.count,
        }
        steps = checkpointing.save(self.parts, self.stages, self.metrics.step, state)
        self.publisher.pair(self.metrics.step, steps)
        self._saved = self.metrics.step
        self.parts.watch.lap()

    def restore(self, saved: Loaded, held: Hold | None = None) -> None:
        """Continue from a checkpoint of this run, and publish its weights under a number never used before.

        Args:
            saved: The checkpoint.
            held: The hold after a rollback that asked for it.
        """
        checkpointing.restore(self.stages, saved)
        state = saved.state
        self.origin, self._earlier_s = dict(state["origin"]), float(state["elapsed_s"])
        self.whole_episodes.count, self._saved = int(state["whole_episodes"]), self.metrics.step
        self.publish(held, parent=int(state["version"]))
        self.parts.watch.lap()

    def close(self) -> None:
        """Close files, sockets and environments."""
        self.parts.close()
        self.evaluator.close()

    def _explain(self, error: RolloutMismatch, segments: list[Segment], newest: int) -> RolloutMismatch:
        parts = self.parts
        remedy = f"nothing was published; mend that, then `embodied train resume={parts.folder}`"
        return explain(error, parts.policy, parts.client, segments, newest, remedy)
