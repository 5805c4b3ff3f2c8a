"""Environments of one agent with plain arrays in place of mappings by agent."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from embodied.data import AgentStep, EnvStep, Observation, Resets
from embodied.spec import EnvSpec


class _Env(Protocol):
    spec: EnvSpec

    def reset(self, seeds: ArrayLike | None = None) -> tuple[dict[str, Observation], Resets]: ...

    def step(self, actions: Mapping[str, NDArray[np.float32]]) -> EnvStep: ...

    def expert(self) -> dict[str, NDArray[np.float32]]: ...


@dataclass(kw_only=True)
class OneAgentStep(AgentStep):
    """The step of an environment's single agent, with the fields of its `EnvStep`."""

    applied: NDArray[np.float64]
    started: Resets | None
    state_hash: NDArray[np.uint64] | None


class OneAgentEnv:
    """View of environments that have one agent.

    Args:
        env: The environments, as in `embodied.rollout.env.Env`.

    Raises:
        SpecMismatch: The task has several agents.
    """

    def __init__(self, env: _Env) -> None:
        self.env = env
        self.agent = env.spec.only_agent

    def reset(self, seeds: ArrayLike | None = None, **options: Any) -> tuple[Observation, Resets]:
        """Start an episode in every environment; `options` are those of the environment's own `reset`."""
        observations, starts = self.env.reset(seeds, **options)
        return observations[self.agent], starts

    def step(self, actions: NDArray[np.float32]) -> OneAgentStep:
        """Take one control step with actions [B, D]."""
        step = self.env.step({self.agent: actions})
        return OneAgentStep(
            **vars(step.agents[self.agent]), applied=step.applied, started=step.started, state_hash=step.state_hash
        )

    def expert(self) -> NDArray[np.float32]:
        """[B, D] actions of the task's scripted expert in the present state."""
        return self.env.expert()[self.agent]
