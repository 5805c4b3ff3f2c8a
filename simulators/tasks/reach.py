"""Reach: bring the end effector to a point."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from embodied.spec import Stream
from simulators.scene import add_marker, table_scene
from simulators.tabletop import TabletopTask
from simulators.task import Array, Fields, Task, between

LOW, HIGH = (0.35, -0.25, 0.08), (0.62, 0.25, 0.45)
NEAR_M, HOLD_STEPS = 0.02, 3

# Columns of the task's memory: the last two distances to the target, and steps in a row near it.
DISTANCE, BEFORE, HELD = 0, 1, 2


class Reach(TabletopTask):
    """A Panda and a marker.

    Success is a distance below 2 cm for three steps in a row. The dense reward is ten times the approach (m) and 1 for
    success.
    """

    name = "reach"
    instructions = ("reach the green marker", "touch the green ball", "move the hand to the green marker")
    episode_steps = 50
    reset_draws = 3
    memory_columns = 3
    reset_rad = 0.1

    def __init__(self, reward: str = "dense", control: str = "joint_delta", meshes: str = "") -> None:
        scene = table_scene(meshes=meshes)
        add_marker(scene, "target", radius=NEAR_M)
        streams = (
            Stream("target_pos", (3,), unit="m", frame="base"),
            Stream("ee_to_target", (3,), unit="m", frame="base"),
            Stream("held", (1,), unit="1"),
        )
        super().__init__(scene, "panda", reward, control, gripper=False, observations=streams)
        self.fields = (*self.fields, "mocap_pos")

    def arrange(self, u: Array, qpos: Array, choices: Array) -> dict[str, NDArray[Any]]:
        return {"mocap_pos": between(u, LOW, HIGH)[:, None]}

    def prepare(self, fields: Fields, own: Array) -> None:
        own[:, DISTANCE] = own[:, BEFORE] = np.linalg.norm(self._to_target(fields), axis=1)

    def track(self, fields: Fields, own: Array) -> None:
        own[:, BEFORE] = own[:, DISTANCE]
        own[:, DISTANCE] = np.linalg.norm(self._to_target(fields), axis=1)
        own[:, HELD] = np.where(own[:, DISTANCE] < NEAR_M, own[:, HELD] + 1.0, 0.0)

    def sense(self, fields: Fields, own: Array) -> dict[str, NDArray[Any]]:
        return {
            "target_pos": fields["mocap_pos"][:, 0].astype(np.float32),
            "ee_to_target": self._to_target(fields).astype(np.float32),
            "held": (own[:, HELD:] / HOLD_STEPS).astype(np.float32),
        }

    def done(self, fields: Fields, own: Array) -> NDArray[np.bool_]:
        return own[:, HELD] >= HOLD_STEPS

    def shaping(self, fields: Fields, own: Array, command: Array) -> Array:
        return 10.0 * (own[:, BEFORE] - own[:, DISTANCE])

    def plan(self, fields: Fields, own: Array, command: Array) -> tuple[Array, Array]:
        return fields["mocap_pos"][:, 0], command

    def _to_target(self, fields: Fields) -> Array:
        return fields["mocap_pos"][:, 0] - self.arm.ee_pos(fields)


def make(reward: str = "dense", control: str = "joint_delta", meshes: str = "") -> Task:
    """Reach with a `dense` or `sparse` reward."""
    return Reach(reward, control, meshes)
