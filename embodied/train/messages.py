"""Bodies of the messages between stages."""

from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from embodied.data import Segment
from embodied.episode import Episode
from embodied.weights.manifest import Version
from embodied.weights.pointers import Hold

SCORER, TRAINER, PUBLISHER, KEEPER, EVALUATOR, METRICS = (
    "scorer", "trainer", "publisher", "keeper", "evaluator", "metrics",
)  # fmt: skip
"""Names of the stages. A rollout has the name of its origin."""


def address(stage: str, policy: str = "") -> str:
    """Name of the stage of one policy, in a run that trains several; `policy` is empty in others."""
    return f"{stage}/{policy}" if policy else stage


@dataclass(frozen=True)
class Credit:
    """Trainer to rollout: its policy's segments up to number `until` may be collected."""

    until: int


@dataclass(frozen=True)
class Collected:
    """Rollout to scorer, and scored from there to trainer and keeper: one segment.

    Attributes:
        origin, count: Rollout, and number of the policy's segment there, from 1, over resumes too.
        segment: The steps.
        faults: Infrastructure faults of its environments so far.
    """

    origin: str
    count: int
    segment: Segment
    faults: int


@dataclass(frozen=True)
class Update:
    """Trainer to publisher: weights.

    Attributes:
        step: Updates so far.
        env_steps: Environment steps so far.
        tensors: The policy's.
        segments: Ids of the segments that the update consumed.
        fresh: Whether an update made them; otherwise a run starts or resumes with them.
        restored: Hold after a rollback that asked for the checkpoint with these weights.
        parent: Number of the version that was restored; None for the version published before.
    """

    step: int
    env_steps: int
    tensors: dict[str, NDArray[Any]]
    segments: tuple[str, ...] = ()
    fresh: bool = True
    restored: Hold | None = None
    parent: int | None = None


@dataclass(frozen=True)
class Published:
    """Publisher to trainer, keeper, evaluator and metrics: a version that the policy server now answers with.

    Attributes:
        step, env_steps, segments, fresh: As in `Update`.
        version: Number and hash.
        bytes: Size of its tensors.
        seconds: Time from its update to the server's answer, without waits for a hold.
    """

    step: int
    env_steps: int
    segments: tuple[str, ...]
    fresh: bool
    version: Version
    bytes: int
    seconds: float


@dataclass(frozen=True)
class Learned:
    """Trainer to metrics: one update.

    Attributes:
        step, env_steps: As in `Update`.
        steps, ended, successes: Steps, ended episodes and successes of the segments that it consumed.
        values: Metrics named `learner/...` and `rollout/...`.
    """

    step: int
    env_steps: int
    steps: int
    ended: int
    successes: int
    values: dict[str, float]


@dataclass(frozen=True)
class Stored:
    """Keeper to metrics: the segments of one update are stored.

    Attributes:
        step: Update.
        episodes: Episodes kept of its segments.
        unassembled: Episodes lost so far, of which a part was missing.
    """

    step: int
    episodes: int
    unassembled: int


@dataclass(frozen=True)
class Evaluated:
    """Evaluator to metrics: the evaluation after one update; `values` are empty where none was due."""

    step: int
    values: dict[str, float]


@dataclass(frozen=True)
class Episodes:
    """Evaluator to keeper: whole episodes."""

    episodes: list[Episode]
