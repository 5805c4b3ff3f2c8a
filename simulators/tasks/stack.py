"""Stack: put one cube on another."""

from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from embodied.spec import Stream
from robots.descriptions import description_path
from robots.kinematics.facts import load_facts
from simulators.grasp import Grasp
from simulators.objects import FreeObject, shuffled, spaced
from simulators.scene import GREEN, RED, add_cube, table_scene
from simulators.tabletop import TabletopTask
from simulators.task import Array, Fields, Task, between

YAW_RAD = 0.3
REST_MPS, HOLD_STEPS = 0.03, 5


class Stack(TabletopTask):
    """An arm and two cubes half as wide as the gripper opens: 4 cm and 0.1 kg for the Panda.

    Success is the red cube on the green one, their centres at most a third of a cube aside, at rest, and the gripper
    open, for five steps in a row. The dense reward pays the stages reached in every step and success once.
    """

    name = "stack"
    instructions = (
        "stack the red cube on the green cube",
        "put the red cube on top of the green one",
        "place the red block onto the green block",
        "build a tower: green below, red above",
        "set the red cube down on the green cube",
    )
    episode_steps = 80
    # A dense step pays up to 0.35, which for ever at a discount of 0.97 is worth 12. Success must pay more.
    success_reward: ClassVar[dict[str, float]] = {"dense": 15.0, "sparse": 1.0}
    reset_draws = 8
    memory_columns = 1  # steps in a row with the red cube on the green one

    def __init__(
        self, reward: str = "dense", robot: str = "panda", control: str = "ee_delta", meshes: str = ""
    ) -> None:
        facts = load_facts(description_path(robot))
        self.low, self.high = facts.spawn
        self.width = facts.gripper_width[1] / 2
        self.within = self.width / 3
        scene = table_scene(robot, meshes)
        centre, half = (self.low + self.high) / 2, self.width / 2
        for name, rgba in (("red", RED), ("green", GREEN)):
            mass = 0.1 * (self.width / 0.04) ** 3
            add_cube(scene, name, (centre[0], centre[1], half), half=half, mass=mass, rgba=rgba)
        streams = (
            Stream("red_pos", (3,), unit="m", frame="base"),
            Stream("red_quat", (4,), unit="1", frame="base", rotation="quat_wxyz"),
            Stream("red_vel", (3,), unit="m/s", frame="base"),
            Stream("green_pos", (3,), unit="m", frame="base"),
            Stream("ee_to_red", (3,), unit="m", frame="base"),
            Stream("red_to_place", (3,), unit="m", frame="base"),
            Stream("held", (1,), unit="1"),
        )
        super().__init__(scene, robot, reward, control, gripper=True, observations=streams)
        self.red, self.green = FreeObject(self.model, "red"), FreeObject(self.model, "green")
        self.grasp = Grasp(self.arm, self.width)

    def arrange(self, u: Array, qpos: Array, choices: Array) -> dict[str, NDArray[Any]]:
        across = spaced(u[:, :2], self.low[1], self.high[1], 2.5 * self.width)
        along = between(u[:, 2:4], self.low[0], self.high[0])
        places = shuffled(u[:, 4:6], np.stack([along, across], axis=2))
        yaws = between(u[:, 6:8], -YAW_RAD, YAW_RAD)
        for k, cube in enumerate((self.red, self.green)):
            cube.place(qpos, places[:, k], yaws[:, k])
        return {"cubes_xy": places, "cubes_yaw": yaws}

    def track(self, fields: Fields, own: Array) -> None:
        red = self.red.pos(fields)
        resting = (np.abs(self.red.vel(fields)) < REST_MPS).all(axis=1)
        placed = self.grasp.placed(red, self._place(fields), self.within)
        own[:, 0] = np.where(placed & resting & self.grasp.open(fields), own[:, 0] + 1.0, 0.0)

    def sense(self, fields: Fields, own: Array) -> dict[str, NDArray[Any]]:
        red = self.red.pos(fields)
        return {
            "red_pos": red.astype(np.float32),
            "red_quat": self.red.quat(fields).astype(np.float32),
            "red_vel": self.red.vel(fields).astype(np.float32),
            "green_pos": self.green.pos(fields).astype(np.float32),
            "ee_to_red": (red - self.arm.ee_pos(fields)).astype(np.float32),
            "red_to_place": (self._place(fields) - red).astype(np.float32),
            "held": (own / HOLD_STEPS).astype(np.float32),
        }

    def done(self, fields: Fields, own: Array) -> NDArray[np.bool_]:
        return own[:, 0] >= HOLD_STEPS

    def failure(self, fields: Fields, memory: Array) -> NDArray[np.bool_]:
        """A cube fell off the table."""
        return np.minimum(self.red.height(fields), self.green.height(fields)) < -0.05

    def shaping(self, fields: Fields, own: Array, command: Array) -> Array:
        return self.grasp.put_reward(fields, self.red.pos(fields), self._place(fields), command, self.within)

    def plan(self, fields: Fields, own: Array, command: Array) -> tuple[Array, Array]:
        return self.grasp.put(fields, self.red.pos(fields), self._place(fields), command, self.within)

    def _place(self, fields: Fields) -> Array:
        """[B, 3] m, place of the red cube on the green one."""
        place = self.green.pos(fields).copy()
        place[:, 2] += self.width
        return place


def make(reward: str = "dense", robot: str = "panda", control: str = "ee_delta", meshes: str = "") -> Task:
    """Stack with a `dense` or `sparse` reward."""
    return Stack(reward, robot, control, meshes)
