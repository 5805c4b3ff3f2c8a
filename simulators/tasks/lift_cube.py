"""Lift cube: grasp a cube on the table and lift it, by end-effector deltas and a gripper command."""

import numpy as np
from numpy.typing import NDArray

from embodied.spec import AgentSpec, Stream
from simulators.arm import OPEN, Panda
from simulators.scene import add_cube, table_scene
from simulators.task import Array, Fields, Start, Task, between, body_spec, check_reward, start_uniforms

HALF_M = 0.02
LOW, HIGH = (0.40, -0.15), (0.60, 0.15)
YAW_RAD = 0.3
LIFT_M, HOLD_STEPS = 0.10, 5
STEP_M, LEASH_M = 0.04, 0.08
# Where the end effector's target may be, m. The fingers just clear the table at the lowest: a target below it would
# have to be brought up again before anything moves.
WORKSPACE_LOW, WORKSPACE_HIGH = np.array([0.25, -0.40, 0.012]), np.array([0.75, 0.40, 0.50])
# A dense step pays up to 0.3, so success must pay more than 10, what those are worth for ever at a discount of 0.97:
# else a cube held just below the mark earns more.
STAGE_REWARD, SUCCESS_REWARD = 0.05, {"dense": 12.0, "sparse": 1.0}

# Columns of a memory row: the end effector's target, the gripper command (1 open, -1 closed), and the steps in a row
# that the cube was lifted.
TARGET, COMMAND, HELD = slice(0, 3), 3, 4


class LiftCube:
    """A Panda, a 4 cm cube of 0.1 kg, 20 Hz.

    Actions: the end effector's target moves by up to 4 cm per axis and step and is kept within 8 cm of the actual
    position; the gripper command asks for a width from 0 (-1) to 8 cm (1). Success is the cube 10 cm above its place
    on the table for five steps in a row. The dense reward pays the stages reached (approach, grasp, lift) in every
    step and success once, the sparse one is 1 for success.
    """

    substeps = 10
    memory_size = 5
    fields: tuple[str, ...] = Panda.fields

    def __init__(self, reward: str = "dense") -> None:
        self.reward_kind = check_reward(reward, "lift_cube")
        scene = table_scene()
        add_cube(scene, "cube", (0.5, 0.0, HALF_M), half=HALF_M)
        self.model = scene.compile()
        self.arm = Panda(self.model)
        joint = self.model.joint("cube")
        self._pos = slice(joint.qposadr[0], joint.qposadr[0] + 3)
        self._quat = slice(joint.qposadr[0] + 3, joint.qposadr[0] + 7)
        self._vel = slice(joint.dofadr[0], joint.dofadr[0] + 3)
        streams = (
            *Panda.streams,
            Stream("gripper_width", (1,), unit="m"),
            Stream("gripper_command", (1,), unit="1"),
            Stream("ee_target_offset", (3,), unit="m", frame="base"),
            Stream("cube_pos", (3,), unit="m", frame="base"),
            Stream("cube_quat", (4,), unit="1", frame="base", rotation="quat_wxyz"),
            Stream("cube_vel", (3,), unit="m/s", frame="base"),
            Stream("ee_to_cube", (3,), unit="m", frame="base"),
            Stream("held", (1,), unit="1"),
        )
        actions = (
            Stream("ee_delta", (3,), unit="m", frame="base", limit=STEP_M),
            Stream("gripper", (1,), unit="1", limit=1.0),
        )
        agent = AgentSpec(streams, actions)
        self.spec = body_spec("lift_cube", "lift the red cube", self.model, self.substeps, 60, agent)

    def start(self, seeds: NDArray[np.int64]) -> Start:
        u = start_uniforms(seeds, 10)
        place, yaw = between(u[:, :2], LOW, HIGH), between(u[:, 2], -YAW_RAD, YAW_RAD)
        joint_offset = between(u[:, 3:], -0.05, 0.05)
        qpos = np.tile(self.model.qpos0, (len(seeds), 1))
        self.arm.place(qpos, self.arm.chain.home + joint_offset)
        qpos[:, self._pos.start : self._pos.start + 2] = place
        qpos[:, self._quat] = 0.0
        qpos[:, self._quat.start], qpos[:, self._quat.stop - 1] = np.cos(yaw / 2), np.sin(yaw / 2)
        drawn = {"cube_xy": place, "cube_yaw": yaw, "joint_offset": joint_offset}
        return Start({"qpos": qpos, "ctrl": qpos[:, : self.model.nu].copy()}, drawn)

    def begin(self, fields: Fields, memory: Array) -> None:
        memory[:, TARGET] = self.arm.ee_pos(fields)
        memory[:, COMMAND], memory[:, HELD] = 1.0, 0.0

    def control(self, fields: Fields, memory: Array, actions: NDArray[np.float32]) -> Array:
        ee = self.arm.ee_pos(fields)
        target = memory[:, TARGET] + actions[:, :3]
        offset = target - ee
        distance = np.sqrt((offset * offset).sum(axis=1, keepdims=True))
        target = ee + offset * np.minimum(1.0, LEASH_M / np.maximum(distance, 1e-9))
        memory[:, TARGET] = target = np.minimum(np.maximum(target, WORKSPACE_LOW), WORKSPACE_HIGH)
        memory[:, COMMAND] = actions[:, 3]
        control = np.empty((len(actions), self.model.nu))
        control[:, :7] = self.arm.reach_for(fields, target)
        control[:, 7:] = (0.5 * OPEN * (1.0 + actions[:, 3]))[:, None]
        return control

    def update(self, fields: Fields, memory: Array) -> None:
        lifted = fields["qpos"][:, self._pos.stop - 1] > HALF_M + LIFT_M
        memory[:, HELD] = np.where(lifted, memory[:, HELD] + 1.0, 0.0)

    def observe(self, fields: Fields, memory: Array) -> dict[str, NDArray[np.float32]]:
        qpos, ee = fields["qpos"], self.arm.ee_pos(fields)
        cube, quat = qpos[:, self._pos], qpos[:, self._quat]
        streams = self.arm.observe(fields)
        streams["gripper_width"] = self.arm.gripper_width(fields)[:, None].astype(np.float32)
        streams["gripper_command"] = memory[:, COMMAND, None].astype(np.float32)
        streams["ee_target_offset"] = (memory[:, TARGET] - ee).astype(np.float32)
        streams["cube_pos"] = cube.astype(np.float32)
        streams["cube_quat"] = np.where(quat[:, :1] < 0.0, -quat, quat).astype(np.float32)
        streams["cube_vel"] = fields["qvel"][:, self._vel].astype(np.float32)
        streams["ee_to_cube"] = (cube - ee).astype(np.float32)
        streams["held"] = (memory[:, HELD, None] / HOLD_STEPS).astype(np.float32)
        return streams

    def reward(self, fields: Fields, memory: Array) -> NDArray[np.float32]:
        reward = SUCCESS_REWARD[self.reward_kind] * self.success(fields, memory)
        if self.reward_kind == "dense":
            reward += STAGE_REWARD * self._stage(fields, memory)
        return reward.astype(np.float32)

    def success(self, fields: Fields, memory: Array) -> NDArray[np.bool_]:
        return memory[:, HELD] >= HOLD_STEPS

    def failure(self, fields: Fields, memory: Array) -> NDArray[np.bool_]:
        """The cube fell off the table."""
        return fields["qpos"][:, self._pos.stop - 1] < -0.05

    def expert(self, fields: Fields, memory: Array) -> NDArray[np.float32]:
        """Go above the cube, descend around it, close, wait until the fingers rest on it, lift."""
        ee, cube = self.arm.ee_pos(fields), fields["qpos"][:, self._pos]
        offset = cube - ee
        aside = np.sqrt((offset[:, :2] ** 2).sum(axis=1))
        around = (aside < 0.015) & (np.abs(offset[:, 2]) < 0.012)
        resting = np.abs(fields["qvel"][:, self.arm.finger_qvel]).max(axis=1) < 0.02
        holding = around & (memory[:, COMMAND] < 0.0) & resting & (self.arm.gripper_width(fields) < 0.05)

        goal = cube.copy()
        goal[:, 2] += np.where(aside < 0.02, 0.0, 0.06)
        actions = np.empty((len(ee), 4), np.float32)
        actions[:, :3] = np.clip(goal - memory[:, TARGET], -STEP_M, STEP_M)
        actions[holding, :3] = (0.0, 0.0, STEP_M)
        actions[:, 3] = np.where(around, -1.0, 1.0)
        return actions

    def _stage(self, fields: Fields, memory: Array) -> Array:
        """[B] stages reached: up to 1 for the approach, 1 for a grasp, 4 for the lift.

        The approach is paid on two scales: far away, where the finer one is flat, and near, where the grasp needs it.
        """
        offset = fields["qpos"][:, self._pos] - self.arm.ee_pos(fields)
        distance = np.sqrt((offset * offset).sum(axis=1))
        width = self.arm.gripper_width(fields)
        grasped = (distance < 0.03) & (memory[:, COMMAND] < 0.0) & (width < 0.05) & (width > 0.03)
        height = np.clip((fields["qpos"][:, self._pos.stop - 1] - HALF_M) / LIFT_M, 0.0, 1.0)
        return 1.0 - 0.5 * np.tanh(4.0 * distance) - 0.5 * np.tanh(20.0 * distance) + grasped * (1.0 + 4.0 * height)


def make(reward: str = "dense") -> Task:
    """Lift cube with a `dense` or `sparse` reward."""
    return LiftCube(reward)
