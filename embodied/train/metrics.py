"""Metrics of a run: one row per update, assembled from what the stages report of it."""

import math
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embodied.data import Outcome, Segment
from embodied.monitor.metrics import MetricsWriter
from embodied.monitor.progress import Progress
from embodied.monitor.stats import quantiles, wilson
from embodied.monitor.timing import Stopwatch
from embodied.rollout.play import Counts
from embodied.train.mailbox import Inbox, Outbox, Stage
from embodied.train.messages import METRICS, Evaluated, Learned, Published, Stored

PARTS = ("physics", "envs", "inference", "reward", "learning", "weights", "storage", "evaluation")
"""Parts of a step's time, `wall/<part>_s`."""


def successes(segments: Sequence[Segment]) -> int:
    """Episodes that ended in success within segments."""
    return sum(int((segment.outcomes == Outcome.SUCCESS).sum()) for segment in segments)


def ended(segments: Sequence[Segment]) -> int:
    """Episodes that ended within segments."""
    return sum(int((segment.outcomes != Outcome.RUNNING).sum()) for segment in segments)


def rollout_metrics(
    before: Sequence[Segment], after: Sequence[Segment], lags: Sequence[NDArray[Any]], faults: int
) -> dict[str, float]:
    """Metrics `rollout/...` of the segments of one update.

    Args:
        before, after: The segments before and after the staleness filter.
        lags: [T, B] of each, updates that its decisions are behind the newest version.
        faults: Infrastructure faults of all environments so far.
    """
    outcomes = np.concatenate([segment.outcomes.ravel() for segment in after])
    counted = outcomes[(outcomes != Outcome.RUNNING) & (outcomes != Outcome.INFRASTRUCTURE_FAULT)]
    trainable = sum(int(segment.trainable.sum()) for segment in before)
    dropped = trainable - sum(int(segment.trainable.sum()) for segment in after)
    rewards = after[0].rewards if len(after) == 1 else np.concatenate([segment.rewards.ravel() for segment in after])
    quantile = quantiles(np.concatenate([lag.ravel() for lag in lags]), (0.5, 0.95, 1.0))
    return {
        "rollout/success_rate": float((counted == Outcome.SUCCESS).mean()) if len(counted) else math.nan,
        "rollout/episodes": len(counted),
        "rollout/reward_mean": float(rewards.mean()),
        "rollout/faults": faults,
        "rollout/dropped_share": dropped / max(trainable, 1),
        **{f"rollout/version_lag_{name}": value for name, value in quantile.items()},
    }


def evaluation_metrics(played: Counts, lengths: NDArray[np.int32]) -> dict[str, float]:
    """Metrics `eval/...` of N episodes; `lengths` [N] are their steps."""
    low, high = wilson(played.successes, played.counted)
    return {
        "eval/success_rate": played.successes / max(played.counted, 1),
        "eval/success_low": low,
        "eval/success_high": high,
        "eval/episodes": played.counted,
        "eval/steps_mean": float(lengths.mean()),
    }


class StepMetrics(Stage):
    """Stage that writes a row once every other stage has reported an update.

    Args:
        writer: Of the run's files.
        attempt: Start of the run.
        watch: Its lap is the time of a step.
        elapsed_s: Seconds that the run has taken.
        progress: Shows the numbers, and says of skipped gradient steps.

    Attributes:
        step, env_steps: Of the last update that is complete: learned from, published, stored and evaluated.
    """

    name = METRICS

    def __init__(
        self,
        writer: MetricsWriter,
        attempt: int,
        watch: Stopwatch,
        elapsed_s: Callable[[], float],
        progress: Progress,
    ) -> None:
        self.writer, self.watch, self.progress, self._elapsed_s = writer, watch, progress, elapsed_s
        self.inbox, self.outbox = Inbox(), Outbox(self.name, attempt)
        self.step, self.env_steps, self.skipped = 0, 0, 0
        self._reports: dict[int, dict[type, Any]] = {}

    def tick(self, now: float) -> bool:
        """Take one report; write the row of the next update where all its reports are there."""
        if (message := self.inbox.take()) is None:
            return False
        report = message.body
        if not isinstance(report, Published) or report.fresh:
            self._reports.setdefault(report.step, {})[type(report)] = report
        found = self._reports.get(self.step + 1, {})
        if len(found) == 4:
            del self._reports[self.step + 1]
            self._write(found[Learned], found[Published], found[Stored], found[Evaluated])
        return True

    def state(self) -> dict[str, Any]:
        return {"step": self.step, "env_steps": self.env_steps, "skipped": self.skipped}

    def load(self, state: Mapping[str, Any]) -> None:
        """Continue from `state`; rows after the checkpoint are dropped."""
        self.step, self.env_steps, self.skipped = (int(state[name]) for name in ("step", "env_steps", "skipped"))
        self.writer.truncate_after(self.step)

    def write_first(self, env_steps: int, version: int, values: Mapping[str, float], seconds: float) -> None:
        """Write the row of the warm start.

        Args:
            env_steps: Environment steps of demonstrations.
            version: Number of the first version.
            values: Metrics of cloning and evaluation.
            seconds: Time that it took.
        """
        self.env_steps = env_steps
        counts = {"rollout/env_steps": env_steps, "learner/version": version}
        walls = {"wall/step_s": seconds, "wall/s": self._elapsed_s()}
        self.writer.write(self.step, {**values, **counts, **walls})
        self.watch.lap()

    def write_early(self, row: int, env_steps: int, version: int, values: Mapping[str, float]) -> None:
        """Write a row, numbered below 0, of a warm start that goes on, unless an earlier attempt wrote it. Arguments as
        of `write_first`."""
        if row <= self.writer.last:
            return
        counts = {"rollout/env_steps": env_steps, "learner/version": version, "wall/s": self._elapsed_s()}
        self.writer.write(row, {**values, **counts})

    def say_skipped(self, values: Mapping[str, float]) -> None:
        """Say how many gradient steps were left out, where that number grew."""
        skipped = int(values.get("learner/skipped_steps", 0))
        if skipped > self.skipped:
            self.progress.say(f"step skipped: loss or gradient not finite ({skipped} so far)")
        self.skipped = skipped

    def _write(self, learned: Learned, published: Published, stored: Stored, evaluated: Evaluated) -> None:
        self.say_skipped(learned.values)
        parts = self.watch.lap()
        total = max(parts["total"], 1e-9)
        values = learned.values | evaluated.values
        values |= {
            "learner/version": published.version.number,
            "rollout/env_steps": learned.env_steps,
            "buffer/stored_episodes": stored.episodes,
            "buffer/unassembled_episodes": stored.unassembled,
            **{f"wall/{part}_s": parts.get(part, 0.0) for part in PARTS},
            "wall/step_s": total,
            "wall/env_steps_per_s": learned.steps / total,
            "wall/fresh_trajectories_per_s": learned.ended / total,
            "wall/rewards_per_s": learned.steps / max(parts.get("reward", 0.0), 1e-9),
            "wall/weight_sync_s": published.seconds,
            "wall/weight_sync_mb_per_s": published.bytes / 1e6 / max(published.seconds, 1e-9),
            "wall/s": self._elapsed_s(),
            "wall/success_per_core_hour": learned.successes / (total * len(os.sched_getaffinity(0)) / 3600),
        }
        self.writer.write(learned.step, values)
        self.progress.update(env_steps=learned.env_steps, version=published.version.number)
        self.step, self.env_steps = learned.step, learned.env_steps
