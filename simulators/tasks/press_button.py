"""Press button: push a button down with the closed gripper."""

from typing import Any

import mujoco
import numpy as np
from numpy.typing import NDArray

from embodied.spec import Stream
from robots.descriptions import description_path
from robots.kinematics.facts import load_facts
from simulators.objects import JointedObject
from simulators.scene import RED, add_fixture, add_part, table_scene
from simulators.tabletop import TabletopTask
from simulators.task import Array, Fields, Task, between

HOUSING_M, RADIUS_M, TOP_M, TRAVEL_M = 0.02, 0.025, 0.06, 0.012
"""Half the height of the housing; radius of the button, height of its top above the table, and its travel."""
SPRING_NPM, DAMPING = 200.0, 4.0
PRESSED_M, HOLD_STEPS = 0.009, 3
OVER_M, ASIDE_M = 0.05, 0.012
"""Height of the expert above the button, and its largest distance from the axis while it presses."""

# Columns of the task's memory: the last two distances of the end effector to the pressed button, and steps in a row
# with the button pressed.
DISTANCE, BEFORE, HELD = 0, 1, 2


class PressButton(TabletopTask):
    """An arm with its gripper closed, and a button of 5 cm on a spring, which gives way by 1.2 cm.

    Success is the button pressed by 9 mm for three steps in a row. The dense reward is ten times the approach (m) of
    the end effector to the top of the pressed button, and 1 for success.
    """

    name = "press_button"
    instructions = (
        "press the red button",
        "push the button down",
        "hit the red button on the box",
        "hold the red button pressed",
        "push down the red knob",
        "button down, please",
    )
    episode_steps = 40
    reset_draws = 2
    memory_columns = 3
    resting_grip = -1.0

    def __init__(
        self, reward: str = "dense", robot: str = "panda", control: str = "ee_delta", meshes: str = ""
    ) -> None:
        self.low, self.high = load_facts(description_path(robot)).spawn
        scene = table_scene(robot, meshes)
        _add_button(scene)
        streams = (
            Stream("button_pos", (3,), unit="m", frame="base"),
            Stream("ee_to_button", (3,), unit="m", frame="base"),
            Stream("pressed", (1,), unit="m"),
            Stream("held", (1,), unit="1"),
        )
        super().__init__(scene, robot, reward, control, gripper=False, observations=streams)
        self.button = JointedObject(self.model, "button", "button")

    def arrange(self, u: Array, qpos: Array, choices: Array) -> dict[str, NDArray[Any]]:
        housing = np.zeros((len(u), 1, 3))
        housing[:, 0, :2] = between(u, self.low, self.high)
        return {"mocap_pos": housing, "button_xy": housing[:, 0, :2]}

    def prepare(self, fields: Fields, own: Array) -> None:
        own[:, DISTANCE] = own[:, BEFORE] = self._distance(fields)

    def track(self, fields: Fields, own: Array) -> None:
        own[:, BEFORE], own[:, DISTANCE] = own[:, DISTANCE], self._distance(fields)
        own[:, HELD] = np.where(self.button.moved(fields) > PRESSED_M, own[:, HELD] + 1.0, 0.0)

    def sense(self, fields: Fields, own: Array) -> dict[str, NDArray[Any]]:
        button = self.button.pos(fields)
        return {
            "button_pos": button.astype(np.float32),
            "ee_to_button": (button - self.arm.ee_pos(fields)).astype(np.float32),
            "pressed": self.button.moved(fields)[:, None].astype(np.float32),
            "held": (own[:, HELD:] / HOLD_STEPS).astype(np.float32),
        }

    def done(self, fields: Fields, own: Array) -> NDArray[np.bool_]:
        return own[:, HELD] >= HOLD_STEPS

    def shaping(self, fields: Fields, own: Array, command: Array) -> Array:
        return 10.0 * (own[:, BEFORE] - own[:, DISTANCE])

    def plan(self, fields: Fields, own: Array, command: Array) -> tuple[Array, Array]:
        """Go above the button, then down along its axis."""
        goal = self._pressed(fields)
        aside = goal[:, :2] - self.arm.ee_pos(fields)[:, :2]
        far = np.sqrt((aside * aside).sum(axis=1)) > ASIDE_M
        goal[:, 2] = np.where(far, TOP_M + OVER_M, goal[:, 2] - TRAVEL_M)
        return goal, command

    def _pressed(self, fields: Fields) -> Array:
        """[B, 3] m, the top of the button once it is pressed."""
        goal = self.button.pos(fields).copy()
        goal[:, 2] = TOP_M - TRAVEL_M
        return goal

    def _distance(self, fields: Fields) -> Array:
        """[B] m, from the end effector to the top of the pressed button."""
        offset = self._pressed(fields) - self.arm.ee_pos(fields)
        return np.sqrt((offset * offset).sum(axis=1))


def _add_button(scene: mujoco.MjSpec) -> None:
    """Add a housing `housing` and, on a slide `button`, a button whose top has the site `button`."""
    box, cylinder = mujoco.mjtGeom.mjGEOM_BOX, mujoco.mjtGeom.mjGEOM_CYLINDER
    housing = add_fixture(scene, "housing")
    add_part(housing, "housing", box, [0.045, 0.045, HOUSING_M], pos=[0, 0, HOUSING_M], rgba=[0.9, 0.78, 0.25, 1])
    # The spring alone holds the button: its weight is compensated.
    button = housing.add_body(name="button", pos=[0, 0, TOP_M], gravcomp=1)
    button.add_joint(
        name="button",
        type=mujoco.mjtJoint.mjJNT_SLIDE,
        axis=[0, 0, -1],
        range=[0, TRAVEL_M],
        limited=True,
        stiffness=SPRING_NPM,
        damping=DAMPING,
    )
    half = (TOP_M - HOUSING_M) / 2
    add_part(button, "button", cylinder, [RADIUS_M, half, 0], pos=[0, 0, -half], rgba=RED, mass=0.05)
    button.add_site(name="button", size=[0.004] * 3, group=4)


def make(reward: str = "dense", robot: str = "panda", control: str = "ee_delta", meshes: str = "") -> Task:
    """Press button with a `dense` or `sparse` reward."""
    return PressButton(reward, robot, control, meshes)
