"""Reach colour: bring the end effector above the one of three cubes that the instruction names."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from embodied.errors import ConfigError, nearest
from embodied.spec import Stream
from robots.descriptions import description_path
from robots.kinematics.facts import load_facts
from simulators.objects import FreeObject, positions, shuffled, spaced
from simulators.scene import BLUE, GREEN, RED, add_cube, table_scene
from simulators.tabletop import TabletopTask
from simulators.task import Array, Fields, Task, between

COLOURS = {"red": RED, "green": GREEN, "blue": BLUE}
YAW_RAD = 0.3
HOLD_STEPS = 3
SAID = ("named", "other")

# Columns of the task's memory: the last two distances to the named cube's point, and the steps in a row that the end
# effector was near it, and near another one.
DISTANCE, BEFORE, HELD, WRONG = 0, 1, 2, 3


class ReachColor(TabletopTask):
    """An arm and three cubes half as wide as the gripper opens, far enough apart for it: 4 cm and 10 cm for the Panda.

    Success is the end effector within 3 cm (all lengths for the Panda) of a point 4.5 cm above the centre of the named
    cube for three steps in a row; being as near to another cube for as long is a failure. The named cube shows in
    `instruction` and, for policies that read no words, in `goal`. The dense reward is ten times the approach (m) and 1
    for success.

    With `said="other"` the instruction has one of the two other colours, and nothing else changes: a policy that
    follows the words fails. It measures whether a policy reads its instruction.
    """

    name = "reach_color"
    instructions = (
        "reach the {colour} cube",
        "touch the {colour} block",
        "move the hand over to the {colour} cube",
        "go to the cube that is {colour}",
        "point at the {colour} one",
        "{colour} cube, please",
    )
    episode_steps = 30
    reset_draws = 14
    memory_columns = 4
    choices = 1

    def __init__(
        self,
        reward: str = "dense",
        robot: str = "panda",
        control: str = "ee_delta",
        meshes: str = "",
        said: str = "named",
    ) -> None:
        if said not in SAID:
            raise ConfigError(f"said cannot be {said!r}", "task.said", nearest(said, SAID))
        self.said = said
        facts = load_facts(description_path(robot))
        self.low, self.high = facts.spawn
        self.width = facts.gripper_width[1] / 2
        self.hover, self.near = np.array([0.0, 0.0, 1.125 * self.width]), 0.75 * self.width
        scene = table_scene(robot, meshes)
        centre, half = (self.low + self.high) / 2, self.width / 2
        for colour, rgba in COLOURS.items():
            mass = 0.1 * (self.width / 0.04) ** 3
            add_cube(scene, colour, (centre[0], centre[1], half), half=half, mass=mass, rgba=rgba)
        streams = (
            *(Stream(f"{colour}_pos", (3,), unit="m", frame="base") for colour in COLOURS),
            *(Stream(f"ee_to_{colour}", (3,), unit="m", frame="base") for colour in COLOURS),
            Stream("goal", (3,), unit="1"),
            Stream("held", (1,), unit="1"),
        )
        super().__init__(scene, robot, reward, control, gripper=False, observations=streams)
        self.cubes = [FreeObject(self.model, colour) for colour in COLOURS]

    def words(self) -> tuple[dict[str, str], ...]:
        return tuple({"colour": colour} for colour in COLOURS)

    def spoken(self, u: Array, choices: Array) -> Array:
        further = 1 + np.floor(u[:, 13] * (len(COLOURS) - 1)) if self.said == "other" else 0
        return (choices[:, 0] + further) % len(COLOURS)

    def arrange(self, u: Array, qpos: Array, choices: Array) -> dict[str, NDArray[Any]]:
        across = spaced(u[:, :3], self.low[1], self.high[1], 2.5 * self.width)
        along = between(u[:, 3:6], self.low[0], self.high[0])
        places = shuffled(u[:, 6:9], np.stack([along, across], axis=2))
        yaws = between(u[:, 9:12], -YAW_RAD, YAW_RAD)
        for k, cube in enumerate(self.cubes):
            cube.place(qpos, places[:, k], yaws[:, k])
        choices[:, 0] = np.floor(u[:, 12] * len(COLOURS))
        return {"cubes_xy": places, "cubes_yaw": yaws, "named": choices[:, 0].astype(np.int32)}

    def prepare(self, fields: Fields, own: Array) -> None:
        distance = self._distances(fields)[np.arange(len(own)), self._named(fields)]
        own[:, DISTANCE] = own[:, BEFORE] = distance

    def track(self, fields: Fields, own: Array) -> None:
        rows, named, distances = np.arange(len(own)), self._named(fields), self._distances(fields)
        own[:, BEFORE] = own[:, DISTANCE]
        own[:, DISTANCE] = distances[rows, named]
        near = distances < self.near
        right = near[rows, named]
        own[:, HELD] = np.where(right, own[:, HELD] + 1.0, 0.0)
        own[:, WRONG] = np.where(near.any(axis=1) & ~right, own[:, WRONG] + 1.0, 0.0)

    def sense(self, fields: Fields, own: Array) -> dict[str, NDArray[Any]]:
        ee = self.arm.ee_pos(fields)
        cubes = {colour: cube.pos(fields) for colour, cube in zip(COLOURS, self.cubes, strict=True)}
        return {
            **{f"{colour}_pos": pos.astype(np.float32) for colour, pos in cubes.items()},
            **{f"ee_to_{colour}": (pos - ee).astype(np.float32) for colour, pos in cubes.items()},
            "goal": np.eye(len(COLOURS), dtype=np.float32)[self._named(fields)],
            "held": (own[:, HELD, None] / HOLD_STEPS).astype(np.float32),
        }

    def done(self, fields: Fields, own: Array) -> NDArray[np.bool_]:
        return own[:, HELD] >= HOLD_STEPS

    def failure(self, fields: Fields, memory: Array) -> NDArray[np.bool_]:
        """Another cube was reached, or one fell off the table."""
        lowest = positions(self.cubes, fields)[:, :, 2].min(axis=1)
        return (lowest < -0.05) | (memory[:, self.own][:, WRONG] >= HOLD_STEPS)

    def shaping(self, fields: Fields, own: Array, command: Array) -> Array:
        return 10.0 * (own[:, BEFORE] - own[:, DISTANCE])

    def plan(self, fields: Fields, own: Array, command: Array) -> tuple[Array, Array]:
        cubes = positions(self.cubes, fields)
        return cubes[np.arange(len(own)), self._named(fields)] + self.hover, command

    def _named(self, fields: Fields) -> NDArray[np.intp]:
        return fields["userdata"][:, 1].astype(np.intp)

    def _distances(self, fields: Fields) -> Array:
        """[B, 3] from the end effector to the points above the cubes."""
        offset = positions(self.cubes, fields) + self.hover - self.arm.ee_pos(fields)[:, None]
        return np.sqrt((offset * offset).sum(axis=2))


def make(
    reward: str = "dense", robot: str = "panda", control: str = "ee_delta", meshes: str = "", said: str = "named"
) -> Task:
    """Reach colour with a `dense` or `sparse` reward; the instruction says the `named` colour or an `other` one."""
    return ReachColor(reward, robot, control, meshes, said)
