"""Touch post: bring the end effector to the top of a post."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from embodied.spec import Stream
from simulators.objects import FreeObject
from simulators.scene import add_cylinder, table_scene
from simulators.tabletop import TabletopTask
from simulators.task import Array, Fields, Task, between

RADIUS_M, HALF_M = 0.025, 0.03
NEAR_M, HOLD_STEPS = 0.025, 3


class TouchPost(TabletopTask):
    """An arm and a post 6 cm high. Success is the end effector within 2.5 cm above its top for three steps in a row."""

    name = "touch_post"
    instructions = ("touch the green post", "put the hand on the post", "tap the top of the green cylinder")
    episode_steps = 50
    reset_draws = 2
    memory_columns = 1  # steps in a row near the top

    def __init__(self, reward: str, robot: str, control: str) -> None:
        scene = table_scene(robot)
        add_cylinder(scene, "post", (0.35, 0.0, HALF_M), radius=RADIUS_M, half=HALF_M, mass=0.5)
        streams = (Stream("ee_to_top", (3,), unit="m", frame="base"), Stream("held", (1,), unit="1"))
        super().__init__(scene, robot, reward, control, gripper=False, observations=streams)
        self.post = FreeObject(self.model, "post")

    def arrange(self, u: Array, qpos: Array, choices: Array) -> dict[str, NDArray[Any]]:
        place = between(u, *self.arm.facts.spawn)
        self.post.place(qpos, place, np.zeros(len(u)))
        return {"post_xy": place}

    def sense(self, fields: Fields, own: Array) -> dict[str, NDArray[Any]]:
        return {"ee_to_top": self._way(fields).astype(np.float32), "held": (own / HOLD_STEPS).astype(np.float32)}

    def track(self, fields: Fields, own: Array) -> None:
        near = np.linalg.norm(self._way(fields), axis=1) < NEAR_M
        own[:, 0] = np.where(near, own[:, 0] + 1.0, 0.0)

    def done(self, fields: Fields, own: Array) -> NDArray[np.bool_]:
        return own[:, 0] >= HOLD_STEPS

    def shaping(self, fields: Fields, own: Array, command: Array) -> Array:
        return -0.1 * np.linalg.norm(self._way(fields), axis=1)

    def plan(self, fields: Fields, own: Array, command: Array) -> tuple[Array, Array]:
        return self.arm.ee_pos(fields) + self._way(fields), command

    def _way(self, fields: Fields) -> Array:
        """[B, 3] from the end effector to a point 1.5 cm above the top, m."""
        return self.post.pos(fields) + np.array([0.0, 0.0, HALF_M + 0.015]) - self.arm.ee_pos(fields)


def make(reward: str = "dense", robot: str = "my_lab.robots.crane", control: str = "ee_delta") -> Task:
    """Touch post with a `dense` or `sparse` reward."""
    return TouchPost(reward, robot, control)
