"""Contract of the environments that a rollout drives in lockstep: a simulator, ours or another behind the wire."""

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from embodied.data import EnvStep, Observation, Resets
from embodied.spec import EnvSpec


class Env(Protocol):
    """B environments of one task, stepped together.

    Attributes:
        spec: Streams that the environments offer and need.
        num_envs: B.
        first: Index of the first of them within the run.
        autoreset: Whether an ended episode is followed by the next at once. Without it an environment whose agents all
            ended is parked: it is neither stepped nor rewarded, and its outcomes read `RUNNING`, until the next
            `reset`.
        seed: Seed of the episode seeds that `reset` is not given.
        physics_s: Seconds spent in the physics engine since construction.
        faults: Episodes ended by an infrastructure fault since construction, one per environment.
    """

    spec: EnvSpec
    num_envs: int
    first: int
    autoreset: bool
    seed: int
    faults: int

    @property
    def physics_s(self) -> float: ...

    def reset(self, seeds: ArrayLike | None = None) -> tuple[dict[str, Observation], Resets]:
        """Start an episode in every environment.

        Args:
            seeds: [B] seeds, each of which alone draws an episode's start. `rows.episode` counts on.

        Returns:
            Agent name to its first observation [B], and the episodes that began.
        """
        ...

    def step(self, actions: Mapping[str, NDArray[np.float32]]) -> EnvStep:
        """Take one control step.

        Args:
            actions: Agent name to [B, D] in physical units. Values out of range are clipped; NaN is a fault of the
                environment. The actions of a parked agent are ignored.
        """
        ...

    def expert(self) -> dict[str, NDArray[np.float32]]:
        """Agent name to [B, D], the actions of the task's scripted expert in the present state."""
        ...

    def snapshot(self, ids: ArrayLike | None = None) -> dict[str, NDArray[Any]]:
        """State from which the environments `ids`, counted from 0, continue bit for bit; None for all."""
        ...

    def restore(self, snapshot: dict[str, NDArray[Any]], ids: ArrayLike | None = None) -> None:
        """Put a snapshot into the environments `ids`, one row each."""
        ...

    def close(self) -> None:
        """Release what the environments hold."""
        ...
