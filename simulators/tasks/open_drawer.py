"""Open drawer: take the knob of a drawer and pull the drawer open."""

from typing import Any, ClassVar

import mujoco
import numpy as np
from numpy.typing import NDArray

from embodied.spec import Stream
from simulators.grasp import STAGE_REWARD, Grasp, near
from simulators.objects import JointedObject
from simulators.scene import RED, add_fixture, add_part, table_scene
from simulators.tabletop import TabletopTask
from simulators.task import Array, Fields, Task, between

LOW, HIGH = (0.61, -0.14), (0.67, 0.14)
"""Place of the middle of the cabinet's front on the table, x and y; the drawer opens towards the arm, along -x."""
DEEP_M, WIDE_M, HIGH_M, WALL_M = 0.09, 0.08, 0.035, 0.004
"""Half the depth, width and height of the cabinet, and half the thickness of its walls."""
STEM_M, KNOB_M = 0.06, 0.012
"""Distance of the knob's middle from the front, and half its width."""
TRAVEL_M, DAMPING = 0.14, 15.0
OPEN_M, HOLD_STEPS = 0.10, 3


class OpenDrawer(TabletopTask):
    """A Panda and a cabinet with a drawer, whose knob of 2.4 cm lies between the opened fingers.

    Success is the drawer open by 10 cm for three steps in a row. The dense reward pays the stages reached (approach,
    grasp, opening) in every step and success once.
    """

    name = "open_drawer"
    instructions = (
        "open the drawer",
        "pull the drawer open",
        "take the red knob and pull it towards you",
        "pull out the drawer of the cabinet",
        "slide the drawer open by its red knob",
        "drawer open, please",
    )
    episode_steps = 60
    # A dense step pays up to 0.3, which for ever at a discount of 0.97 is worth 10. Success must pay more.
    success_reward: ClassVar[dict[str, float]] = {"dense": 12.0, "sparse": 1.0}
    reset_draws = 2
    memory_columns = 1  # steps in a row with the drawer open

    def __init__(self, reward: str = "dense", control: str = "ee_delta", meshes: str = "") -> None:
        scene = table_scene(meshes=meshes)
        _add_cabinet(scene)
        streams = (
            Stream("knob_pos", (3,), unit="m", frame="base"),
            Stream("ee_to_knob", (3,), unit="m", frame="base"),
            Stream("opened", (1,), unit="m"),
            Stream("opening_speed", (1,), unit="m/s"),
            Stream("held", (1,), unit="1"),
        )
        super().__init__(scene, "panda", reward, control, gripper=True, observations=streams)
        self.drawer = JointedObject(self.model, "drawer", "knob")
        self.grasp = Grasp(self.arm, 2 * KNOB_M)

    def arrange(self, u: Array, qpos: Array, choices: Array) -> dict[str, NDArray[Any]]:
        cabinet = np.zeros((len(u), 1, 3))
        cabinet[:, 0, :2] = between(u, LOW, HIGH)
        return {"mocap_pos": cabinet, "cabinet_xy": cabinet[:, 0, :2]}

    def track(self, fields: Fields, own: Array) -> None:
        own[:, 0] = np.where(self.drawer.moved(fields) > OPEN_M, own[:, 0] + 1.0, 0.0)

    def sense(self, fields: Fields, own: Array) -> dict[str, NDArray[Any]]:
        knob = self.drawer.pos(fields)
        return {
            "knob_pos": knob.astype(np.float32),
            "ee_to_knob": (knob - self.arm.ee_pos(fields)).astype(np.float32),
            "opened": self.drawer.moved(fields)[:, None].astype(np.float32),
            "opening_speed": self.drawer.speed(fields)[:, None].astype(np.float32),
            "held": (own / HOLD_STEPS).astype(np.float32),
        }

    def done(self, fields: Fields, own: Array) -> NDArray[np.bool_]:
        return own[:, 0] >= HOLD_STEPS

    def plan(self, fields: Fields, own: Array, command: Array) -> tuple[Array, Array]:
        """Go above the knob, descend around it, close, wait until the fingers rest on it, pull."""
        knob = self.drawer.pos(fields)
        goal, around, holding = self.grasp.approach(fields, knob, command)
        goal[:, 0] = np.where(holding, knob[:, 0] - 0.1, goal[:, 0])
        return goal, np.where(around, -1.0, 1.0)

    def shaping(self, fields: Fields, own: Array, command: Array) -> Array:
        """Stages reached: up to 1 for the approach, 1 for a grasp, 4 for the opening, held or not."""
        offset = self.drawer.pos(fields) - self.arm.ee_pos(fields)
        distance = np.sqrt((offset * offset).sum(axis=1))
        opened = np.clip(self.drawer.moved(fields) / OPEN_M, 0.0, 1.0)
        return STAGE_REWARD * (near(distance) + self.grasp.grasped(fields, distance, command) + 4.0 * opened)


def _add_cabinet(scene: mujoco.MjSpec) -> None:
    """Add a cabinet `cabinet` and, on a slide `drawer`, a drawer whose knob has the site `knob`.

    The origin of both is the middle of the front's lower edge; they reach along x.
    """
    box = mujoco.mjtGeom.mjGEOM_BOX
    wood, light = [0.45, 0.33, 0.24, 1.0], [0.82, 0.76, 0.66, 1.0]
    cabinet = add_fixture(scene, "cabinet")
    _add_walls(cabinet, "cabinet", (DEEP_M, WIDE_M, HIGH_M), HIGH_M, wood)
    add_part(cabinet, "cabinet_top", box, [DEEP_M, WIDE_M, WALL_M], pos=[DEEP_M, 0, 2 * HIGH_M - WALL_M], rgba=wood)

    # Damping alone slows the drawer: dry friction would keep the constraint solver busy even when nothing touches.
    drawer = cabinet.add_body(name="drawer")
    slide = mujoco.mjtJoint.mjJNT_SLIDE
    drawer.add_joint(name="drawer", type=slide, axis=[-1, 0, 0], range=[0, TRAVEL_M], limited=True, damping=DAMPING)
    inside = (DEEP_M - 2 * WALL_M, WIDE_M - 3 * WALL_M, HIGH_M - 3 * WALL_M)
    _add_walls(drawer, "drawer", inside, HIGH_M, light)
    add_part(drawer, "drawer_front", box, [WALL_M, WIDE_M, HIGH_M], pos=[-WALL_M, 0, HIGH_M], rgba=light, mass=0.3)
    stem = (STEM_M - KNOB_M) / 2
    add_part(drawer, "stem", box, [stem, 0.004, 0.004], pos=[-stem, 0, HIGH_M], rgba=wood)
    add_part(drawer, "knob", box, [KNOB_M, KNOB_M, 0.018], pos=[-STEM_M, 0, HIGH_M], rgba=RED, mass=0.05)
    drawer.add_site(name="knob", pos=[-STEM_M, 0, HIGH_M], size=[0.004] * 3, group=4)


def _add_walls(
    body: mujoco.MjsBody, name: str, half: tuple[float, float, float], middle: float, rgba: list[float]
) -> None:
    """Add a bottom, a back and two sides of a box of half sizes `half` around height `middle`, m."""
    deep, wide, high = half
    walls = {
        "bottom": ((deep, wide, WALL_M), (deep, 0.0, middle - high + WALL_M)),
        "back": ((WALL_M, wide, high), (2 * deep - WALL_M, 0.0, middle)),
        "left": ((deep, WALL_M, high), (deep, wide - WALL_M, middle)),
        "right": ((deep, WALL_M, high), (deep, WALL_M - wide, middle)),
    }
    for wall, (size, pos) in walls.items():
        add_part(body, f"{name}_{wall}", mujoco.mjtGeom.mjGEOM_BOX, size, pos=pos, rgba=rgba)


def make(reward: str = "dense", control: str = "ee_delta", meshes: str = "") -> Task:
    """Open drawer with a `dense` or `sparse` reward."""
    return OpenDrawer(reward, control, meshes)
