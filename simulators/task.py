"""Contract of a task: its model, initial states, observations, rewards and ends.

A task holds no episode state. Its memory of an episode is `memory`, one float64 row per environment that `BatchEnv`
keeps, snapshots and restores; everything else is read from the simulator's fields. A new task is one new file in
`simulators/tasks/` with a function `make(**options) -> Task`, or `-> MultiAgentTask` where it has several agents.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, cast

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
RESET = 1
"""Purpose of the keyed uniforms that draw an episode's initial state."""


@dataclass
class InitialStates:
    """Initial states of M episodes.

    Attributes:
        state: MjData state field, such as `qpos`, to [M, ...]; a field not named keeps the model's default.
        drawn: Name to [M, ...] of what was randomised.
    """

    state: Fields
    drawn: dict[str, NDArray[Any]] = field(default_factory=dict)


class Scene(Protocol):
    """Part of a task that does not depend on its agents.

    Every function takes B rows of `fields` and `memory`, and only `begin`, `control` and `update` write to `memory`.

    Attributes:
        spec: Streams, time limit, control rate. Actions beyond the limits of their streams are clipped.
        model: The compiled model.
        substeps: Physics steps per control step.
        memory_size: Length of a memory row.
        fields: MjData fields that the functions read.
    """

    spec: EnvSpec
    model: mujoco.MjModel
    substeps: int
    memory_size: int
    fields: tuple[str, ...]

    def initial_states(self, seeds: NDArray[np.int64]) -> InitialStates:
        """Draw the initial states of M episodes; each seed alone decides its own."""
        ...

    def begin(self, fields: Fields, memory: Array) -> None:
        """Fill the memory of episodes at their start."""
        ...

    def update(self, fields: Fields, memory: Array) -> None:
        """Update the memory after a control step; called once per step, before the functions that read it."""
        ...


class Task(Scene, Protocol):
    """One task of one agent, in any number of environments."""

    def control(self, fields: Fields, memory: Array, actions: NDArray[np.float32]) -> Array:
        """[B, U] controls, held over the substeps, for clipped `actions` [B, D]."""
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


class MultiAgentTask(Scene, Protocol):
    """One task of several agents, each with its own streams, actions, rewards and end, in one simulation.

    An agent whose episode ended is parked while others go on: `control` gets zeros as its actions, and the controls of
    its actuators stay as they are.

    Attributes:
        actuators: Agent name to the indices of its controls.
        cameras: May be left out. Agent name to the names of the cameras whose pictures it senses; an agent that is not
            named senses those of all cameras.
    """

    actuators: Mapping[str, NDArray[np.intp]]

    def control(self, fields: Fields, memory: Array, actions: Mapping[str, NDArray[np.float32]]) -> Array:
        """[B, U] controls, held over the substeps, for clipped actions [B, D] of each agent."""
        ...

    def observe(self, fields: Fields, memory: Array) -> dict[str, dict[str, NDArray[Any]]]:
        """Agent name to owned arrays [B, *shape] of its streams."""
        ...

    def reward(self, fields: Fields, memory: Array) -> dict[str, NDArray[np.float32]]:
        """Agent name to [B] reward of the step that led here."""
        ...

    def success(self, fields: Fields, memory: Array) -> dict[str, NDArray[np.bool_]]:
        """Agent name to [B] whether its task is done; ends its episode."""
        ...

    def failure(self, fields: Fields, memory: Array) -> dict[str, NDArray[np.bool_]]:
        """Agent name to [B] whether its task can no longer be done; ends its episode."""
        ...

    def expert(self, fields: Fields, memory: Array) -> dict[str, NDArray[np.float32]]:
        """Agent name to [B, D] actions of a scripted solution, a function of the state."""
        ...


class OneAgentTask:
    """A task of one agent as a `MultiAgentTask`.

    Args:
        task: The task.
    """

    def __init__(self, task: Task) -> None:
        self.task, self.agent = task, task.spec.only_agent
        self.spec, self.model, self.substeps = task.spec, task.model, task.substeps
        self.memory_size, self.fields = task.memory_size, task.fields
        self.initial_states, self.begin, self.update = task.initial_states, task.begin, task.update
        self.actuators: Mapping[str, NDArray[np.intp]] = {self.agent: np.arange(task.model.nu)}

    def control(self, fields: Fields, memory: Array, actions: Mapping[str, NDArray[np.float32]]) -> Array:
        return self.task.control(fields, memory, actions[self.agent])

    def observe(self, fields: Fields, memory: Array) -> dict[str, dict[str, NDArray[Any]]]:
        return {self.agent: self.task.observe(fields, memory)}

    def reward(self, fields: Fields, memory: Array) -> dict[str, NDArray[np.float32]]:
        return {self.agent: self.task.reward(fields, memory)}

    def success(self, fields: Fields, memory: Array) -> dict[str, NDArray[np.bool_]]:
        return {self.agent: self.task.success(fields, memory)}

    def failure(self, fields: Fields, memory: Array) -> dict[str, NDArray[np.bool_]]:
        return {self.agent: self.task.failure(fields, memory)}

    def expert(self, fields: Fields, memory: Array) -> dict[str, NDArray[np.float32]]:
        return {self.agent: self.task.expert(fields, memory)}


def by_agent(task: Task | MultiAgentTask) -> MultiAgentTask:
    """The task with mappings by agent, whether it writes them or plain arrays.

    Raises:
        SpecMismatch: The task has several agents and no `actuators` of one of them.
    """
    if not hasattr(task, "actuators"):
        return OneAgentTask(task)
    several = cast(MultiAgentTask, task)
    if several.actuators.keys() != several.spec.agents.keys():
        what, fix = f"actuators of {', '.join(several.actuators)}", f"give those of {', '.join(several.spec.agents)}"
        raise SpecMismatch(what, f"task {several.spec.task}", fix)
    return several


def reset_uniforms(seeds: NDArray[np.int64], count: int) -> Array:
    """[M, count] uniform numbers in (0, 1) that depend on each row's seed only."""
    keys = np.zeros((len(seeds), 5), np.int64)
    keys[:, 0] = seeds
    return noise.uniform(keys, count, purpose=RESET)


def between(u: Array, low: Any, high: Any) -> Array:
    """Uniform numbers in (0, 1) moved to (low, high)."""
    low, high = np.asarray(low, np.float64), np.asarray(high, np.float64)
    return low + u * (high - low)


def check_reward(kind: str, task: str) -> RewardKind:
    """Kind of the reward.

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
