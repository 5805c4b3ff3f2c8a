"""Grasps from above: plans of scripted experts that move an object, and stages that dense rewards pay."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulators.arm import Arm
from simulators.task import Array, Fields

CLEAR_M, RISE_M = 0.06, 0.10
"""Height of the approach above an object or its place; height to which the hand rises after a release. m."""
STAGE_REWARD = 0.05
PUT_STAGES = 7.0
"""Largest reward of `put_reward` in one step, in stages."""


class Approach(NamedTuple):
    """Approach of B objects.

    Attributes:
        goal: [B, 3] m, next target of the end effector.
        around: [B] whether the fingers are around the object.
        holding: [B] whether they hold it.
    """

    goal: Array
    around: NDArray[np.bool_]
    holding: NDArray[np.bool_]


class Grasp:
    """Grasps of free objects that are `width` m across between the fingers."""

    def __init__(self, arm: Arm, width: float) -> None:
        self._arm, self._width = arm, width

    def approach(self, fields: Fields, pos: Array, command: Array) -> Approach:
        """Approach of an object: above it, down around it, a wait until the closing fingers rest on it.

        Args:
            fields: B rows.
            pos: [B, 3] m, position of the object.
            command: [B] command of the gripper in the last step.
        """
        offset = pos - self._arm.ee_pos(fields)
        aside = _length(offset[:, :2])
        around = (aside < 0.015) & (np.abs(offset[:, 2]) < 0.012)
        resting = np.abs(self._arm.gripper_speed(fields)) < 0.04
        holding = around & (command < 0.0) & resting & (self._arm.gripper_width(fields) < 1.25 * self._width)
        goal = pos.copy()
        goal[:, 2] += np.where(aside < 0.02, 0.0, CLEAR_M)
        return Approach(goal, around, holding)

    def put(self, fields: Fields, pos: Array, place: Array, command: Array, within: float) -> tuple[Array, Array]:
        """Plan of the expert: take the object, lift it, carry it above its place, lower it, open, rise.

        Args:
            fields: B rows.
            pos: [B, 3] m, position of the object.
            place: [B, 3] m, goal of its centre.
            command: [B] command of the gripper in the last step.
            within: m, largest horizontal distance from its place; it is carried and released twice as precisely.

        Returns:
            [B, 3] m, next target of the end effector, and [B] command of the gripper.
        """
        ee = self._arm.ee_pos(fields)
        goal, around, holding = self.approach(fields, pos, command)
        offset = place - pos
        aside = _length(offset[:, :2])
        carry = ee + offset
        carry[:, 2] += CLEAR_M * np.clip(2.0 * aside / within - 1.0, 0.0, 1.0)
        low = (aside > within) & (offset[:, 2] > -0.5 * CLEAR_M)
        carry[:, :2] = np.where(low[:, None], ee[:, :2], carry[:, :2])
        goal = np.where(holding[:, None], carry, goal)
        placed = self.placed(pos, place, within)
        placed &= (command > 0.0) | ((aside < 0.5 * within) & (offset[:, 2] > -0.005))
        away = ee.copy()
        away[:, 2] += np.where(self.open(fields), RISE_M, 0.0)
        goal = np.where(placed[:, None], away, goal)
        return goal, np.where(around & ~placed, -1.0, 1.0)

    def placed(self, pos: Array, place: Array, within: float) -> NDArray[np.bool_]:
        """[B] whether objects at `pos` [B, 3] lie at most `within` m beside their `place` [B, 3], at its height."""
        offset = place - pos
        return (_length(offset[:, :2]) < within) & (np.abs(offset[:, 2]) < 0.01)

    def open(self, fields: Fields) -> NDArray[np.bool_]:
        """[B] whether the gripper is too wide to hold the object."""
        return self._arm.gripper_width(fields) > 1.3 * self._width

    def grasped(self, fields: Fields, distance: Array, command: Array) -> NDArray[np.bool_]:
        """[B] whether the closing gripper is as wide as an object at `distance` [B] m from the end effector."""
        width = self._arm.gripper_width(fields)
        return (distance < 0.03) & (command < 0.0) & (width < 1.25 * self._width) & (width > 0.75 * self._width)

    def put_reward(self, fields: Fields, pos: Array, place: Array, command: Array, within: float) -> Array:
        """[B] stages reached on the way to an object released at its place, for arguments as in `put`.

        Up to 1 for the approach, 1 for the grasp, 1 for the lift, 2 for coming near the place; 6 at the place, held or
        not, and 7 once the gripper is open.
        """
        distance, way = _length(pos - self._arm.ee_pos(fields)), place - pos
        aside = _length(way[:, :2])
        lifted = np.clip(-way[:, 2] / CLEAR_M, 0.0, 1.0)
        carried = near(_length(way))
        stages = near(distance) + self.grasped(fields, distance, command) * (
            1.0 + np.where(aside < within, 1.0, lifted) + 2.0 * carried
        )
        placed = self.placed(pos, place, within)
        return STAGE_REWARD * np.where(placed, PUT_STAGES - 1.0 + self.open(fields), stages)


def near(distance: Array) -> Array:
    """[B] from 1 at distance 0 (m) to 0 far away.

    It falls on two scales, a coarse one for the way and a fine one for the grasp.
    """
    return 1.0 - 0.5 * np.tanh(4.0 * distance) - 0.5 * np.tanh(20.0 * distance)


def _length(vectors: Array) -> Array:
    """[B] lengths of [B, D] vectors; quicker than `np.linalg.norm` for few rows."""
    return np.sqrt((vectors * vectors).sum(axis=1))
