"""End-effector control: Cartesian targets or their changes, turned into joint targets by inverse kinematics."""

import numpy as np
from numpy.typing import NDArray

from embodied.spec import Stream, Streams
from robots.control.control import STEP_RAD, Array
from robots.kinematics.arm import ArmKinematics, ArmState
from robots.kinematics.rotations import rotation_error, rotvec_to_matrix

STEP_M = 0.04
"""Largest change of the end effector's target in one step, per axis, m."""
LEASH_M = 0.08
"""Largest distance of the end effector's target from its actual position, m."""


class EndEffector:
    """Control of the end effector's target, kept within the workspace and on a leash of the actual position.

    Memory is the target's position [3] m, followed by its rotation [3 x 3] where actions turn the hand.

    Args:
        arm: Kinematics of the arm.
        absolute: Whether actions are the target itself, in the cell's frame, instead of its change.
        turn: Whether actions have three more numbers, a rotation vector (rad) that turns the hand, instead of the hand
            pointing down always. A change turns the present target about the axes of the cell; an absolute one turns
            the hand that points down.
    """

    def __init__(self, arm: ArmKinematics, absolute: bool = False, turn: bool = False) -> None:
        self._arm, self._absolute, self._turn = arm, absolute, turn
        self._stream = f"{arm.prefix}ee_target_offset"
        self.memory_size = 12 if turn else 3
        name = f"{arm.prefix}ee_" + ("target" if absolute else "delta")
        move = Stream(name, (3,), unit="m", frame="base", limit=1.0 if absolute else STEP_M)
        spin = Stream(
            f"{arm.prefix}ee_" + ("turn" if absolute else "turn_delta"),
            (3,),
            unit="rad",
            frame="base",
            rotation="rotvec",
            limit=np.pi if absolute else STEP_RAD,
        )
        self.actions: Streams = (move, spin) if turn else (move,)
        self.observations: Streams = (Stream(self._stream, (3,), unit="m", frame="base"),)

    def begin(self, state: ArmState, memory: Array) -> None:
        memory[:, :3] = state.ee_pos
        if self._turn:
            memory[:, 3:12] = self._arm.down.ravel()

    def targets(self, state: ArmState, memory: Array, actions: NDArray[np.float32]) -> Array:
        q, ee = state
        offset = actions[:, :3] - ee if self._absolute else memory[:, :3] + actions[:, :3] - ee
        distance = np.sqrt((offset * offset).sum(axis=1, keepdims=True))
        target = ee + offset * np.minimum(1.0, LEASH_M / np.maximum(distance, 1e-9))
        memory[:, :3] = target = self._arm.within_workspace(target)
        if not self._turn:
            return self._arm.reach_for(q, target)
        base = self._arm.down if self._absolute else memory[:, 3:12].reshape(-1, 3, 3)
        rotation = rotvec_to_matrix(actions[:, 3:6].astype(np.float64)) @ base
        memory[:, 3:12] = rotation.reshape(-1, 9)
        return self._arm.reach_for(q, target, rotation)

    def towards(self, state: ArmState, memory: Array, goal: Array) -> NDArray[np.float32]:
        actions = np.zeros((len(goal), 6 if self._turn else 3), np.float32)
        if self._absolute:
            actions[:, :3] = goal
            return actions
        actions[:, :3] = np.clip(goal - memory[:, :3], -STEP_M, STEP_M)
        if self._turn:
            rotation = memory[:, 3:12].reshape(-1, 3, 3)
            upright = np.broadcast_to(self._arm.down, rotation.shape)
            actions[:, 3:] = np.clip(rotation_error(rotation, upright), -STEP_RAD, STEP_RAD)
        return actions

    def observe(self, state: ArmState, memory: Array) -> dict[str, NDArray[np.float32]]:
        return {self._stream: (memory[:, :3] - state.ee_pos).astype(np.float32)}
