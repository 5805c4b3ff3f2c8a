"""Many envs of one task on MuJoCo's batch: the simulator behind `embodied.rollout.env.Env`."""

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import mujoco
import numpy as np
from mujoco.batch import Batch, SimulationError
from numpy.typing import ArrayLike, NDArray

from embodied.data import AgentStep, EnvStep, Observation, Outcome, Resets, RewardStatus, Rows
from embodied.errors import ConfigError, InfrastructureError, SpecMismatch
from simulators.randomise import draw
from simulators.randomise.envs import RandomisedEnvs
from simulators.randomise.ranges import Ranges
from simulators.render.cameras import Cameras
from simulators.replay import state_hash
from simulators.senses import Senses, Streams, with_cameras
from simulators.starts import ResetsAhead
from simulators.task import Array, Fields, Start, Task, agent_actions

MAX_ENVS = 65536
# Position- and velocity-dependent fields are current after every call, and a persistent batch goes on from them.
STAGE = int(mujoco.mjtStage.mjSTAGE_VEL)

# MuJoCo's warnings are counted here; by default it also prints them, and leaves a MUJOCO_LOG.TXT in the folder.
_log = mujoco.MjLogConfig.get()
_log.logto_file = _log.logto_console = False
_log.set()


class BatchEnv:
    """`num_envs` envs of one task, stepped together, physics on threads.

    Args:
        task: What to simulate.
        num_envs: B.
        num_threads: Physics threads; 0 for one per CPU.
        seed: Draws the episode seeds that `reset` is not given.
        cameras: Pictures to sense besides the task's streams; closed with the environment.
        randomise: What differs between episodes besides their starts.

    Attributes:
        task: As given.
        batch: The physics; its arrays are live.
        action_limit: [D], beyond which actions are clipped.
        draw_seeds: Gives the seeds [M] of the next episodes of envs [M], in place of `seed`; None to derive them.
        Others as in `embodied.rollout.env.Env`; `spec` has the streams of the cameras.

    Raises:
        ConfigError: A count is out of range, or `randomise` does not fit the task's streams.
        SpecMismatch: The task draws something under a name that randomisation has.
    """

    def __init__(
        self,
        task: Task,
        num_envs: int,
        num_threads: int = 0,
        seed: int = 0,
        cameras: Cameras | None = None,
        randomise: Ranges | None = None,
    ) -> None:
        for value, key, low, high in (
            (num_envs, "num_envs", 1, MAX_ENVS),
            (num_threads, "num_threads", 0, 1024),
            (seed, "seed", 0, 2**63 - 1),
        ):
            if isinstance(value, bool) or not isinstance(value, int | np.integer) or not low <= value <= high:
                raise ConfigError(f"{key} cannot be {value!r}", key, f"choose a whole number from {low} to {high}")
        if cameras is not None:
            cameras.check_memory(num_envs)
        self.task, self.spec, self.num_envs = task, with_cameras(task.spec, cameras), num_envs
        self._agent = task.spec.only_agent
        self.action_limit = task.spec.agents[self._agent].action_limits
        self.autoreset, self.seed = True, seed
        self.draw_seeds: Callable[[NDArray[np.int32]], NDArray[np.int64]] | None = None
        self.physics_s, self.faults = 0.0, 0
        self.batch = Batch(task.model, num_envs, num_threads, persistent=True)
        self._fields: Fields = {name: self.batch.bind(name) for name in task.fields}
        self._cameras = cameras
        self._ctrl, self._time = self.batch.bind("ctrl"), self.batch.bind("time")
        self._blank = self.batch.state[0].copy()
        self._memory = np.zeros((num_envs, task.memory_size))
        self._rows = Rows.of_envs(num_envs)
        self._rows.episode -= 1
        self._seeds = np.zeros(num_envs, np.int64)
        self._active = np.zeros(num_envs, bool)
        # MuJoCo's warnings (bad state, full buffers) as counts, [B, kinds]; zeroed once seen, for a env that diverges
        # is reset by MuJoCo, its counts with it, and would show the same again.
        self._warning = self.batch.warning[:, :, 1]
        # Whose snapshots are taken up: those of envs with the same streams.
        self._kind = np.full(num_envs, int(task.spec.agents[self._agent].hash, 16), np.int64)
        self._randomised: RandomisedEnvs | None = None
        if randomise is not None and randomise.any:
            self._randomised = RandomisedEnvs(randomise, self.batch, self.spec.agents[self._agent], cameras is not None)
        if taken := sorted(task.start(self._seeds[:1]).drawn.keys() & set(draw.NAMES)):
            raise SpecMismatch(f"start() draws {taken[0]}", f"task {self.spec.task}", "give it another name")
        self._ahead = ResetsAhead(self._draw, num_envs)
        self._senses = Senses(task, self.spec, self.batch, cameras, self._randomised)

    def reset(
        self, seeds: ArrayLike | None = None, states: Array | None = None
    ) -> tuple[dict[str, Observation], Resets]:
        """As `Env.reset`; `states` [B, S] are where the episodes start, instead of where their seeds put them.

        Raises:
            ConfigError: `seeds` is not one integer per env.
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

    def observe(self) -> dict[str, Observation]:
        """Agent name to what it senses in the present state."""
        streams, when = self._sense(None)
        self._senses.note(streams)
        return {self._agent: Observation(self._rows.take(slice(None)), streams, when)}

    def step(self, actions: Mapping[str, NDArray[np.float32]]) -> EnvStep:
        """As `Env.step`.

        Raises:
            SpecMismatch: `actions` are not [B, D] of each agent.
            ConfigError: No episode was ever started.
        """
        return self._step(np.asarray(agent_actions(actions, self.spec)[self._agent], np.float32))

    def _step(self, actions: NDArray[np.float32]) -> EnvStep:
        if actions.shape != (self.num_envs, len(self.action_limit)):
            wanted = (self.num_envs, len(self.action_limit))
            raise SpecMismatch(f"actions of shape {actions.shape}", f"task {self.spec.task}", f"give {wanted}")
        if not self._senses.last:
            raise ConfigError("step before the first reset", f"task {self.spec.task}", "call reset() first")
        live = self._active.copy()
        every = bool(live.all())
        ids = None if every else np.flatnonzero(live).astype(np.int32)

        faulty = np.isnan(actions).any(axis=1)
        if faulty.any():
            actions = np.where(np.isnan(actions), np.float32(0), actions)
        actions, arrived = np.clip(actions, -self.action_limit, self.action_limit), ids
        if self._randomised is not None:
            actions, arrived = self._randomised.delay(actions, self._rows.step, ids)
        self._control(actions, arrived)
        applied = self._ctrl.copy()
        faulty |= self._advance(ids)
        faulty &= live
        if faulty.any():
            self._blank_out(np.flatnonzero(faulty))
        hashes = state_hash(self.batch.state)
        fields, memory = self._take(ids)
        self.task.update(fields, memory)
        if ids is not None:
            self._memory[ids] = memory
        self._rows.step[live] += 1

        success = self.task.success(self._fields, self._memory) & live & ~faulty
        failure = self.task.failure(self._fields, self._memory) & live & ~faulty & ~success
        late = (self._rows.step >= self.spec.episode_steps) & live
        rewards = self.task.reward(self._fields, self._memory)
        outcomes = np.zeros(self.num_envs, np.uint8)
        outcomes[late] = Outcome.TIME_LIMIT
        outcomes[failure] = Outcome.FAILURE
        outcomes[success] = Outcome.SUCCESS
        outcomes[faulty] = Outcome.INFRASTRUCTURE_FAULT
        status = np.zeros(self.num_envs, np.uint8)
        status[faulty] = RewardStatus.FAILED
        if not every or faulty.any():
            rewards[~live | faulty] = 0.0
        terminated = success | failure
        ended = np.flatnonzero(outcomes).astype(np.int32)
        truncated = (outcomes != Outcome.RUNNING) & ~terminated

        streams, when = self._sense(None, ids)
        for env in np.flatnonzero(faulty):
            for name, values in streams.items():
                values[env] = self._senses.last[name][env]
        final = {name: values[ended] for name, values in streams.items()}
        started = self._finish(ended, streams, when)
        self.faults += int(faulty.sum())
        self._senses.note(streams)
        observation = Observation(self._rows.take(slice(None)), streams, when)
        agent = AgentStep(observation, rewards, status, terminated, truncated, outcomes, ended, final)
        return EnvStep({self._agent: agent}, applied, started, hashes)

    def expert(self) -> dict[str, NDArray[np.float32]]:
        return {self._agent: self.task.expert(self._fields, self._memory)}

    def snapshot(self, ids: ArrayLike | None = None) -> dict[str, NDArray[Any]]:
        index = self._index(ids)
        return {name: values[index] for name, values in self._parts().items()}

    def restore(self, snapshot: dict[str, NDArray[Any]], ids: ArrayLike | None = None) -> None:
        """As `Env.restore`; `observe` then tells what the envs sense.

        Raises:
            SpecMismatch: The snapshot has other sizes than `ids` and this task, or is of envs randomised otherwise.
        """
        index, parts = self._index(ids), self._parts()
        for name in sorted(parts.keys() | snapshot.keys()):
            wanted = (len(index), *parts[name].shape[1:]) if name in parts else None
            if name not in snapshot or np.shape(snapshot[name]) != wanted:
                fix = f"its shape must be {wanted}" if wanted else "use envs with the same randomisation"
                raise SpecMismatch("a snapshot of another task or count", f"snapshot {name}", fix)
            if not np.can_cast(np.asarray(snapshot[name]).dtype, parts[name].dtype, "same_kind"):
                raise SpecMismatch(
                    f"{name} is not {parts[name].dtype}", f"snapshot {name}", "restore what snapshot() gave"
                )
        if (np.asarray(snapshot["kind"]) != self._kind[index]).any():
            raise SpecMismatch(
                "a snapshot of a env with other streams",
                f"task {self.spec.task}",
                "use the same task, robot and control",
            )
        if not np.isfinite(snapshot["state"]).all() or np.min(snapshot["step"], initial=0) < 0:
            raise SpecMismatch("a snapshot that no env was ever in", "snapshot", "restore what snapshot() gave")
        for name, values in parts.items():
            values[index] = snapshot[name]
        if self._randomised is not None:
            self._randomised.renew(index)
        self._forward(index)
        self.observe()

    def close(self) -> None:
        """Release the cameras; the batch ends with the object."""
        if self._cameras is not None:
            self._cameras.close()

    def _parts(self) -> Streams:
        """Live arrays [B, ...] of everything from which envs continue."""
        parts = {
            "state": self.batch.state,
            "memory": self._memory,
            "episode": self._rows.episode,
            "step": self._rows.step,
            "seed": self._seeds,
            "active": self._active,
            "kind": self._kind,
        }
        return parts | (self._randomised.parts() if self._randomised is not None else {})

    def _sense(
        self, ids: NDArray[np.int32] | None, fresh: NDArray[np.int32] | None = None
    ) -> tuple[Streams, NDArray[np.float64]]:
        """As `Senses.sense`."""
        rows = slice(None) if ids is None else ids
        time, step = self._time[rows].copy(), self._rows.step[rows]
        return self._senses.sense(*self._take(ids), ids, fresh, time, step, self._seeds[rows])

    def _index(self, ids: ArrayLike | None) -> NDArray[np.int32]:
        """`ids` ascending and checked, or all."""
        index = np.arange(self.num_envs) if ids is None else np.atleast_1d(np.asarray(ids))
        valid = index.ndim == 1 and np.issubdtype(index.dtype, np.integer) and (np.diff(index) > 0).all()
        if not valid or (len(index) and not 0 <= index[0] <= index[-1] < self.num_envs):
            raise ConfigError(f"env ids {index}", "ids", f"give ascending integers below {self.num_envs}")
        return index.astype(np.int32)

    def _take(self, ids: NDArray[np.int32] | None) -> tuple[Fields, Array]:
        """Live arrays of all envs, or copies of some."""
        if ids is None:
            return self._fields, self._memory
        return {name: values[ids] for name, values in self._fields.items()}, self._memory[ids]

    def _control(self, actions: NDArray[np.float32], ids: NDArray[np.int32] | None) -> None:
        fields, memory = self._take(ids)
        if ids is None:
            self._ctrl[:] = self.task.control(fields, memory, actions)
        else:
            self._ctrl[ids] = self.task.control(fields, memory, actions[ids])
            self._memory[ids] = memory

    def _advance(self, ids: NDArray[np.int32] | None) -> NDArray[np.bool_]:
        """Step the physics; [B] whether it diverged."""
        diverged = np.zeros(self.num_envs, bool)
        begin = time.perf_counter()
        try:
            self.batch.step(ids, self.task.substeps, STAGE)
        except SimulationError as error:
            diverged[error.ids] = True
        self.physics_s += time.perf_counter() - begin
        if self._warning.any():
            diverged |= self._warning.any(axis=1)
            self._warning[:] = 0
        if not np.isfinite(self.batch.state.sum()):
            diverged |= ~np.isfinite(self.batch.state).all(axis=1)
        return diverged

    def _blank_out(self, ids: NDArray[Any]) -> None:
        """Put diverged envs into the model's default state, so that nothing that is not finite lives on."""
        self.batch.state[ids] = self._blank
        self._forward(ids.astype(np.int32))
        self._memory[ids] = 0.0

    def _forward(self, ids: NDArray[np.int32]) -> None:
        try:
            self.batch.forward(ids, STAGE)
        except SimulationError as error:
            raise InfrastructureError(
                f"MuJoCo cannot start: {error}", f"task {self.spec.task}", "check its start"
            ) from None

    def _finish(self, ended: NDArray[np.int32], streams: Streams, when: NDArray[np.float64]) -> Resets | None:
        """Park or restart the envs whose episode ended, and write their first observations into `streams`."""
        if not len(ended):
            return None
        if not self.autoreset:
            self._active[ended] = False
            return None
        starts = self._start(ended, None)
        first, when[ended] = self._sense(ended)
        for name, values in first.items():
            streams[name][ended] = values
        return starts

    def _draw(self, seeds: NDArray[np.int64]) -> Start:
        """The starts of episodes, and what is randomised in them."""
        start = self.task.start(seeds)
        return start if self._randomised is None else replace(start, drawn=start.drawn | self._randomised.draw(seeds))

    def _start(self, ids: NDArray[np.int32], seeds: NDArray[Any] | None, states: Array | None = None) -> Resets:
        """Begin the next episode of `ids`."""
        self._rows.episode[ids] += 1
        self._rows.step[ids] = 0
        if seeds is None and self.draw_seeds is not None:
            seeds = self.draw_seeds(ids)
        if seeds is None:
            seeds, start = self._ahead.take(self.seed, ids, self._rows.episode)
        else:
            seeds = seeds.astype(np.int64)
            start = self._draw(seeds)
        self._seeds[ids] = seeds
        self.batch.state[ids] = self._blank
        for name, values in start.state.items():
            self.batch.bind(name)[ids] = values
        if states is not None:
            self.batch.state[ids] = states
        if self._randomised is not None:
            self._randomised.put(ids, start.drawn)
        self._forward(ids)
        self._active[ids] = True
        fields, memory = self._take(ids)
        self.task.begin(fields, memory)
        self._memory[ids] = memory
        return Resets(ids.copy(), seeds, self.batch.state[ids].copy(), start.drawn)
