"""Lift cube: grasp a cube on the table and lift it."""

from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from embodied.spec import Stream
from robots.descriptions import description_path
from robots.kinematics.facts import load_facts
from simulators.grasp import STAGE_REWARD, Grasp, near
from simulators.objects import FreeObject
from simulators.scene import add_cube, table_scene
from simulators.tabletop import TabletopTask
from simulators.task import Array, Fields, Task, between

YAW_RAD = 0.3
LIFT_M, HOLD_STEPS = 0.10, 5


class LiftCube(TabletopTask):
    """An arm and a cube half as wide as the gripper opens: 4 cm and 0.1 kg for the Panda.

    Success is the cube lifted for five steps in a row, by 10 cm or three quarters of the height of the workspace,
    whichever is less. The dense reward pays the stages reached (approach, grasp, lift) in every step and success once.
    """

    name = "lift_cube"
    instructions = ("lift the red cube", "pick up the red cube", "raise the red block off the table")
    episode_steps = 60
    # A dense step pays up to 0.3, which for ever at a discount of 0.97 is worth 10. Success must pay more: else a cube
    # held just below the mark earns more.
    success_reward: ClassVar[dict[str, float]] = {"dense": 12.0, "sparse": 1.0}
    reset_draws = 3
    memory_columns = 1  # steps in a row with the cube lifted

    def __init__(
        self, reward: str = "dense", robot: str = "panda", control: str = "ee_delta", meshes: str = ""
    ) -> None:
        facts = load_facts(description_path(robot))
        self.low, self.high = facts.spawn
        self.width = facts.gripper_width[1] / 2
        self.half = self.width / 2
        self.lift = min(LIFT_M, 0.75 * (facts.workspace[1, 2] - self.half))
        scene = table_scene(robot, meshes)
        centre = (self.low + self.high) / 2
        mass = 0.1 * (self.width / 0.04) ** 3
        add_cube(scene, "cube", (centre[0], centre[1], self.half), half=self.half, mass=mass)
        streams = (
            Stream("cube_pos", (3,), unit="m", frame="base"),
            Stream("cube_quat", (4,), unit="1", frame="base", rotation="quat_wxyz"),
            Stream("cube_vel", (3,), unit="m/s", frame="base"),
            Stream("ee_to_cube", (3,), unit="m", frame="base"),
            Stream("held", (1,), unit="1"),
        )
        super().__init__(scene, robot, reward, control, gripper=True, observations=streams)
        self.cube = FreeObject(self.model, "cube")
        self.grasp = Grasp(self.arm, self.width)

    def arrange(self, u: Array, qpos: Array, choices: Array) -> dict[str, NDArray[Any]]:
        place, yaw = between(u[:, :2], self.low, self.high), between(u[:, 2], -YAW_RAD, YAW_RAD)
        self.cube.place(qpos, place, yaw)
        return {"cube_xy": place, "cube_yaw": yaw}

    def track(self, fields: Fields, own: Array) -> None:
        lifted = self.cube.height(fields) > self.half + self.lift
        own[:, 0] = np.where(lifted, own[:, 0] + 1.0, 0.0)

    def sense(self, fields: Fields, own: Array) -> dict[str, NDArray[Any]]:
        cube = self.cube.pos(fields)
        return {
            "cube_pos": cube.astype(np.float32),
            "cube_quat": self.cube.quat(fields).astype(np.float32),
            "cube_vel": self.cube.vel(fields).astype(np.float32),
            "ee_to_cube": (cube - self.arm.ee_pos(fields)).astype(np.float32),
            "held": (own / HOLD_STEPS).astype(np.float32),
        }

    def done(self, fields: Fields, own: Array) -> NDArray[np.bool_]:
        return own[:, 0] >= HOLD_STEPS

    def failure(self, fields: Fields, memory: Array) -> NDArray[np.bool_]:
        """The cube fell off the table."""
        return self.cube.height(fields) < -0.05

    def plan(self, fields: Fields, own: Array, command: Array) -> tuple[Array, Array]:
        """Go above the cube, descend around it, close, wait until the fingers rest on it, lift."""
        goal, around, holding = self.grasp.approach(fields, self.cube.pos(fields), command)
        goal[:, 2] = np.where(holding, self.arm.ee_pos(fields)[:, 2] + 0.2, goal[:, 2])
        return goal, np.where(around, -1.0, 1.0)

    def shaping(self, fields: Fields, own: Array, command: Array) -> Array:
        """Stages reached: up to 1 for the approach, 1 for a grasp, 4 for the lift."""
        offset = self.cube.pos(fields) - self.arm.ee_pos(fields)
        distance = np.sqrt((offset * offset).sum(axis=1))
        height = np.clip((self.cube.height(fields) - self.half) / self.lift, 0.0, 1.0)
        return STAGE_REWARD * (near(distance) + self.grasp.grasped(fields, distance, command) * (1.0 + 4.0 * height))


def make(reward: str = "dense", robot: str = "panda", control: str = "ee_delta", meshes: str = "") -> Task:
    """Lift cube with a `dense` or `sparse` reward."""
    return LiftCube(reward, robot, control, meshes)
