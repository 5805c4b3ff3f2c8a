"""Pick and place: put the object that the instruction names on the plate that it names."""

from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from embodied.spec import Stream
from simulators.grasp import Grasp
from simulators.objects import FreeObject, positions, shuffled, spaced
from simulators.scene import add_ball, add_cube, add_cylinder, add_plate, table_scene
from simulators.tabletop import TabletopTask
from simulators.task import Array, Fields, Task, between

OBJECTS = ("red cube", "green cylinder", "blue ball")
PLATES = {"yellow": (0.93, 0.78, 0.2, 1.0), "purple": (0.58, 0.36, 0.72, 1.0), "white": (0.94, 0.94, 0.92, 1.0)}
PAIRS = [(thing, plate) for thing in range(len(OBJECTS)) for plate in range(len(PLATES))]
"""Values of choice 0: an object and a plate."""
HALF_M, WIDTH_M, PLATE_M = 0.02, 0.04, 0.055
# Two rows of three places each, x and y; along a row, places are so far apart that an open gripper fits between.
ROWS, ACROSS, GAP_M = ((0.38, 0.46), (0.56, 0.64)), (-0.22, 0.22), 0.125
YAW_RAD = 0.3
WITHIN_M, REST_MPS, HOLD_STEPS = 0.04, 0.03, 5


class PickPlace(TabletopTask):
    """A Panda; a cube, a cylinder and a ball, all 4 cm wide and high; three plates of 11 cm, drawn on the table.

    Success is the named object on the named plate, its centre at most 4 cm from the plate's, at rest, and the gripper
    open, for five steps in a row. The named object and plate show in `instruction` and, for policies that read no
    words, in `goal`, `ee_to_object` and `object_to_place`. The dense reward pays the stages reached in every step and
    success once.
    """

    name = "pick_place"
    instructions = (
        "put the {thing} on the {plate} plate",
        "place the {thing} onto the {plate} plate",
        "move the {thing} to the {plate} plate",
        "pick up the {thing}, drop it on the {plate} plate",
        "the {thing} goes on the {plate} plate",
    )
    episode_steps = 80
    # A dense step pays up to 0.35, which for ever at a discount of 0.97 is worth 12. Success must pay more.
    success_reward: ClassVar[dict[str, float]] = {"dense": 15.0, "sparse": 1.0}
    reset_draws = 22
    memory_columns = 1  # steps in a row with the object on the plate
    choices = 1

    def __init__(self, reward: str = "dense", control: str = "ee_delta", meshes: str = "") -> None:
        scene = table_scene(meshes=meshes)
        for plate, rgba in PLATES.items():
            add_plate(scene, plate, PLATE_M, rgba)
        at = (0.5, 0.0, HALF_M)
        add_cube(scene, OBJECTS[0], at, half=HALF_M)
        add_cylinder(scene, OBJECTS[1], at, radius=HALF_M, half=HALF_M)
        add_ball(scene, OBJECTS[2], at, radius=HALF_M)
        streams = (
            *(Stream(f"{name.split()[1]}_pos", (3,), unit="m", frame="base") for name in OBJECTS),
            *(Stream(f"{plate}_plate_pos", (3,), unit="m", frame="base") for plate in PLATES),
            Stream("goal", (6,), unit="1"),
            Stream("ee_to_object", (3,), unit="m", frame="base"),
            Stream("object_to_place", (3,), unit="m", frame="base"),
            Stream("held", (1,), unit="1"),
        )
        super().__init__(scene, "panda", reward, control, gripper=True, observations=streams)
        self.fields = (*self.fields, "mocap_pos")
        self.things = [FreeObject(self.model, name) for name in OBJECTS]
        self.grasp = Grasp(self.arm, WIDTH_M)
        self._pairs = np.array(PAIRS)
        # One row per pair: the object's one-hot code, then the plate's.
        self._codes = np.concatenate([np.eye(3)[self._pairs[:, 0]], np.eye(3)[self._pairs[:, 1]]], 1, dtype=np.float32)

    def words(self) -> list[dict[str, str]]:
        plates = list(PLATES)
        return [{"thing": OBJECTS[thing], "plate": plates[plate]} for thing, plate in PAIRS]

    def arrange(self, u: Array, qpos: Array, choices: Array) -> dict[str, NDArray[Any]]:
        along = [between(u[:, 3 * row : 3 * row + 3], *ROWS[row]) for row in range(2)]
        across = [spaced(u[:, 6 + 3 * row : 9 + 3 * row], *ACROSS, GAP_M) for row in range(2)]
        places = shuffled(u[:, 12:18], np.stack([np.concatenate(along, 1), np.concatenate(across, 1)], axis=2))
        yaws = between(u[:, 18:21], -YAW_RAD, YAW_RAD)
        for k, thing in enumerate(self.things):
            thing.place(qpos, places[:, k], yaws[:, k])
        choices[:, 0] = np.floor(u[:, 21] * len(PAIRS))
        plates = np.zeros((len(u), 3, 3))
        plates[:, :, :2] = places[:, 3:]
        pair = self._pairs[choices[:, 0].astype(np.intp)]
        return {
            "mocap_pos": plates,
            "objects_xy": places[:, :3],
            "objects_yaw": yaws,
            "named": pair.astype(np.int32),
        }

    def track(self, fields: Fields, own: Array) -> None:
        pos, place = self._named(fields)
        velocity = np.stack([thing.vel(fields) for thing in self.things], axis=1)
        resting = (np.abs(velocity[np.arange(len(own)), self._pair(fields)[:, 0]]) < REST_MPS).all(axis=1)
        placed = self.grasp.placed(pos, place, WITHIN_M)
        own[:, 0] = np.where(placed & resting & self.grasp.open(fields), own[:, 0] + 1.0, 0.0)

    def sense(self, fields: Fields, own: Array) -> dict[str, NDArray[Any]]:
        pos, place = self._named(fields)
        shapes = {name.split()[1]: thing.pos(fields) for name, thing in zip(OBJECTS, self.things, strict=True)}
        plates = {plate: fields["mocap_pos"][:, k] for k, plate in enumerate(PLATES)}
        return {
            **{f"{name}_pos": at.astype(np.float32) for name, at in shapes.items()},
            **{f"{plate}_plate_pos": at.astype(np.float32) for plate, at in plates.items()},
            "goal": self._codes[fields["userdata"][:, 1].astype(np.intp)],
            "ee_to_object": (pos - self.arm.ee_pos(fields)).astype(np.float32),
            "object_to_place": (place - pos).astype(np.float32),
            "held": (own / HOLD_STEPS).astype(np.float32),
        }

    def done(self, fields: Fields, own: Array) -> NDArray[np.bool_]:
        return own[:, 0] >= HOLD_STEPS

    def failure(self, fields: Fields, memory: Array) -> NDArray[np.bool_]:
        """An object fell off the table."""
        lowest: Array = positions(self.things, fields)[:, :, 2].min(axis=1)
        return lowest < -0.05

    def shaping(self, fields: Fields, own: Array, command: Array) -> Array:
        return self.grasp.put_reward(fields, *self._named(fields), command, WITHIN_M)

    def plan(self, fields: Fields, own: Array, command: Array) -> tuple[Array, Array]:
        return self.grasp.put(fields, *self._named(fields), command, WITHIN_M)

    def _pair(self, fields: Fields) -> NDArray[np.intp]:
        """[B, 2] indices of the named object and plate."""
        pairs: NDArray[np.intp] = self._pairs[fields["userdata"][:, 1].astype(np.intp)]
        return pairs

    def _named(self, fields: Fields) -> tuple[Array, Array]:
        """[B, 3] position of the named object, and [B, 3] its place, m."""
        rows, pair = np.arange(len(fields["userdata"])), self._pair(fields)
        place = fields["mocap_pos"][rows, pair[:, 1]]
        place[:, 2] = HALF_M
        return positions(self.things, fields)[rows, pair[:, 0]], place


def make(reward: str = "dense", control: str = "ee_delta", meshes: str = "") -> Task:
    """Pick and place with a `dense` or `sparse` reward."""
    return PickPlace(reward, control, meshes)
