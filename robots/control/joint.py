"""Joint control: joint targets or their distances from the actual positions."""

import numpy as np
from numpy.typing import NDArray

from embodied.spec import Stream, Streams
from robots.control.control import STEP_RAD, Array
from robots.kinematics.arm import ArmKinematics, ArmState


class Joint:
    """Joint targets within the joint limits, at most `STEP_RAD` from the actual positions. It has no memory.

    Args:
        arm: Kinematics of the arm.
        absolute: Whether actions are the targets themselves instead of their distance from the actual positions.
    """

    memory_size = 0
    observations: Streams = ()

    def __init__(self, arm: ArmKinematics, absolute: bool = False) -> None:
        self._arm, self._absolute = arm, absolute
        count = len(arm.chain)
        farthest = float(np.maximum(np.abs(arm.chain.lower), np.abs(arm.chain.upper)).max())
        name = f"{arm.prefix}joint_" + ("target" if absolute else "delta")
        self.actions: Streams = (Stream(name, (count,), unit="rad", limit=farthest if absolute else STEP_RAD),)

    def begin(self, state: ArmState, memory: Array) -> None:
        """Do nothing: there is no memory."""

    def targets(self, state: ArmState, memory: Array, actions: NDArray[np.float32]) -> Array:
        q = state.q
        target = q + np.clip(actions - q, -STEP_RAD, STEP_RAD) if self._absolute else q + actions
        return np.clip(target, self._arm.chain.lower, self._arm.chain.upper)

    def towards(self, state: ArmState, memory: Array, goal: Array) -> NDArray[np.float32]:
        q = state.q
        delta = self._arm.reach_for(q, goal) - q
        largest = np.abs(delta).max(axis=1, keepdims=True)
        delta = delta * np.minimum(1.0, STEP_RAD / np.maximum(largest, 1e-9))
        return (q + delta if self._absolute else delta).astype(np.float32)

    def observe(self, state: ArmState, memory: Array) -> dict[str, NDArray[np.float32]]:
        return {}
