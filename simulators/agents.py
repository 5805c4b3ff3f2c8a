"""Rows of agents in a batch of environments: which of them act, and the limits and rules of their actions."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from embodied.data import Rows, Rule
from embodied.errors import SpecMismatch
from embodied.spec import AgentSpec, EnvSpec

Actions = Mapping[str, NDArray[np.float32]]
Executed = dict[str, NDArray[np.float32] | None]
Rules = dict[str, NDArray[np.uint8] | None]


@dataclass
class DecidedStep:
    """A step whose controls are set.

    Attributes:
        live: [B] environments that are stepped.
        ids: Their indices, or None for all.
        faulty: [B] environments whose actions are a fault.
        executed, rules: Agent name to what `AgentStep` says of its action.
        applied: [B, U].
    """

    live: NDArray[np.bool_]
    ids: NDArray[np.int32] | None
    faulty: NDArray[np.bool_]
    executed: Executed
    rules: Rules
    applied: NDArray[np.float64]


class AgentRows:
    """One agent's rows in B environments.

    Args:
        name, index: Name of the agent, and its index in `EnvSpec.agents`.
        spec: Its streams.
        actuators: Indices of its controls.
        count: B.
        first: Global index of the first environment.

    Attributes:
        limit: [D] largest magnitudes of its actions.
        rows: Identity of the rows.
        active: [B] whether it acts: its episode goes on.
        Others as given.
    """

    def __init__(
        self, name: str, index: int, spec: AgentSpec, actuators: NDArray[np.intp], count: int, first: int
    ) -> None:
        self.name, self.limit, self.actuators = name, spec.action_limits, actuators
        self.rows = Rows.of_envs(count, first, index)
        self.active = np.zeros(count, bool)


def acting(agents: Sequence[AgentRows]) -> NDArray[np.bool_]:
    """[B] environments in which an agent acts; owned by the caller."""
    live = agents[0].active.copy()
    for agent in agents[1:]:
        live |= agent.active
    return live


def agent_actions(
    actions: Mapping[str, NDArray[np.float32]], shapes: Mapping[str, tuple[int, int]], task: str
) -> dict[str, NDArray[np.float32]]:
    """`actions`, checked to be float32 of the shape (B, D) of each agent.

    Raises:
        SpecMismatch: An agent is missing or unknown, an array has another shape, or no mapping was given.
    """
    if not isinstance(actions, Mapping) or actions.keys() != shapes.keys():
        given = ", ".join(map(str, actions)) if isinstance(actions, Mapping) else type(actions).__name__
        raise SpecMismatch(f"actions of {given}", f"task {task}", f"give a mapping of {', '.join(shapes)}")
    checked = {}
    for name, shape in shapes.items():
        values = checked[name] = np.asarray(actions[name], np.float32)
        if values.shape != shape:
            raise SpecMismatch(f"actions of shape {values.shape}", f"task {task}, agent {name}", f"give {shape}")
    return checked


def action_shapes(spec: EnvSpec, count: int) -> dict[str, tuple[int, int]]:
    """Agent name to the shape of its actions in `count` environments."""
    return {name: (count, agent.action_dim) for name, agent in spec.agents.items()}


def clip(agents: Sequence[AgentRows], requested: Actions) -> tuple[dict[str, NDArray[np.float32]], Rules, NDArray]:
    """Clip actions to the limits of their agents.

    Returns:
        Agent name to finite clipped actions [B, D], the rules as in `AgentStep`, and [B] whether an acting agent's
        action holds NaN.
    """
    faulty = np.zeros(len(agents[0].active), bool)
    clipped: dict[str, NDArray[np.float32]] = {}
    rules: Rules = {}
    for agent in agents:
        own = requested[agent.name]
        within, rules[agent.name] = np.clip(own, -agent.limit, agent.limit), None
        if (changed := within != own).any():  # NaN differs from itself
            missing = np.isnan(own)
            if missing.any():
                faulty |= missing.any(axis=1) & agent.active
                within = np.where(missing, np.float32(0), within)
            if (limited := (changed & ~missing).any(axis=1) & agent.active).any():
                rules[agent.name] = limited * np.uint8(Rule.ACTION_LIMIT)
        clipped[agent.name] = within
    return clipped, rules, faulty


def hold(agents: Sequence[AgentRows], late: Actions, rules: Rules, arrived: NDArray[np.int32] | None) -> Rules:
    """Mark the rows whose first action is still on the way: their late actions are zeros, their rule `HOLD`.

    Args:
        agents: The agents.
        late: Actions [B, D] that arrive now; written in place.
        rules: Rules so far.
        arrived: Environments in which an action arrived; None for all.
    """
    marked = dict(rules)
    for agent in agents if arrived is not None else ():
        waiting = agent.active.copy()
        waiting[arrived] = False
        if waiting.any():
            late[agent.name][waiting] = 0.0
            rule = rules[agent.name]
            marked[agent.name] = np.where(waiting, np.uint8(Rule.HOLD), np.uint8(0) if rule is None else rule)
    return marked


def executed(agents: Sequence[AgentRows], requested: Actions, done: Actions, rules: Rules, late: bool) -> Executed:
    """Agent name to its executed actions as in `AgentStep`: None where all are as requested; `late` if delayed."""
    told: Executed = {}
    for agent in agents:
        same = rules[agent.name] is None
        if same and late:
            same = np.array_equal(done[agent.name][agent.active], requested[agent.name][agent.active])
        told[agent.name] = None if same else done[agent.name]
    return told
