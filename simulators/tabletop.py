"""Base of tasks at a table: an arm and its control, a gripper, an instruction, a dense or sparse reward.

A task derives from `TabletopTask` and adds its objects, their resets and streams, its success and failure, and the
plan of a scripted expert.
"""

from collections.abc import Sequence
from typing import Any, ClassVar

import mujoco
import numpy as np
from numpy.typing import NDArray

from embodied.errors import ConfigError, SpecMismatch, nearest
from embodied.spec import AgentSpec, EnvSpec, Stream, Streams
from robots.control import make_control
from simulators.arm import Arm
from simulators.task import Array, Fields, InitialStates, between, check_reward, env_spec, reset_uniforms

TEXT_BYTES = 64
"""Length of the stream `instruction`: UTF-8, zeros after its end."""
PHRASINGS = ("all", "train", "unseen")
"""Sets of instructions to draw from."""
RESET_RAD = 0.05
"""Largest distance of the joints from home at a reset, rad."""


class TabletopTask:
    """Base of tasks at a table, 20 Hz; a subclass that defines the methods below is a complete `Task`.

    Class attributes of a subclass:
        name: Name of its file.
        instructions: Phrasings; each episode draws one. `{word}` is replaced from `words`. The last third can be held
            out of training by `draw_phrasings`.
        episode_steps: Time limit.
        success_reward: Reward of success by kind of reward; the sparse reward is 1 for success and nothing else.
        reset_draws: Uniform numbers that `arrange` needs.
        memory_columns: Columns of memory of its own, `self.own`.
        choices: Numbers drawn per episode that the scene does not show, such as the index of the named object. They
            are columns of the simulator's `userdata` from 1 on, so that they are part of the state and replay.
        resting_grip: Command of the gripper after a reset, and always for actions without a gripper command.

    Args:
        scene: From `table_scene`, with the task's objects.
        robot: Name of the description of a single arm.
        reward: `dense` or `sparse`.
        control: One of `robots.control.CONTROLS`.
        gripper: Whether actions end with a gripper command from -1, closed, to 1, open.
        observations: Streams of `sense`.
    """

    name: ClassVar[str]
    instructions: ClassVar[tuple[str, ...]]
    episode_steps: ClassVar[int] = 60
    success_reward: ClassVar[dict[str, float]] = {"dense": 1.0, "sparse": 1.0}
    reset_draws: ClassVar[int] = 0
    memory_columns: ClassVar[int] = 0
    choices: ClassVar[int] = 0
    reset_rad: ClassVar[float] = RESET_RAD
    resting_grip: ClassVar[float] = 1.0
    substeps = 10
    phrasings: str = "all"

    def __init__(
        self, scene: mujoco.MjSpec, robot: str, reward: str, control: str, gripper: bool, observations: Streams
    ) -> None:
        self.reward_kind = check_reward(reward, self.name)
        scene.nuserdata = 1 + self.choices
        self.model = scene.compile()
        self.arm = Arm(self.model, robot)
        self.control_mode = make_control(control, self.arm)
        self.gripper = gripper
        self.fields: tuple[str, ...] = (*Arm.fields, "userdata")
        own = self.control_mode.memory_size
        self.own = slice(own + gripper, own + gripper + self.memory_columns)
        self._command = own
        self.memory_size = own + gripper + self.memory_columns
        actions = self.control_mode.actions
        streams = (*self.arm.streams, *self.control_mode.observations)
        if gripper:
            actions = (*actions, Stream("gripper", (1,), unit="1", limit=1.0))
            streams = (
                *streams,
                Stream("gripper_width", (1,), unit="m"),
                Stream("gripper_command", (1,), unit="1"),
            )
        streams = (*streams, *observations, Stream("instruction", (TEXT_BYTES,), dtype="uint8"))
        agent = AgentSpec(streams, actions)
        self.spec: EnvSpec = env_spec(
            self.name, self.sentences()[0], self.model, self.substeps, self.episode_steps, agent
        )
        self._sentences = np.stack([encode_text(sentence, self.name) for sentence in self.sentences()])

    # Methods of a subclass.

    def arrange(self, u: Array, qpos: Array, choices: Array) -> dict[str, NDArray[Any]]:
        """Place the objects of M episodes.

        Args:
            u: [M, reset_draws] uniform numbers in (0, 1).
            qpos: [M, nq], written in place; the arm is placed already.
            choices: [M, choices], written in place.

        Returns:
            Name to [M, ...] of drawn values. `mocap_pos` [M, K, 3] also places the mocap bodies.
        """
        raise NotImplementedError

    def sense(self, fields: Fields, own: Array) -> dict[str, NDArray[Any]]:
        """Values [B, ...] of the task's own streams."""
        raise NotImplementedError

    def track(self, fields: Fields, own: Array) -> None:
        """Update the task's own memory [B, memory_columns] after a step."""

    def prepare(self, fields: Fields, own: Array) -> None:
        """Fill the task's own memory, zeroed, at the start of episodes."""

    def done(self, fields: Fields, own: Array) -> NDArray[np.bool_]:
        """[B] whether the task is done."""
        raise NotImplementedError

    def shaping(self, fields: Fields, own: Array, command: Array) -> Array:
        """[B] dense reward besides that of success; `command` [B] is the gripper's."""
        raise NotImplementedError

    def plan(self, fields: Fields, own: Array, command: Array) -> tuple[Array, Array]:
        """Next goal of the end effector [B, 3] m and gripper command [B] of the scripted expert."""
        raise NotImplementedError

    def words(self) -> Sequence[dict[str, str]]:
        """Words of the instructions, one mapping per value of choice 0."""
        return ({},)

    def spoken(self, u: Array, choices: Array) -> Array:
        """[M] index into `words` of each instruction; `u` and `choices` are those of `arrange`, after it."""
        return choices[:, 0] if self.choices else np.zeros(len(u))

    def draw_phrasings(self, which: str) -> None:
        """Draw from `all` instructions, from the first two thirds, `train`, or from the others, `unseen`.

        Raises:
            ConfigError: It is another word, or no phrasing is left.
        """
        if which not in PHRASINGS:
            raise ConfigError(f"phrasings cannot be {which!r}", "task.phrasings", nearest(which, PHRASINGS))
        self.phrasings = which
        if not self._phrases():
            what = f"task {self.name} has {len(self.instructions)} phrasing and holds none out"
            raise ConfigError(what, "task.phrasings", "choose all")

    def _phrases(self) -> range:
        """Indices of the instructions that may be drawn."""
        count = len(self.instructions)
        seen = max(1, 2 * count // 3)
        return {"all": range(count), "train": range(seen), "unseen": range(seen, count)}[self.phrasings]

    # The contract of `Task`.

    def sentences(self) -> list[str]:
        """Every instruction, phrasing by phrasing within each value of choice 0."""
        return [phrase.format(**words) for words in self.words() for phrase in self.instructions]

    def initial_states(self, seeds: NDArray[np.int64]) -> InitialStates:
        count = len(self.arm.chain)
        u = reset_uniforms(seeds, count + 1 + self.reset_draws)
        qpos = np.tile(self.model.qpos0, (len(seeds), 1))
        ctrl = np.zeros((len(seeds), self.model.nu))
        offset = between(u[:, :count], -self.reset_rad, self.reset_rad)
        self.arm.place(qpos, ctrl, self.arm.chain.home + offset, self.resting_grip)
        userdata = np.zeros((len(seeds), 1 + self.choices))
        try:
            drawn = self.arrange(u[:, count + 1 :], qpos, userdata[:, 1:])
        except IndexError as error:
            fix = f"it gets reset_draws = {self.reset_draws} numbers and choices = {self.choices}: raise them"
            raise SpecMismatch(f"arrange() fails: {error}", f"task {self.name}", fix) from None
        phrases = self._phrases()
        phrase = phrases.start + np.floor(u[:, count] * len(phrases))
        which = self.spoken(u[:, count + 1 :], userdata[:, 1:])
        userdata[:, 0] = which * len(self.instructions) + phrase
        state = {"qpos": qpos, "ctrl": ctrl, "userdata": userdata}
        if "mocap_pos" in drawn:
            state["mocap_pos"] = drawn["mocap_pos"]
        return InitialStates(state, {**drawn, "joint_offset": offset, "sentence": userdata[:, 0].astype(np.int32)})

    def begin(self, fields: Fields, memory: Array) -> None:
        self.control_mode.begin(self.arm.measured(fields), memory[:, : self._command])
        if self.gripper:
            memory[:, self._command] = self.resting_grip
        memory[:, self.own] = 0.0
        self.prepare(fields, memory[:, self.own])

    def control(self, fields: Fields, memory: Array, actions: NDArray[np.float32]) -> Array:
        control = np.empty((len(actions), self.model.nu))
        moves = actions[:, :-1] if self.gripper else actions
        state, own = self.arm.measured(fields), memory[:, : self._command]
        control[:, self.arm.arm_ctrl] = self.control_mode.targets(state, own, moves)
        if self.gripper:
            memory[:, self._command] = actions[:, -1]
        control[:, self.arm.gripper_ctrl] = self.arm.gripper_targets(self._commands(memory))
        return control

    def update(self, fields: Fields, memory: Array) -> None:
        self.track(fields, memory[:, self.own])

    def observe(self, fields: Fields, memory: Array) -> dict[str, NDArray[Any]]:
        streams: dict[str, NDArray[Any]] = self.arm.observe(fields)
        streams |= self.control_mode.observe(self.arm.measured(fields), memory[:, : self._command])
        if self.gripper:
            streams["gripper_width"] = self.arm.gripper_width(fields)[:, None].astype(np.float32)
            streams["gripper_command"] = memory[:, self._command, None].astype(np.float32)
        streams |= self.sense(fields, memory[:, self.own])
        streams["instruction"] = self._sentences[fields["userdata"][:, 0].astype(np.intp)]
        return streams

    def reward(self, fields: Fields, memory: Array) -> NDArray[np.float32]:
        own = memory[:, self.own]
        reward = self.success_reward[self.reward_kind] * self.done(fields, own)
        if self.reward_kind == "dense":
            reward += self.shaping(fields, own, self._commands(memory))
        return reward.astype(np.float32)

    def success(self, fields: Fields, memory: Array) -> NDArray[np.bool_]:
        return self.done(fields, memory[:, self.own])

    def failure(self, fields: Fields, memory: Array) -> NDArray[np.bool_]:
        return np.zeros(len(memory), bool)

    def expert(self, fields: Fields, memory: Array) -> NDArray[np.float32]:
        goal, command = self.plan(fields, memory[:, self.own], self._commands(memory))
        moves = self.control_mode.towards(self.arm.measured(fields), memory[:, : self._command], goal)
        if not self.gripper:
            return moves
        return np.concatenate([moves, command[:, None].astype(np.float32)], axis=1)

    def _commands(self, memory: Array) -> Array:
        """[B] gripper commands."""
        return memory[:, self._command] if self.gripper else np.full(len(memory), self.resting_grip)


def encode_text(text: str, where: str) -> NDArray[np.uint8]:
    """[TEXT_BYTES] UTF-8 bytes of a text, zeros after its end.

    Raises:
        ConfigError: It is too long, or empty.
    """
    raw = text.encode()
    if not text.strip():
        raise ConfigError(f"instruction {text!r} is empty", where, "name the goal in words")
    if len(raw) > TEXT_BYTES:
        raise ConfigError(f"instruction {text!r} has {len(raw)} bytes", where, f"use at most {TEXT_BYTES}")
    return np.frombuffer(raw.ljust(TEXT_BYTES, b"\0"), np.uint8)


def decode_text(values: NDArray[np.uint8]) -> str:
    """The text of `encode_text`."""
    return values.tobytes().rstrip(b"\0").decode(errors="replace")
