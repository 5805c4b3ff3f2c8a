"""Kinematics of one arm in its cell, known from descriptions alone: chain, base pose, workspace, gripper."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from embodied.errors import ConfigError, nearest
from robots.descriptions import arms, description_path
from robots.kinematics.chain import load_chain
from robots.kinematics.facts import load_facts
from robots.kinematics.forward import forward
from robots.kinematics.inverse import damped_step
from robots.kinematics.rotations import quat_to_matrix

Array = NDArray[np.float64]


class ArmState(NamedTuple):
    """Measured state of B arms of N joints.

    Attributes:
        q: [B, N] rad, joint positions.
        ee_pos: [B, 3] m, position of the end effector in the cell's frame.
    """

    q: Array
    ee_pos: Array


class ArmKinematics:
    """Kinematics of one arm of N joints with G gripper joints; positions are in the frame of its cell.

    The frame of a cell is that of its description: a single arm's own base, or, in a cell of several arms, the frame
    in which the arms are attached.

    Args:
        robot: Name of a description.
        prefix: Prefix of the arm's names where the description holds several arms; empty for a single arm.

    Attributes:
        robot: Name of the description of this arm alone.
        prefix: As given.
        chain: The joints up to the site `ee`, from the arm's base.
        facts: The gripper, the workspace and the spawn region.
        base_pos: [3] m, position of the arm's base in the cell's frame.
        base_rot: [3, 3] rotation of the base in the cell's frame, or None for the identity.
        down: [3, 3] rotation of the end effector at home, pointing down, in the cell's frame.

    Raises:
        ConfigError: There is no such description or prefix, or the description lacks something.
    """

    def __init__(self, robot: str = "panda", prefix: str = "") -> None:
        mounts = arms(robot)
        if prefix not in mounts:
            raise ConfigError(f"no arm of {robot} has the prefix {prefix!r}", f"robot {robot}", nearest(prefix, mounts))
        self.robot, self.prefix = mounts[prefix].robot, prefix
        path = description_path(self.robot)
        self.chain, self.facts = load_chain(path), load_facts(path)
        rot = quat_to_matrix(np.array(mounts[prefix].quat))
        self.base_pos = np.array(mounts[prefix].pos)
        self.base_rot = None if np.array_equal(rot, np.eye(3)) else rot
        self.down: Array = rot @ forward(self.chain, self.chain.home[None])[1][0]
        closed, wide = self.facts.gripper_width
        travel = self.facts.gripper_open - self.facts.gripper_closed
        self._width_per_q = (wide - closed) / (travel * len(travel))
        self._width_at_zero = closed - self._width_per_q @ self.facts.gripper_closed

    def state(self, q: Array) -> ArmState:
        """State at joint positions `q` [B, N] rad, the end effector by forward kinematics."""
        pos = forward(self.chain, q)[0]
        if self.base_rot is not None:
            pos = _rotate(self.base_rot, pos)
        return ArmState(q, pos + self.base_pos)

    def within_workspace(self, target: Array) -> Array:
        """[B, 3] the positions of the workspace that are nearest to `target` [B, 3] m, axis by axis of the base."""
        low, high = self.facts.workspace
        pos = target - self.base_pos
        if self.base_rot is None:
            return np.minimum(np.maximum(pos, low), high) + self.base_pos
        pos = _rotate(self.base_rot.T, pos)
        return _rotate(self.base_rot, np.minimum(np.maximum(pos, low), high)) + self.base_pos

    def reach_for(self, q: Array, target: Array, rotation: Array | None = None) -> Array:
        """[B, N] joint targets, one step of inverse kinematics nearer to a pose of the end effector.

        Args:
            q: [B, N] rad, the present posture.
            target: [B, 3] m.
            rotation: [B, 3, 3]; `down` if not given.
        """
        rot = np.broadcast_to(self.down, (len(q), 3, 3)) if rotation is None else rotation
        pos = target - self.base_pos
        if self.base_rot is not None:
            pos, rot = _rotate(self.base_rot.T, pos), self.base_rot.T @ rot
        return damped_step(self.chain, q, pos, rot)

    def gripper_targets(self, command: Array) -> Array:
        """[B, G] targets of the gripper's joints for `command` [B] from -1, closed, to 1, open."""
        share = 0.5 * (1.0 + command[:, None])
        return self.facts.gripper_closed + share * (self.facts.gripper_open - self.facts.gripper_closed)

    def pad_distance(self, q: Array) -> Array:
        """[B] m between the pads at positions `q` [B, G] of the gripper's joints."""
        return q @ self._width_per_q + self._width_at_zero

    def pad_speed(self, dq: Array) -> Array:
        """[B] m/s, growth of the distance between the pads at velocities `dq` [B, G] of the gripper's joints."""
        return dq @ self._width_per_q


def _rotate(rot: Array, vectors: Array) -> Array:
    """Rotate `vectors` [B, 3] by `rot` [3, 3]; unlike a BLAS product, a row's bits do not depend on B."""
    return vectors[:, :1] * rot[:, 0] + vectors[:, 1:2] * rot[:, 1] + vectors[:, 2:] * rot[:, 2]
