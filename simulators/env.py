"""Environments of one task on MuJoCo's batch: the simulator behind `embodied.rollout.env.Env`."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Annotated, Any

import numpy as np
from annotated_types import Interval
from numpy.typing import ArrayLike, NDArray

from embodied.data import AgentStep, EnvStep, Observation, Outcome, Resets, RewardStatus
from embodied.errors import ConfigError, SpecMismatch
from embodied.settings import Count, ThreadsOrAll, validated
from simulators.agents import (
    Actions,
    AgentRows,
    DecidedStep,
    acting,
    action_shapes,
    agent_actions,
    clip,
    executed,
    hold,
)
from simulators.physics import Physics
from simulators.randomise import draw
from simulators.randomise.envs import RandomisedEnvs
from simulators.randomise.ranges import Ranges
from simulators.render.cameras import Cameras
from simulators.replay import state_hash
from simulators.resets_ahead import ResetsAhead
from simulators.senses import Senses, Streams, named, observation, with_cameras
from simulators.snapshots import check_snapshot, index_of, kind_of
from simulators.task import Array, Fields, InitialStates, MultiAgentTask, Task, by_agent

MAX_ENVS = 65536

# Plain numbers: numpy takes several times as long with members of an enumeration.
_SUCCESS, _FAILURE, _TIME_LIMIT = int(Outcome.SUCCESS), int(Outcome.FAILURE), int(Outcome.TIME_LIMIT)
_INFRASTRUCTURE_FAULT, _FAILED = int(Outcome.INFRASTRUCTURE_FAULT), np.uint8(RewardStatus.FAILED)


class BatchEnv:
    """`num_envs` environments of one task, stepped together, physics on threads.

    Args:
        task: The task to simulate.
        num_envs: B.
        num_threads: Physics threads; 0 for one per core that this process may use.
        seed: Draws the episode seeds that `reset` is not given.
        cameras: Pictures to sense besides the task's streams, by every agent unless the task's `cameras` names those of
            an agent; closed with the environment.
        randomise: Differences between episodes besides their starts.
        first: Global index of the first environment. Environments `first` to `first + B - 1` give the same rows in
            every process that owns them.

    Attributes:
        task: As given.
        batch: The physics; its arrays are live.
        draw_seeds: Gives the seeds [M] of the next episodes of environments [M] (global indices), in place of `seed`;
            None to derive them.
        Others as in `embodied.rollout.env.Env`; `spec` has the streams of the cameras.

    Raises:
        ConfigError: A count is out of range, or `randomise` does not fit the task's streams.
        SpecMismatch: The task draws something under a name that randomisation has, or `cameras` names an unknown agent.
    """

    @validated("env", "num_envs", "num_threads", "seed", "first")
    def __init__(
        self,
        task: Task | MultiAgentTask,
        num_envs: Annotated[int, Interval(ge=1, le=MAX_ENVS)],
        num_threads: ThreadsOrAll = 0,
        seed: Count = 0,
        cameras: Cameras | None = None,
        randomise: Ranges | None = None,
        first: Annotated[int, Interval(ge=0, le=2**31 - 1 - MAX_ENVS)] = 0,
    ) -> None:
        if cameras is not None:
            cameras.check_memory(num_envs)
        self.task, self._task = task, by_agent(task)
        self.spec, self.num_envs, self.first = with_cameras(task, cameras), num_envs, int(first)
        self.autoreset, self.seed = True, seed
        self.draw_seeds: Callable[[NDArray[np.int32]], NDArray[np.int64]] | None = None
        self.faults = 0
        self._physics = Physics(task.model, num_envs, num_threads, task.substeps, task.spec.task)
        self.batch = self._physics.batch
        self._fields: Fields = {name: self.batch.bind(name) for name in task.fields}
        self._cameras = cameras
        self._ctrl, self._time = self.batch.bind("ctrl"), self.batch.bind("time")
        self._memory = np.zeros((num_envs, task.memory_size))
        self._agents = [
            AgentRows(name, index, spec, np.asarray(self._task.actuators[name]), num_envs, first)
            for index, (name, spec) in enumerate(task.spec.agents.items())
        ]
        self._episode = np.full(num_envs, -1, np.int64)
        self._step = np.zeros(num_envs, np.int32)
        for agent in self._agents:
            agent.rows.episode = self._episode
            if len(self._agents) == 1:
                agent.rows.step = self._step
        self._seeds = np.zeros(num_envs, np.int64)
        self._begun = False
        self._shapes = action_shapes(self.spec, num_envs)
        self._kind = np.full(num_envs, kind_of(task.spec), np.int64)
        self._randomised: RandomisedEnvs | None = None
        if randomise is not None and randomise.any:
            self._randomised = RandomisedEnvs(randomise, self.batch, self.spec, cameras is not None)
        if taken := sorted(task.initial_states(self._seeds[:1]).drawn.keys() & set(draw.NAMES)):
            raise SpecMismatch(f"initial_states() draws {taken[0]}", f"task {self.spec.task}", "give it another name")
        self._ahead = ResetsAhead(self._draw, num_envs, self.first)
        self._senses = Senses(self._task, self.spec, self.batch, cameras, self._randomised)

    @property
    def physics_s(self) -> float:
        """Seconds spent in the physics engine since construction."""
        return self._physics.seconds

    @property
    def action_limit(self) -> NDArray[np.float32]:
        """[D] the only agent's limits, beyond which actions are clipped.

        Raises:
            SpecMismatch: There are several agents.
        """
        return self.spec.agents[self.spec.only_agent].action_limits

    def reset(
        self, seeds: ArrayLike | None = None, states: Array | None = None
    ) -> tuple[dict[str, Observation], Resets]:
        """As `Env.reset`; `states` [B, S] are the starts of the episodes, instead of those that their seeds draw.

        Raises:
            ConfigError: `seeds` is not one integer per environment.
            SpecMismatch: `states` are of another task.
        """
        if states is not None and states.shape != self.batch.state.shape:
            what, fix = f"states of shape {states.shape}", f"give {self.batch.state.shape}"
            raise SpecMismatch(what, f"task {self.spec.task}", fix)
        if states is not None and not np.isfinite(states).all():
            raise SpecMismatch("states that are not finite", f"task {self.spec.task}", "start from finite ones")
        if seeds is not None:
            seeds = np.asarray(seeds)
            whole = seeds.shape == (self.num_envs,) and np.issubdtype(seeds.dtype, np.integer)
            if not whole or seeds.max() >= 2**63:
                what, fix = (
                    f"seeds of shape {seeds.shape}, {seeds.dtype}",
                    f"give {self.num_envs} integers below 2^63",
                )
                raise ConfigError(what, "reset", fix)
        starts = self._start(np.arange(self.num_envs, dtype=np.int32), seeds, states)
        return self.observe(), starts

    def restart(
        self, ids: NDArray[np.int32], seeds: NDArray[np.int64] | None = None
    ) -> tuple[dict[str, Observation], Resets]:
        """Start the next episodes of some environments, once all have begun.

        Args:
            ids: [M] rows of the batch.
            seeds: [M]; None to draw them.

        Returns:
            Observations of all environments, those of the others as last given, and the starts.
        """
        starts = self._start(ids, seeds)
        for name, first in self._sense(ids).items():
            for stream, values in first.items():
                self._senses.last[name][stream][ids] = values
        last = {name: {k: v.copy() for k, v in streams.items()} for name, streams in self._senses.last.items()}
        return {agent.name: observation(agent.rows, last[agent.name]) for agent in self._agents}, starts

    def observe(self) -> dict[str, Observation]:
        """Agent name to its observation [B] of the present state, or to its last one where it is parked."""
        seen = self._sense(None)
        if len(self._agents) > 1:
            for agent in self._agents:
                self._senses.repeat(agent.name, seen[agent.name], np.flatnonzero(~agent.active))
        self._senses.note(seen)
        self._begun = True
        return {agent.name: observation(agent.rows, seen[agent.name]) for agent in self._agents}

    def step(self, actions: Actions) -> EnvStep:
        """As `Env.step`.

        Raises:
            SpecMismatch: `actions` are not [B, D] of each agent.
            ConfigError: No episode was ever started.
        """
        decided = self._decide(actions)
        return self._conclude(decided, self._physics.step(decided.ids))

    def _decide(self, actions: Actions) -> DecidedStep:
        """Begin a step: clip and delay the actions, and set the controls."""
        requested = agent_actions(actions, self._shapes, self.spec.task)
        if not self._begun:
            raise ConfigError("step before the first reset", f"task {self.spec.task}", "call reset() first")
        live = acting(self._agents)
        ids = None if live.all() else np.flatnonzero(live).astype(np.int32)
        clipped, rules, faulty = clip(self._agents, requested)
        done: Actions = clipped
        arrived = ids
        if self._randomised is not None:
            done, arrived = self._randomised.delay(clipped, self._step, ids)
        late = done is not clipped
        if late:
            rules = hold(self._agents, done, rules, arrived)
        self._control(done, arrived, live)
        told = executed(self._agents, requested, done, rules, late)
        return DecidedStep(live, ids, faulty, told, rules, self._ctrl.copy())

    def _conclude(self, decided: DecidedStep, diverged: NDArray[np.bool_]) -> EnvStep:
        """End a step whose physics is done: score it, sense it, and start the next episodes."""
        live, ids, faulty = decided.live, decided.ids, (decided.faulty | diverged) & decided.live
        if faulty.any():
            lost = np.flatnonzero(faulty).astype(np.int32)
            self._physics.blank(lost)  # so that nothing that is not finite lives on
            self._physics.forward(lost)
            self._memory[lost] = 0.0
        hashes = state_hash(self.batch.state)
        fields, memory = self._take(ids)
        self._task.update(fields, memory)
        if ids is not None:
            self._memory[ids] = memory
        self._step[live] += 1

        late = self._step >= self.spec.episode_steps
        successes = self._task.success(self._fields, self._memory)
        failures = self._task.failure(self._fields, self._memory)
        scores = self._task.reward(self._fields, self._memory)
        seen = self._sense(None, ids)
        results: dict[str, Callable[..., AgentStep]] = {}
        over = live.copy()
        for agent in self._agents:
            name, acts = agent.name, agent.active
            sound, broken = acts & ~faulty, acts & faulty
            success = successes[name] & sound
            failure = failures[name] & sound & ~success
            outcomes = np.zeros(self.num_envs, np.uint8)
            outcomes[late & acts] = _TIME_LIMIT
            outcomes[failure] = _FAILURE
            outcomes[success] = _SUCCESS
            outcomes[broken] = _INFRASTRUCTURE_FAULT
            rewards = scores[name]
            if not sound.all():
                rewards[~sound] = 0.0
                self._senses.repeat(name, seen[name], np.flatnonzero(~sound))
            agent.rows.step[acts] = self._step[acts]
            over_now, terminated = outcomes > 0, success | failure
            ended = np.flatnonzero(over_now).astype(np.int32)
            agent.active = acts & ~over_now
            over &= ~agent.active
            results[name] = partial(
                AgentStep,
                rewards=rewards,
                reward_status=broken * _FAILED,
                terminated=terminated,
                truncated=over_now & ~terminated,
                outcomes=outcomes,
                ended=ended,
                final={
                    stream: values[ended] if len(ended) else values[:0].copy()  # an index array takes longer
                    for stream, values in named(seen[name]).items()
                },
            )
        started = self._restart(np.flatnonzero(over).astype(np.int32), seen)
        self.faults += int(faulty.sum())
        self._senses.note(seen)
        agents = {
            agent.name: results[agent.name](
                observation=observation(agent.rows, seen[agent.name]),
                active=None if agent.active.all() else agent.active.copy(),
                executed=decided.executed[agent.name],
                rule=decided.rules[agent.name],
            )
            for agent in self._agents
        }
        return EnvStep(agents, decided.applied, started, hashes)

    def expert(self) -> dict[str, NDArray[np.float32]]:
        return self._task.expert(self._fields, self._memory)

    def snapshot(self, ids: ArrayLike | None = None) -> dict[str, NDArray[Any]]:
        index = index_of(ids, self.num_envs)
        return {name: values[index] for name, values in self._parts().items()}

    def restore(self, snapshot: dict[str, NDArray[Any]], ids: ArrayLike | None = None) -> None:
        """As `Env.restore`; `observe` then gives the observations.

        Raises:
            SpecMismatch: The snapshot has other sizes than `ids` and this task, or other randomisation.
        """
        index, parts = index_of(ids, self.num_envs), self._parts()
        check_snapshot(snapshot, parts, index, self.spec)
        for name, values in parts.items():
            values[index] = snapshot[name]
        if self._randomised is not None:
            self._randomised.renew(index)
        self._physics.forward(index)
        self.observe()

    def close(self) -> None:
        """Release the cameras; the batch ends with the object."""
        if self._cameras is not None:
            self._cameras.close()

    def _parts(self) -> Streams:
        """Live arrays [B, ...] of everything from which environments continue."""
        parts = {
            "state": self.batch.state,
            "memory": self._memory,
            "episode": self._episode,
            "step": self._step,
            "seed": self._seeds,
            "kind": self._kind,
        }
        if len(self._agents) == 1:
            parts["active"] = self._agents[0].active
        else:
            for agent in self._agents:
                parts |= {f"active/{agent.name}": agent.active, f"step/{agent.name}": agent.rows.step}
                last = self._senses.last[agent.name]
                parts |= {f"last/{agent.name}/{name.strip('/')}": values for name, values in last.items()}
        return parts | (self._randomised.parts() if self._randomised is not None else {})

    def _sense(self, ids: NDArray[np.int32] | None, fresh: NDArray[np.int32] | None = None) -> dict[str, Streams]:
        """As `Senses.sense`."""
        rows = slice(None) if ids is None else ids
        time, step = self._time[rows].copy(), self._step[rows]
        return self._senses.sense(*self._take(ids), ids, fresh, time, step, self._seeds[rows])

    def _take(self, ids: NDArray[np.int32] | None) -> tuple[Fields, Array]:
        """Live arrays of all environments, or copies of some."""
        if ids is None:
            return self._fields, self._memory
        return {name: values[ids] for name, values in self._fields.items()}, self._memory[ids]

    def _control(self, actions: Actions, ids: NDArray[np.int32] | None, live: NDArray[np.bool_]) -> None:
        """Set the controls of environments `ids`; those of parked agents stay."""
        held = []
        for agent in self._agents if len(self._agents) > 1 else ():
            parked = np.flatnonzero(live & ~agent.active)
            if len(parked):
                actions[agent.name][parked] = 0.0
                at = np.ix_(parked, agent.actuators)
                held.append((at, self._ctrl[at]))
        fields, memory = self._take(ids)
        if ids is None:
            self._ctrl[:] = self._task.control(fields, memory, actions)
        else:
            own = {name: values[ids] for name, values in actions.items()}
            self._ctrl[ids] = self._task.control(fields, memory, own)
            self._memory[ids] = memory
        for at, values in held:
            self._ctrl[at] = values

    def _restart(self, over: NDArray[np.int32], seen: dict[str, Streams]) -> Resets | None:
        """Start the next episodes of environments `over`, and write their first observations into `seen`."""
        if not len(over) or not self.autoreset:
            return None
        starts = self._start(over, None)
        for agent, first in self._sense(over).items():
            for name, values in first.items():
                seen[agent][name][over] = values
        return starts

    def _draw(self, seeds: NDArray[np.int64]) -> InitialStates:
        """Draw the initial states of episodes, and their randomised values."""
        start = self._task.initial_states(seeds)
        return start if self._randomised is None else replace(start, drawn=start.drawn | self._randomised.draw(seeds))

    def _start(self, ids: NDArray[np.int32], seeds: NDArray[Any] | None, states: Array | None = None) -> Resets:
        """Begin the next episode of environments `ids`."""
        self._episode[ids] += 1
        self._step[ids] = 0
        if seeds is None and self.draw_seeds is not None:
            seeds = self.draw_seeds(ids + np.int32(self.first))
        if seeds is None:
            seeds, start = self._ahead.take(self.seed, ids, self._episode)
        else:
            seeds = seeds.astype(np.int64)
            start = self._draw(seeds)
        self._seeds[ids] = seeds
        self._physics.blank(ids)
        for name, values in start.state.items():
            self.batch.bind(name)[ids] = values
        if states is not None:
            self.batch.state[ids] = states
        if self._randomised is not None:
            self._randomised.put(ids, start.drawn)
        self._physics.forward(ids)
        for agent in self._agents:
            agent.active[ids] = True
            agent.rows.step[ids] = 0
        fields, memory = self._take(ids)
        self._task.begin(fields, memory)
        self._memory[ids] = memory
        return Resets(ids + np.int32(self.first), seeds, self.batch.state[ids].copy(), start.drawn)
