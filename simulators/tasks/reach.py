"""Reach: bring the end effector to a point, by joint deltas."""

import numpy as np
from numpy.typing import NDArray

from embodied.spec import AgentSpec, Stream
from simulators.arm import OPEN, Panda
from simulators.scene import add_marker, table_scene
from simulators.task import Array, Fields, Start, Task, between, body_spec, check_reward, start_uniforms

LOW, HIGH = (0.35, -0.25, 0.08), (0.62, 0.25, 0.45)
NEAR_M, HOLD_STEPS = 0.02, 3
STEP_RAD = 0.2
SUCCESS_REWARD = 1.0

# Columns of a memory row: the last two distances to the target, and the steps in a row that were near it.
DISTANCE, BEFORE, HELD = 0, 1, 2


class Reach:
    """A Panda, a marker, 20 Hz.

    Success is a distance below 2 cm for three steps in a row. The dense reward is ten times the way gained (m) and 1
    for success, the sparse one the 1 only.
    """

    substeps = 10
    memory_size = 3
    fields: tuple[str, ...] = (*Panda.fields, "mocap_pos")

    def __init__(self, reward: str = "dense") -> None:
        self.reward_kind = check_reward(reward, "reach")
        scene = table_scene()
        add_marker(scene, "target", radius=NEAR_M)
        self.model = scene.compile()
        self.arm = Panda(self.model)
        streams = (
            *Panda.streams,
            Stream("target_pos", (3,), unit="m", frame="base"),
            Stream("ee_to_target", (3,), unit="m", frame="base"),
            Stream("held", (1,), unit="1"),
        )
        agent = AgentSpec(streams, (Stream("joint_delta", (7,), unit="rad", limit=STEP_RAD),))
        self.spec = body_spec("reach", "reach the green marker", self.model, self.substeps, 50, agent)

    def start(self, seeds: NDArray[np.int64]) -> Start:
        u = start_uniforms(seeds, 10)
        target, joint_offset = between(u[:, :3], LOW, HIGH), between(u[:, 3:], -0.1, 0.1)
        qpos = np.tile(self.model.qpos0, (len(seeds), 1))
        self.arm.place(qpos, self.arm.chain.home + joint_offset)
        drawn = {"target_pos": target, "joint_offset": joint_offset}
        return Start({"qpos": qpos, "ctrl": qpos[:, : self.model.nu].copy(), "mocap_pos": target[:, None]}, drawn)

    def begin(self, fields: Fields, memory: Array) -> None:
        memory[:, DISTANCE] = memory[:, BEFORE] = np.linalg.norm(self._to_target(fields), axis=1)
        memory[:, HELD] = 0.0

    def control(self, fields: Fields, memory: Array, actions: NDArray[np.float32]) -> Array:
        control = np.full((len(actions), self.model.nu), OPEN)
        control[:, :7] = np.clip(self.arm.q(fields) + actions, self.arm.chain.lower, self.arm.chain.upper)
        return control

    def update(self, fields: Fields, memory: Array) -> None:
        memory[:, BEFORE] = memory[:, DISTANCE]
        memory[:, DISTANCE] = np.linalg.norm(self._to_target(fields), axis=1)
        memory[:, HELD] = np.where(memory[:, DISTANCE] < NEAR_M, memory[:, HELD] + 1.0, 0.0)

    def observe(self, fields: Fields, memory: Array) -> dict[str, NDArray[np.float32]]:
        streams = self.arm.observe(fields)
        streams["target_pos"] = fields["mocap_pos"][:, 0].astype(np.float32)
        streams["ee_to_target"] = self._to_target(fields).astype(np.float32)
        streams["held"] = (memory[:, HELD:] / HOLD_STEPS).astype(np.float32)
        return streams

    def reward(self, fields: Fields, memory: Array) -> NDArray[np.float32]:
        reward = SUCCESS_REWARD * self.success(fields, memory)
        if self.reward_kind == "dense":
            reward += 10.0 * (memory[:, BEFORE] - memory[:, DISTANCE])
        return reward.astype(np.float32)

    def success(self, fields: Fields, memory: Array) -> NDArray[np.bool_]:
        return memory[:, HELD] >= HOLD_STEPS

    def failure(self, fields: Fields, memory: Array) -> NDArray[np.bool_]:
        return np.zeros(len(memory), bool)

    def expert(self, fields: Fields, memory: Array) -> NDArray[np.float32]:
        delta = self.arm.reach_for(fields, fields["mocap_pos"][:, 0]) - self.arm.q(fields)
        largest = np.abs(delta).max(axis=1, keepdims=True)
        return (delta * np.minimum(1.0, STEP_RAD / np.maximum(largest, 1e-9))).astype(np.float32)

    def _to_target(self, fields: Fields) -> Array:
        return fields["mocap_pos"][:, 0] - self.arm.ee_pos(fields)


def make(reward: str = "dense") -> Task:
    """Reach with a `dense` or `sparse` reward."""
    return Reach(reward)
