"""The stage between rollout and buffer: every step leaves it with a reward, its version and its status."""

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

import numpy as np

from embodied.data import RewardStatus, Segment


class RewardStage(Protocol):
    """Scores segments; holds no algorithm and no task."""

    def score(self, segment: Segment) -> Segment:
        """The segment with `rewards`, `reward_status`, `reward_version` and `trainable` set; the rest is shared."""
        ...

    def metrics(self) -> dict[str, float]:
        """`reward/...` and `wall/reward_...`, since the stage began."""
        ...


class TaskReward:
    """The env's own rewards, passed through.

    A reward that is not finite becomes `FAILED` with value 0 and does not train; 0 alone never means "unknown".

    Args:
        task: Name of the task.
        kind: Which of its rewards, such as `sparse`.
        clock: Seconds, for throughput.
    """

    def __init__(self, task: str, kind: str, clock: Callable[[], float] = time.perf_counter) -> None:
        self.version = f"{task}/{kind}/1"
        self.scored = 0
        self.failed = 0
        self.seconds = 0.0
        self._clock = clock

    def score(self, segment: Segment) -> Segment:
        start = self._clock()
        finite = np.isfinite(segment.rewards)
        status = np.where(finite, segment.reward_status, RewardStatus.FAILED).astype(np.uint8)
        scored = status == RewardStatus.SCORED
        result = replace(
            segment,
            rewards=np.where(finite, segment.rewards, 0.0).astype(np.float32),
            reward_status=status,
            reward_version=self.version,
            trainable=segment.trainable & scored,
        )
        self.scored += int(scored.sum())
        self.failed += int((status == RewardStatus.FAILED).sum())
        self.seconds += self._clock() - start
        return result

    def metrics(self) -> dict[str, float]:
        """Steps scored and failed, and steps scored per second spent scoring."""
        return {
            "reward/scored": float(self.scored),
            "reward/failed": float(self.failed),
            "wall/reward_throughput": self.scored / self.seconds if self.seconds else 0.0,
        }
