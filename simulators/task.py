"""The contract of a task: what it builds, where episodes start, what is sensed, scored and done.

A task holds no episode state. What it must remember of an episode lives in `memory`, one float64 row per env that the
environment keeps, snapshots and restores; everything else is read from the simulator's fields. A new task is one new
file in `simulators/tasks/` with a function `make(**options) -> Task`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import mujoco
import numpy as np
from numpy.typing import NDArray

from embodied import noise
from embodied.errors import ConfigError, SpecMismatch, nearest
from embodied.spec import DEFAULT_AGENT, AgentSpec, EnvSpec

Array = NDArray[np.float64]
Fields = dict[str, NDArray[Any]]
"""MjData field name to [B, ...]: the simulator's live arrays, or copies of some rows."""

RewardKind = Literal["dense", "sparse"]
START = 1
"""Purpose of the keyed uniforms that draw an episode's start."""


@dataclass
class Start:
    """Where M episodes start.

    Attributes:
        state: MjData state field, such as `qpos`, to [M, ...]; a field not named keeps the model's default.
        drawn: Name to [M, ...] of what was randomised.
    """

    state: Fields
    drawn: dict[str, NDArray[Any]] = field(default_factory=dict)


class Task(Protocol):
    """One task, of any number of envs.

    Every function takes B rows of `fields` and `memory`, and only `begin`, `control` and `update` write to `memory`.

    Attributes:
        spec: Streams, time limit, control rate. Actions beyond the limits of their streams are clipped.
        model: The compiled scene.
        substeps: Physics steps per control step.
        memory_size: Length of a memory row.
        fields: MjData fields that the functions read.
    """

    spec: EnvSpec
    model: mujoco.MjModel
    substeps: int
    memory_size: int
    fields: tuple[str, ...]

    def start(self, seeds: NDArray[np.int64]) -> Start:
        """Draw the starts of M episodes; each seed alone decides its own."""
        ...

    def begin(self, fields: Fields, memory: Array) -> None:
        """Fill the memory of episodes that stand at their start."""
        ...

    def control(self, fields: Fields, memory: Array, actions: NDArray[np.float32]) -> Array:
        """[B, U] controls, held over the substeps, for clipped `actions` [B, D]."""
        ...

    def update(self, fields: Fields, memory: Array) -> None:
        """Take note of the state after a control step; called once per step, before the functions below."""
        ...

    def observe(self, fields: Fields, memory: Array) -> dict[str, NDArray[Any]]:
        """Owned arrays [B, *shape] of every stream in the spec."""
        ...

    def reward(self, fields: Fields, memory: Array) -> NDArray[np.float32]:
        """[B] reward of the step that led here."""
        ...

    def success(self, fields: Fields, memory: Array) -> NDArray[np.bool_]:
        """[B] whether the task is done; ends the episode."""
        ...

    def failure(self, fields: Fields, memory: Array) -> NDArray[np.bool_]:
        """[B] whether the task can no longer be done; ends the episode."""
        ...

    def expert(self, fields: Fields, memory: Array) -> NDArray[np.float32]:
        """[B, D] actions of a scripted solution, a function of the state."""
        ...


def start_uniforms(seeds: NDArray[np.int64], count: int) -> Array:
    """[M, count] uniform numbers in (0, 1) that depend on each row's seed only."""
    keys = np.zeros((len(seeds), 5), np.int64)
    keys[:, 0] = seeds
    return noise.uniform(keys, count, purpose=START)


def between(u: Array, low: Any, high: Any) -> Array:
    """Uniform numbers in (0, 1) moved to (low, high)."""
    low, high = np.asarray(low, np.float64), np.asarray(high, np.float64)
    return low + u * (high - low)


def check_reward(kind: str, task: str) -> RewardKind:
    """The reward's kind.

    Raises:
        ConfigError: It is neither `dense` nor `sparse`.
    """
    if kind not in ("dense", "sparse"):
        raise ConfigError(f"reward {kind!r} is unknown", f"task {task}", nearest(kind, ("dense", "sparse")))
    return kind  # type: ignore[return-value]


def env_spec(
    name: str, instruction: str, model: mujoco.MjModel, substeps: int, episode_steps: int, agent: AgentSpec
) -> EnvSpec:
    """Spec of a task of one agent."""
    return EnvSpec(
        task=name,
        agents={DEFAULT_AGENT: agent},
        control_hz=1.0 / (substeps * model.opt.timestep),
        instruction=instruction,
        episode_steps=episode_steps,
        state_size=mujoco.mj_stateSize(model, mujoco.mjtState.mjSTATE_INTEGRATION),
        control_size=model.nu,
    )


def agent_actions(actions: Mapping[str, NDArray[np.float32]], spec: EnvSpec) -> Mapping[str, NDArray[np.float32]]:
    """`actions`, checked to be those of the agents of `spec`.

    Raises:
        SpecMismatch: An agent is missing or unknown, or no mapping was given.
    """
    if not isinstance(actions, Mapping) or actions.keys() != spec.agents.keys():
        given = ", ".join(map(str, actions)) if isinstance(actions, Mapping) else type(actions).__name__
        what = f"actions of {given}"
        raise SpecMismatch(what, f"task {spec.task}", f"give a mapping of {', '.join(spec.agents)}")
    return actions
