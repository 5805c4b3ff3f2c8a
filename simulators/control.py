"""How an action moves an arm: joint or end-effector targets, absolute or as deltas, by the robot's own kinematics."""

from collections.abc import Callable
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from embodied.errors import ConfigError, nearest
from embodied.spec import Stream, Streams
from robots.kinematics.inverse import rotation_error
from simulators.arm import Arm
from simulators.task import Array, Fields

STEP_M, LEASH_M = 0.04, 0.08
"""How far the end effector's target may move in a step, per axis, and be from the actual position."""
STEP_RAD = 0.2
"""How far a joint's or rotation's target may be moved in a step."""


class Control(Protocol):
    """Turns actions [B, A] into joint targets [B, N]; its memory is `memory_size` columns of a task's.

    Attributes:
        actions: Streams of its actions.
        observations: What a policy must know of its memory.
        memory_size: Columns of memory.
    """

    actions: Streams
    observations: Streams
    memory_size: int

    def begin(self, fields: Fields, memory: Array) -> None:
        """Fill the memory of episodes that stand at their start."""
        ...

    def targets(self, fields: Fields, memory: Array, actions: NDArray[np.float32]) -> Array:
        """[B, N] joint targets."""
        ...

    def towards(self, fields: Fields, memory: Array, goal: Array) -> NDArray[np.float32]:
        """[B, A] actions that bring the end effector towards `goal` [B, 3] m, the hand pointing down."""
        ...

    def observe(self, fields: Fields, memory: Array) -> dict[str, NDArray[np.float32]]:
        """The streams of `observations`."""
        ...


class EndEffector:
    """The end effector's target, kept within the workspace and on a leash of the actual position.

    Args:
        arm: What moves.
        absolute: Whether actions are the target itself, in the world's frame, instead of its change.
        turn: Whether three more numbers, a rotation vector, turn the hand (deltas: about the world's axes, onto the
            present target; absolute: from the hand pointing down), instead of it pointing down always.
    """

    def __init__(self, arm: Arm, absolute: bool = False, turn: bool = False) -> None:
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

    def begin(self, fields: Fields, memory: Array) -> None:
        memory[:, :3] = self._arm.ee_pos(fields)
        if self._turn:
            memory[:, 3:12] = self._arm.down.ravel()

    def targets(self, fields: Fields, memory: Array, actions: NDArray[np.float32]) -> Array:
        ee = self._arm.ee_pos(fields)
        offset = actions[:, :3] - ee if self._absolute else memory[:, :3] + actions[:, :3] - ee
        distance = np.sqrt((offset * offset).sum(axis=1, keepdims=True))
        target = ee + offset * np.minimum(1.0, LEASH_M / np.maximum(distance, 1e-9))
        memory[:, :3] = target = self._arm.within_workspace(target)
        if not self._turn:
            return self._arm.reach_for(fields, target)
        base = self._arm.down if self._absolute else memory[:, 3:12].reshape(-1, 3, 3)
        rotation = rotations(actions[:, 3:6].astype(np.float64)) @ base
        memory[:, 3:12] = rotation.reshape(-1, 9)
        return self._arm.reach_for(fields, target, rotation)

    def towards(self, fields: Fields, memory: Array, goal: Array) -> NDArray[np.float32]:
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

    def observe(self, fields: Fields, memory: Array) -> dict[str, NDArray[np.float32]]:
        return {self._stream: (memory[:, :3] - self._arm.ee_pos(fields)).astype(np.float32)}


class Joint:
    """Joint targets, within the joint limits and never more than `STEP_RAD` from the actual positions.

    Args:
        arm: What moves.
        absolute: Whether actions are the targets themselves instead of their distance from the actual positions.
    """

    memory_size = 0
    observations: Streams = ()

    def __init__(self, arm: Arm, absolute: bool = False) -> None:
        self._arm, self._absolute = arm, absolute
        count = len(arm.chain)
        farthest = float(np.maximum(np.abs(arm.chain.lower), np.abs(arm.chain.upper)).max())
        name = f"{arm.prefix}joint_" + ("target" if absolute else "delta")
        self.actions: Streams = (Stream(name, (count,), unit="rad", limit=farthest if absolute else STEP_RAD),)

    def begin(self, fields: Fields, memory: Array) -> None:
        """Nothing to remember."""

    def targets(self, fields: Fields, memory: Array, actions: NDArray[np.float32]) -> Array:
        q = self._arm.q(fields)
        target = q + np.clip(actions - q, -STEP_RAD, STEP_RAD) if self._absolute else q + actions
        return np.clip(target, self._arm.chain.lower, self._arm.chain.upper)

    def towards(self, fields: Fields, memory: Array, goal: Array) -> NDArray[np.float32]:
        q = self._arm.q(fields)
        delta = self._arm.reach_for(fields, goal) - q
        largest = np.abs(delta).max(axis=1, keepdims=True)
        delta = delta * np.minimum(1.0, STEP_RAD / np.maximum(largest, 1e-9))
        return (q + delta if self._absolute else delta).astype(np.float32)

    def observe(self, fields: Fields, memory: Array) -> dict[str, NDArray[np.float32]]:
        return {}


CONTROLS: dict[str, Callable[[Arm], Control]] = {
    "ee_delta": lambda arm: EndEffector(arm),
    "ee_target": lambda arm: EndEffector(arm, absolute=True),
    "ee_pose_delta": lambda arm: EndEffector(arm, turn=True),
    "ee_pose": lambda arm: EndEffector(arm, absolute=True, turn=True),
    "joint_delta": lambda arm: Joint(arm),
    "joint_target": lambda arm: Joint(arm, absolute=True),
}


def make_control(kind: str, arm: Arm) -> Control:
    """The control of `CONTROLS` for an arm.

    Raises:
        ConfigError: There is none of this name.
    """
    if not isinstance(kind, str) or kind not in CONTROLS:
        raise ConfigError(f"unknown control {kind!r}", "task.control", nearest(kind, CONTROLS))
    return CONTROLS[kind](arm)


def rotations(vectors: Array) -> Array:
    """[B, 3, 3] rotations of rotation vectors [B, 3] (Rodrigues' formula)."""
    angle = np.linalg.norm(vectors, axis=1)[:, None, None]
    x, y, z = (vectors / np.maximum(angle[:, 0], 1e-12)).T
    zero = np.zeros(len(vectors))
    cross = np.array([[zero, -z, y], [z, zero, -x], [-y, x, zero]]).transpose(2, 0, 1)
    return np.eye(3) + np.sin(angle) * cross + (1.0 - np.cos(angle)) * (cross @ cross)
