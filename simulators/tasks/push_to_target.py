"""Push to target: push a puck along the table to a marked place."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from embodied.spec import Stream
from simulators.objects import FreeObject
from simulators.scene import GREEN, add_plate, add_puck, table_scene
from simulators.tabletop import TabletopTask
from simulators.task import Array, Fields, Task, between

RADIUS_M, HALF_M, TARGET_M = 0.03, 0.015, 0.05
# Puck and target lie on opposite sides of a point between LOW and HIGH, x and y, APART_M from each other.
LOW, HIGH, APART_M = (0.45, -0.08), (0.55, 0.08), (0.14, 0.24)
NEAR_M, REST_MPS, HOLD_STEPS = 0.03, 0.03, 5
# The expert: its distance behind the puck and beside the line to the target at its descent; heights of the end effector
# for pushing, at which it may touch the puck, and for passing over it.
BEHIND_M, BESIDE_M, PUSH_M, LOW_M, OVER_M = 0.06, 0.012, 0.015, 0.04, 0.08

# Columns of the task's memory: the last two distances of the puck to the target and of the end effector to the puck,
# and steps in a row with the puck on the target.
WAY, WAY_BEFORE, REACH, REACH_BEFORE, HELD = 0, 1, 2, 3, 4


class PushToTarget(TabletopTask):
    """A Panda with its gripper closed, a puck of 6 cm, and a target drawn on the table.

    Success is the puck's centre within 3 cm of the target's, at rest, for five steps in a row. The dense reward is ten
    times the approach (m) of the puck to the target, twice that of the end effector to the puck, and 1 for success.
    """

    name = "push_to_target"
    instructions = (
        "push the red puck to the green target",
        "slide the red disc onto the green circle",
        "move the puck to the target without lifting it",
        "shove the red puck onto the green spot",
        "get the puck into the green circle",
    )
    episode_steps = 80
    reset_draws = 4
    memory_columns = 5
    resting_grip = -1.0

    def __init__(self, reward: str = "dense", control: str = "ee_delta", meshes: str = "") -> None:
        scene = table_scene(meshes=meshes)
        add_plate(scene, "target", TARGET_M, GREEN)
        add_puck(scene, "puck", (0.5, 0.0, HALF_M), radius=RADIUS_M, half=HALF_M)
        streams = (
            Stream("puck_pos", (3,), unit="m", frame="base"),
            Stream("puck_vel", (3,), unit="m/s", frame="base"),
            Stream("target_pos", (3,), unit="m", frame="base"),
            Stream("ee_to_puck", (3,), unit="m", frame="base"),
            Stream("puck_to_target", (2,), unit="m", frame="base"),
            Stream("held", (1,), unit="1"),
        )
        super().__init__(scene, "panda", reward, control, gripper=False, observations=streams)
        self.fields = (*self.fields, "mocap_pos")
        self.puck = FreeObject(self.model, "puck")

    def arrange(self, u: Array, qpos: Array, choices: Array) -> dict[str, NDArray[Any]]:
        middle, angle = between(u[:, :2], LOW, HIGH), between(u[:, 2], -np.pi, np.pi)
        half = between(u[:, 3:4], *APART_M) / 2 * np.stack([np.cos(angle), np.sin(angle)], axis=1)
        self.puck.place(qpos, middle - half, np.zeros(len(u)))
        target = np.zeros((len(u), 1, 3))
        target[:, 0, :2] = middle + half
        return {"mocap_pos": target, "puck_xy": middle - half}

    def prepare(self, fields: Fields, own: Array) -> None:
        own[:, WAY], own[:, REACH] = self._distances(fields)
        own[:, WAY_BEFORE], own[:, REACH_BEFORE] = own[:, WAY], own[:, REACH]

    def track(self, fields: Fields, own: Array) -> None:
        own[:, WAY_BEFORE], own[:, REACH_BEFORE] = own[:, WAY], own[:, REACH]
        own[:, WAY], own[:, REACH] = self._distances(fields)
        resting = (np.abs(self.puck.vel(fields)) < REST_MPS).all(axis=1)
        own[:, HELD] = np.where((own[:, WAY] < NEAR_M) & resting, own[:, HELD] + 1.0, 0.0)

    def sense(self, fields: Fields, own: Array) -> dict[str, NDArray[Any]]:
        puck = self.puck.pos(fields)
        return {
            "puck_pos": puck.astype(np.float32),
            "puck_vel": self.puck.vel(fields).astype(np.float32),
            "target_pos": fields["mocap_pos"][:, 0].astype(np.float32),
            "ee_to_puck": (puck - self.arm.ee_pos(fields)).astype(np.float32),
            "puck_to_target": self._way(fields).astype(np.float32),
            "held": (own[:, HELD:] / HOLD_STEPS).astype(np.float32),
        }

    def done(self, fields: Fields, own: Array) -> NDArray[np.bool_]:
        return own[:, HELD] >= HOLD_STEPS

    def failure(self, fields: Fields, memory: Array) -> NDArray[np.bool_]:
        """The puck fell off the table."""
        return self.puck.height(fields) < -0.05

    def shaping(self, fields: Fields, own: Array, command: Array) -> Array:
        return 10.0 * (own[:, WAY_BEFORE] - own[:, WAY]) + 2.0 * (own[:, REACH_BEFORE] - own[:, REACH])

    def plan(self, fields: Fields, own: Array, command: Array) -> tuple[Array, Array]:
        """Pass over the puck, descend behind it in line with the target, push ever slower, and rise."""
        ee, puck, way = self.arm.ee_pos(fields), self.puck.pos(fields)[:, :2], self._way(fields)
        distance = np.sqrt((way * way).sum(axis=1))[:, None]
        ahead = way / np.maximum(distance, 1e-6)
        past = ((ee[:, :2] - puck) * ahead).sum(axis=1, keepdims=True)
        beside = ee[:, :2] - puck - past * ahead
        aside = np.sqrt((beside * beside).sum(axis=1))[:, None]
        low = ee[:, 2:] < LOW_M
        behind = (past < -RADIUS_M) & (past > -2.0 * BEHIND_M)
        pushing = behind & (aside < np.where(low, 2.0 * BESIDE_M, BESIDE_M))
        # Twice the way back to the line: the puck drifts to the side away from the hand.
        push = ee[:, :2] - 2.0 * beside + np.clip(0.5 * distance, 0.005, 0.04) * ahead
        goal = np.empty_like(ee)
        goal[:, :2] = np.where(low, np.where(pushing, push, ee[:, :2]), puck - BEHIND_M * ahead)
        goal[:, 2:] = np.where(pushing, PUSH_M, OVER_M)
        arrived = distance[:, 0] < 0.6 * NEAR_M
        goal[arrived] = ee[arrived]
        goal[arrived, 2] = OVER_M
        return goal, command

    def _way(self, fields: Fields) -> Array:
        """[B, 2] from the puck to the target."""
        way: Array = fields["mocap_pos"][:, 0, :2] - self.puck.pos(fields)[:, :2]
        return way

    def _distances(self, fields: Fields) -> tuple[Array, Array]:
        """[B] from the puck to the target, and from the end effector to the puck."""
        way, reach = self._way(fields), self.puck.pos(fields) - self.arm.ee_pos(fields)
        return np.sqrt((way * way).sum(axis=1)), np.sqrt((reach * reach).sum(axis=1))


def make(reward: str = "dense", control: str = "ee_delta", meshes: str = "") -> Task:
    """Push to target with a `dense` or `sparse` reward."""
    return PushToTarget(reward, control, meshes)
