"""One policy that drives agents of B environments: it asks, executes and records their rows, step by step."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embodied.client import Executor, RecedingHorizon, Step
from embodied.client.execution import Strategy
from embodied.data import ActionChunk, AgentStep, CarriedDecisions, EnvStep, Observation, Resets, Segment, Source
from embodied.rollout.agents import join_observations, join_steps, shared_streams
from embodied.rollout.segment_recorder import SegmentRecorder
from embodied.spec import EnvSpec, PolicySpec

Decide = Callable[[Observation], ActionChunk]
"""Decision for the rows of an observation; its streams are those sensed and those that `Executor.ask` adds."""


class Driver:
    """Rows of the agents that one policy drives, agent after agent, the environments of each in order.

    Args:
        env: Spec of the environments.
        num_envs: B.
        policy: Spec of the policy.
        decide: Answers observations.
        agents: Names of the agents; None for the environments' only one.
        strategy: Execution of chunks; None for the first `policy.execute` actions of each. Of a strategy that is not
            on-policy, segments hold the executed actions as chunks of one, without log-probabilities.
        record: Names of the streams that segments hold; None for all that the agents share.

    Attributes:
        count: Rows R, the agents' number times B.
        active: [R] bool, rows that are not parked; None for all.
        carried: Decisions that are open at the next segment's first step.

    Raises:
        SpecMismatch: The environments lack an agent, or have several and none is named.
        ConfigError: The policy cannot do what the strategy needs.
    """

    def __init__(
        self,
        env: EnvSpec,
        num_envs: int,
        policy: PolicySpec,
        decide: Decide,
        agents: Sequence[str] | None = None,
        strategy: Strategy | None = None,
        record: Collection[str] | None = None,
    ) -> None:
        wanted = (env.only_agent,) if agents is None else agents
        self.agents = tuple(sorted(wanted, key=list(env.agents).index))
        self.env, self.policy, self.decide = env, policy, decide
        self.count = num_envs * len(self.agents)
        self.executor = Executor(self.count, policy, strategy or RecedingHorizon(policy.execute))
        self.carried: CarriedDecisions | None = None
        self.active: NDArray[np.bool_] | None = None
        self._on_policy = self.executor.strategy.on_policy
        self._recorded = policy if self._on_policy else replace(policy, chunk=1, execute=1, stored=())
        self._shared = shared_streams(env, self.agents)
        self._record = None if record is None else set(record)
        self._parts = [(name, slice(i * num_envs, (i + 1) * num_envs)) for i, name in enumerate(self.agents)]

    def begin(self, steps: int, starts: Resets | None) -> None:
        """Start a segment of at most `steps` steps; `starts` are the episodes that begin with its first."""
        self._recorder = SegmentRecorder(steps, self.count, self._recorded, self.env.control_size, self.carried)
        self._recorder.start(starts)

    def act(self, observations: Mapping[str, Observation]) -> dict[str, NDArray[np.float32]]:
        """Actions of each agent, [B, D], at the present step; zeros where it is parked."""
        executor, now = self.executor, self._joined(observations)
        rows, time = now.rows, now.time
        due = np.flatnonzero(executor.due(rows, time))
        if len(due):
            asked = replace(now, streams=dict(now.streams)) if len(due) == self.count else now.take(due)
            asked.streams |= executor.ask(due, rows, time)
            chunk = self.decide(asked)
            executor.accept(due, chunk, asked.time)
            if self._on_policy:
                self._recorder.decide(due, chunk)
        step = executor.next(rows, time)
        self._now, self._step = now, step if self._on_policy else self._as_decisions(step, now)
        actions = step.actions if self.active is None else np.where(self.active[:, None], step.actions, np.float32(0))
        return {agent: actions[part] for agent, part in self._parts}

    def record(self, result: EnvStep) -> AgentStep:
        """Record the step whose actions `act` gave, and park the agents that wait for their environment's reset.

        Returns:
            The rows' part of it.
        """
        own = join_steps([result.agents[agent] for agent in self.agents], self._shared, self._step.actions)
        applied, state_hash = result.applied, result.state_hash
        if len(self.agents) > 1:
            applied = np.tile(applied, (len(self.agents), 1))
            state_hash = None if state_hash is None else np.tile(state_hash, len(self.agents))
        self._recorder.step(self._kept(self._now), self._step, own, applied, state_hash)
        self._recorder.start(result.started)
        self.active = own.active
        return own

    def finish(
        self, observations: Mapping[str, Observation], id: str, mode: str, source: Source, origin: str = ""
    ) -> Segment:
        """The recorded steps as a segment; `observations` are those after the last of them."""
        return self._recorder.finish(
            self._kept(self._joined(observations)),
            id=id,
            policy=self.policy.name if source is Source.POLICY else source.name.lower(),
            task=self.env.task,
            mode=mode,
            source=source,
            origin=origin,
        )

    def carry(self, observations: Mapping[str, Observation]) -> Resets | None:
        """Keep the decisions that go on after the last step recorded; returns the episodes that begin there."""
        now = self._joined(observations)
        going_on = ~self.executor.due(now.rows, now.time) & (now.rows.step >= 0)
        self.carried = self._recorder.carry(going_on) if self._on_policy else None
        return self._recorder.pending_starts()

    def state(self) -> dict[str, Any]:
        """Open decisions, nested, from which `load` continues bit for bit."""
        carried = None if self.carried is None else asdict(self.carried)
        return {"executor": self.executor.state(), "active": self.active, "carried": carried}

    def load(self, state: Mapping[str, Any]) -> None:
        """Continue from `state`.

        Raises:
            DataError: It is the state of other rows, or of a policy with other chunks.
        """
        self.executor.load(state["executor"])
        self.active, carried = state["active"], state["carried"]
        self.carried = None if carried is None else CarriedDecisions(**carried)

    def _joined(self, observations: Mapping[str, Observation]) -> Observation:
        """The rows of all agents, those of parked ones with `rows.step` -1."""
        now = join_observations([observations[agent] for agent in self.agents], self._shared)
        if self.active is None:
            return now
        step = np.where(self.active, now.rows.step, -1).astype(np.int32)
        return replace(now, rows=replace(now.rows, step=step))

    def _kept(self, observation: Observation) -> Observation:
        names = self._record
        if names is None:
            return observation
        streams = {name: values for name, values in observation.streams.items() if name in names}
        times = {name: values for name, values in observation.times.items() if name in names}
        return replace(observation, streams=streams, times=times)

    def _as_decisions(self, step: Step, now: Observation) -> Step:
        """The step as decisions of one action, recorded as such."""
        ready = np.flatnonzero(step.ready)
        chunk = step.as_chunk(now.rows, self.policy.name)
        self._recorder.decide(ready, chunk.take(ready))
        k = np.where(step.ready, 0, -1).astype(np.int32)
        return replace(step, decision=np.where(step.ready, now.rows.step, -1).astype(np.int32), k=k)
