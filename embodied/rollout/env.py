"""The contract of what a rollout drives in lockstep: a simulator, ours or another behind the wire."""

from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from embodied.data import Observation, Resets, StepResult
from embodied.spec import EnvSpec


class Env(Protocol):
    """B envs of one task, stepped together.

    Attributes:
        spec: What the envs offer and need.
        num_envs: B.
        autoreset: Whether an ended episode is followed by the next at once. Without it an ended row is parked: it
            is neither stepped nor rewarded, and its outcome reads `RUNNING`, until the next `reset`.
        seed: Draws the episode seeds that `reset` is not given.
        physics_s: Seconds spent in the physics engine since construction.
        faults: Episodes ended by an infrastructure fault since construction.
    """

    spec: EnvSpec
    num_envs: int
    autoreset: bool
    seed: int
    physics_s: float
    faults: int

    def reset(self, seeds: ArrayLike | None = None) -> tuple[Observation, Resets]:
        """Start an episode on every env; `seeds` [B] draw the starts. Counters of `rows.episode` go on."""
        ...

    def step(self, actions: NDArray[np.float32]) -> StepResult:
        """One control step. `actions` [B, D] in physical units; what is out of range is clipped, NaN is a fault."""
        ...

    def expert(self) -> NDArray[np.float32]:
        """[B, D] actions of the task's scripted expert in the present state."""
        ...

    def snapshot(self, ids: ArrayLike | None = None) -> dict[str, NDArray[Any]]:
        """Everything from which `ids` continue bit for bit: physics, controllers, counters."""
        ...

    def restore(self, snapshot: dict[str, NDArray[Any]], ids: ArrayLike | None = None) -> None:
        """Put a snapshot into `ids`, one row each."""
        ...

    def close(self) -> None: ...
