"""Reach with a pair of arms: bring each end effector to its own point."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from embodied.spec import AgentSpec, Stream
from robots.control import make_control
from robots.descriptions import arms
from simulators.arm import Arm
from simulators.scene import add_marker, table_scene
from simulators.tabletop import TEXT_BYTES, encode_text
from simulators.task import Array, Fields, InitialStates, Task, between, check_reward, env_spec, reset_uniforms

ROBOT = "panda_pair"
# Lowest and highest position of an arm's target, m; y counts from the middle of the table to the arm's own side. Both
# hands, 20 cm wide, can be at their targets at once.
LOW, HIGH = (0.35, 0.12, 0.08), (0.60, 0.32, 0.40)
SIDE = {"left_": 1.0, "right_": -1.0}
COLOURS = {"left_": (0.1, 0.7, 0.3, 1.0), "right_": (0.15, 0.35, 0.9, 1.0)}
NEAR_M, HOLD_STEPS = 0.02, 3
RESET_RAD = 0.1

# Columns of the task's memory, behind the controls': the last two sums of the distances to the targets, and steps
# in a row with both near.
DISTANCE, BEFORE, HELD = 0, 1, 2


class ReachPair:
    """A pair of Pandas and two markers, green for the left hand and blue for the right one; 20 Hz.

    One agent moves both arms, the left one's action first; the grippers stay open. Success is both distances
    below 2 cm for three steps in a row. The dense reward is five times the approach (m, both arms) and 1 for success.
    """

    name = "reach_pair"
    instructions = (
        "left hand to the green marker, right hand to the blue one",
        "touch green with the left hand and blue with the right",
        "reach both markers, green left and blue right",
    )
    episode_steps = 50
    substeps = 10

    def __init__(self, reward: str = "dense", control: str = "joint_delta", meshes: str = "") -> None:
        self.reward_kind = check_reward(reward, self.name)
        scene = table_scene(ROBOT, meshes)
        for prefix in arms(ROBOT):
            add_marker(scene, f"{prefix}target", radius=NEAR_M, rgba=COLOURS[prefix])
        scene.nuserdata = 1
        self.model = scene.compile()
        self.arms = [Arm(self.model, ROBOT, prefix) for prefix in arms(ROBOT)]
        self.controls = [make_control(control, arm) for arm in self.arms]
        self.fields: tuple[str, ...] = (*Arm.fields, "userdata", "mocap_pos")
        self._actions, self._memory = [], []
        used, remembered = 0, 0
        for mode in self.controls:
            size = sum(stream.size for stream in mode.actions)
            self._actions.append(slice(used, used + size))
            self._memory.append(slice(remembered, remembered + mode.memory_size))
            used, remembered = used + size, remembered + mode.memory_size
        self.own = slice(remembered, remembered + 3)
        self.memory_size = remembered + 3
        streams = [stream for arm in self.arms for stream in arm.streams]
        streams += [stream for mode in self.controls for stream in mode.observations]
        for arm in self.arms:
            streams.append(Stream(f"{arm.prefix}target_pos", (3,), unit="m", frame="base"))
            streams.append(Stream(f"{arm.prefix}ee_to_target", (3,), unit="m", frame="base"))
        streams += [Stream("held", (1,), unit="1"), Stream("instruction", (TEXT_BYTES,), dtype="uint8")]
        agent = AgentSpec(tuple(streams), tuple(stream for mode in self.controls for stream in mode.actions))
        self.spec = env_spec(self.name, self.instructions[0], self.model, self.substeps, self.episode_steps, agent)
        self._sentences = np.stack([encode_text(sentence, self.name) for sentence in self.instructions])

    def initial_states(self, seeds: NDArray[np.int64]) -> InitialStates:
        count = sum(len(arm.chain) for arm in self.arms)
        u = reset_uniforms(seeds, count + 3 * len(self.arms) + 1)
        qpos = np.tile(self.model.qpos0, (len(seeds), 1))
        ctrl, target = np.zeros((len(seeds), self.model.nu)), np.empty((len(seeds), len(self.arms), 3))
        offset, first = between(u[:, :count], -RESET_RAD, RESET_RAD), 0
        for index, arm in enumerate(self.arms):
            arm.place(qpos, ctrl, arm.chain.home + offset[:, first : first + len(arm.chain)])
            first += len(arm.chain)
            target[:, index] = between(u[:, count + 3 * index : count + 3 * index + 3], LOW, HIGH)
            target[:, index, 1] *= SIDE[arm.prefix]
        sentence = np.floor(u[:, -1:] * len(self.instructions))
        state: Fields = {"qpos": qpos, "ctrl": ctrl, "mocap_pos": target, "userdata": sentence}
        drawn: Fields = {"target_pos": target, "joint_offset": offset, "sentence": sentence[:, 0].astype(np.int32)}
        return InitialStates(state, drawn)

    def begin(self, fields: Fields, memory: Array) -> None:
        for arm, mode, columns in zip(self.arms, self.controls, self._memory, strict=True):
            mode.begin(arm.measured(fields), memory[:, columns])
        own = memory[:, self.own]
        own[:, DISTANCE] = own[:, BEFORE] = self._distances(fields).sum(axis=1)
        own[:, HELD] = 0.0

    def control(self, fields: Fields, memory: Array, actions: NDArray[np.float32]) -> Array:
        control = np.empty((len(actions), self.model.nu))
        for arm, mode, moves, columns in zip(self.arms, self.controls, self._actions, self._memory, strict=True):
            control[:, arm.arm_ctrl] = mode.targets(arm.measured(fields), memory[:, columns], actions[:, moves])
            control[:, arm.gripper_ctrl] = arm.facts.gripper_open
        return control

    def update(self, fields: Fields, memory: Array) -> None:
        own, distances = memory[:, self.own], self._distances(fields)
        own[:, BEFORE] = own[:, DISTANCE]
        own[:, DISTANCE] = distances.sum(axis=1)
        own[:, HELD] = np.where((distances < NEAR_M).all(axis=1), own[:, HELD] + 1.0, 0.0)

    def observe(self, fields: Fields, memory: Array) -> dict[str, NDArray[Any]]:
        streams: dict[str, NDArray[Any]] = {}
        for index, (arm, mode, columns) in enumerate(zip(self.arms, self.controls, self._memory, strict=True)):
            target = fields["mocap_pos"][:, index]
            streams |= arm.observe(fields)
            streams |= mode.observe(arm.measured(fields), memory[:, columns])
            streams[f"{arm.prefix}target_pos"] = target.astype(np.float32)
            streams[f"{arm.prefix}ee_to_target"] = (target - arm.ee_pos(fields)).astype(np.float32)
        streams["held"] = (memory[:, self.own][:, HELD:] / HOLD_STEPS).astype(np.float32)
        streams["instruction"] = self._sentences[fields["userdata"][:, 0].astype(np.intp)]
        return streams

    def reward(self, fields: Fields, memory: Array) -> NDArray[np.float32]:
        own = memory[:, self.own]
        reward = self.success(fields, memory).astype(np.float64)
        if self.reward_kind == "dense":
            reward += 5.0 * (own[:, BEFORE] - own[:, DISTANCE])
        return reward.astype(np.float32)

    def success(self, fields: Fields, memory: Array) -> NDArray[np.bool_]:
        return memory[:, self.own][:, HELD] >= HOLD_STEPS

    def failure(self, fields: Fields, memory: Array) -> NDArray[np.bool_]:
        return np.zeros(len(memory), bool)

    def expert(self, fields: Fields, memory: Array) -> NDArray[np.float32]:
        moves = [
            mode.towards(arm.measured(fields), memory[:, columns], fields["mocap_pos"][:, index])
            for index, (arm, mode, columns) in enumerate(zip(self.arms, self.controls, self._memory, strict=True))
        ]
        return np.concatenate(moves, axis=1)

    def _distances(self, fields: Fields) -> Array:
        """[B, 2] m from each end effector to its target."""
        ee = np.stack([arm.ee_pos(fields) for arm in self.arms], axis=1)
        return np.linalg.norm(fields["mocap_pos"] - ee, axis=2)


def make(reward: str = "dense", control: str = "joint_delta", meshes: str = "") -> Task:
    """Reach with a pair of arms, with a `dense` or `sparse` reward."""
    return ReachPair(reward, control, meshes)
