"""Contract of a control: actions of a policy to joint targets of one arm."""

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from embodied.spec import Streams
from robots.kinematics.arm import ArmState

Array = NDArray[np.float64]

STEP_RAD = 0.2
"""Largest change of a joint's target, or of a rotation's, in one step, rad."""


class Control(Protocol):
    """Actions [B, A] to joint targets [B, N], for B arms of N joints.

    Episode state lives in `memory` [B, memory_size], one row per arm, which the caller keeps. Only `begin` and
    `targets` write to it. A row's result depends on that row alone, to the last bit, whatever B is. Positions are in
    the frame of the arm's cell.

    Attributes:
        actions: Streams of its actions.
        observations: Streams that show its memory to a policy.
        memory_size: Columns of memory.
    """

    actions: Streams
    observations: Streams
    memory_size: int

    def begin(self, state: ArmState, memory: Array) -> None:
        """Fill the memory of episodes at their start."""
        ...

    def targets(self, state: ArmState, memory: Array, actions: NDArray[np.float32]) -> Array:
        """[B, N] rad, joint targets of `actions` [B, A] within the limits of their streams."""
        ...

    def towards(self, state: ArmState, memory: Array, goal: Array) -> NDArray[np.float32]:
        """[B, A] actions that bring the end effector towards `goal` [B, 3] m, the hand pointing down."""
        ...

    def observe(self, state: ArmState, memory: Array) -> dict[str, NDArray[np.float32]]:
        """Values [B, ...] of the streams of `observations`."""
        ...
