"""Environments that run in workers: `embodied.rollout.env.Env` over the wire."""

import dataclasses
import logging
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from embodied import noise
from embodied.data import EnvStep, Observation, Outcome, Resets, Rows
from embodied.errors import ConfigError, DeadlineExceeded, EmbodiedError, InfrastructureError, UserError
from embodied.spec import EnvSpec
from embodied.wire.message import Message
from simulators.agents import action_shapes, agent_actions
from simulators.remote.answers import Streams, agent_step, agent_streams, faults_of, seeds_of, streams_of, take_step
from simulators.remote.worker_pool import WorkerPool
from simulators.snapshots import check_replay, index_of
from simulators.worker.suite import next_seed

log = logging.getLogger(__name__)

# A plain number: numpy takes several times as long with members of an enumeration.
_INFRASTRUCTURE_FAULT = int(Outcome.INFRASTRUCTURE_FAULT)
_MAX_SEED = 2**63 - 1
_SEED_MASK = 2**31 - 1  # some suites take no larger seeds
_HANGS = 6  # resets that hang before a start is given up


@dataclass(eq=False)
class _Part:
    """Rows whose environments one worker runs; `peer` is None while there is no worker for them."""

    ids: NDArray[np.int32]
    session: str
    peer: bytes | None = None


class RemoteEnv:
    """`num_envs` environments in workers, each with consecutive rows; all workers are asked at once, then awaited.

    An environment is a function of its seed and actions: `snapshot` holds those, and `restore` takes the steps again.
    An environment whose observation then differs ends its episode as an infrastructure fault at the next step.

    A worker that is gone, silent for `timeout_s` or sends a malformed answer ends the episodes of its rows as
    infrastructure faults; another worker takes the rows over. An episode whose reset raises or hangs begins with
    another seed, and counts as a fault.

    Args:
        pool: Workers.
        num_envs: B.
        num_workers: Workers that share the rows.
        timeout_s: Seconds to wait for an answer, and for workers to come.
        success_ends: Whether success ends an episode at once, or counts only where it ends anyway.
        seed: Draws the episode seeds that `reset` is not given.
        task, instruction: Name and instruction in the spec; where the name is empty, the workers' own.
        release: Called once at `close`.
        first: Global index of the first environment.

    Raises:
        SpecMismatch: A worker runs something else.
        InfrastructureError: Too few workers came.
    """

    def __init__(
        self,
        pool: WorkerPool,
        num_envs: int,
        num_workers: int,
        timeout_s: float,
        success_ends: bool,
        seed: int = 0,
        task: str = "",
        instruction: str = "",
        release: Callable[[], None] = lambda: None,
        first: int = 0,
    ) -> None:
        self._pool, self._timeout_s, self._success_ends, self._release = pool, timeout_s, success_ends, release
        self.num_envs, self.autoreset, self.seed, self.first = num_envs, True, seed, first
        self.physics_s, self.faults = 0.0, 0
        session = f"{pool.name}-{uuid.uuid4().hex[:12]}"
        shares = np.array_split(np.arange(num_envs, dtype=np.int32), min(num_workers, num_envs))
        self._parts = [_Part(share, f"{session}-{i}") for i, share in enumerate(shares)]
        self._place(self._parts, time.monotonic() + timeout_s)
        spec = pool.spec
        assert spec is not None  # there is a worker
        self.spec: EnvSpec = dataclasses.replace(spec, task=task or spec.task, instruction=instruction)
        agents = self.spec.agents
        self._names = list(agents)
        self._limits = {name: agent.action_limits for name, agent in agents.items()}
        self._rows = [Rows.of_envs(num_envs, first, index) for index in range(len(agents))]
        self._episode, self._step = np.full(num_envs, -1, np.int64), np.zeros(num_envs, np.int32)
        self._agent_step = np.zeros((num_envs, len(agents)), np.int32)  # stays where an agent's episode ended
        self._active = np.zeros((num_envs, len(agents)), bool)
        self._broken = np.zeros(num_envs, bool)
        self._seeds = np.zeros(num_envs, np.int64)
        self._taken = np.zeros((num_envs, self.spec.episode_steps, self.spec.control_size), np.float32)
        self._last: Streams = {
            f"{name}/{s.name}": np.zeros((num_envs, *s.shape), s.dtype)
            for name, agent in agents.items()
            for s in agent.observations
        }
        self._begun = False
        self._shapes = action_shapes(self.spec, num_envs)

    def reset(self, seeds: ArrayLike | None = None) -> tuple[dict[str, Observation], Resets]:
        """As `Env.reset`.

        Raises:
            ConfigError: `seeds` is not one integer from 0 to 2^63 - 1 per environment.
            InfrastructureError: No worker can start the episodes.
        """
        everyone = np.arange(self.num_envs, dtype=np.int32)
        if seeds is not None:
            given = np.asarray(seeds)
            whole = given.shape == (self.num_envs,) and np.issubdtype(given.dtype, np.integer)
            if not whole or (given < 0).any() or (given > _MAX_SEED).any():
                fix = f"give {self.num_envs} integers from 0 to {_MAX_SEED}"
                raise ConfigError(f"seeds of shape {given.shape}, {given.dtype}", "reset", fix)
        chosen = self._next_seeds(everyone) if seeds is None else given.astype(np.int64)
        self._start(everyone, chosen)
        self._begun = True
        return self._observations(), self._starts(everyone)

    def step(self, actions: Mapping[str, NDArray[np.float32]]) -> EnvStep:
        """As `Env.step`.

        Raises:
            SpecMismatch: `actions` are not [B, D] of each agent.
            ConfigError: No episode was ever started.
            InfrastructureError: A worker was lost, and no other came in time.
        """
        requested = agent_actions(actions, self._shapes, self.spec.task)
        if not self._begun:
            raise ConfigError("step before the first reset", f"task {self.spec.task}", "call reset() first")
        acting, live = self._active.copy(), self._active.any(axis=1)
        clipped = {
            name: np.where(acting[:, [index]], np.clip(requested[name], -limit, limit), np.float32(0))
            for index, (name, limit) in enumerate(self._limits.items())
        }
        asked = np.concatenate(list(clipped.values()), axis=1)
        asked[self._broken] = np.nan  # which a worker takes for a fault
        self._taken[live, self._step[live]] = asked[live]
        self._step[live] += 1
        np.copyto(self._agent_step, self._step[:, None], where=acting)
        seeds = self._next_seeds(np.arange(self.num_envs, dtype=np.int32))
        asked_seeds = seeds.copy()
        broken = np.flatnonzero(self._broken & live)
        before = {name: values[broken] for name, values in self._last.items()}
        rewards, outcomes, final, orphans = self._ask(acting, asked, seeds)
        for name, values in before.items():  # the last observations of the old worker
            final[name][broken] = values
        faulty = outcomes == _INFRASTRUCTURE_FAULT
        self.faults += int(faulty.any(axis=1).sum())
        self._active &= outcomes == 0
        over = np.flatnonzero(live & ~self._active.any(axis=1)).astype(np.int32)
        self._broken[over] = False
        started = None
        if self.autoreset and len(over):
            self._count_start(over, seeds[over])
            self.faults += int((seeds[over] != asked_seeds[over]).sum())
            if len(orphans):
                self._begin(orphans)
            started = self._starts(over)
        observations = self._observations()
        agents = {}
        for index, name in enumerate(self._names):
            acts, ends, active = acting[:, index], outcomes[:, index], self._active[:, index]
            agent = agent_step(observations[name], requested[name], clipped[name], acts, ends, active)
            agent.rewards = np.where(faulty[:, index], np.float32(0), rewards[:, index])
            agent.final = {s.name: final[f"{name}/{s.name}"][agent.ended] for s in self.spec.agents[name].observations}
            agents[name] = agent
        return EnvStep(agents, np.nan_to_num(asked).astype(np.float64), started)

    def expert(self) -> dict[str, NDArray[np.float32]]:
        """Raises `ConfigError`: other projects' environments bring no scripted expert."""
        fix = "train without warm_start.demonstrations"
        raise ConfigError(f"{self.spec.task} has no scripted expert", f"env {self._pool.wanted.env}", fix)

    def snapshot(self, ids: ArrayLike | None = None) -> dict[str, NDArray[Any]]:
        """As `Env.snapshot`: seeds, actions since, counters, and what was last observed."""
        index = index_of(ids, self.num_envs)
        longest = int(self._step[index].max(initial=0))
        return {
            "seed": self._seeds[index].copy(),
            "actions": self._taken[index, :longest].copy(),
            "episode": self._episode[index].copy(),
            "step": self._step[index].copy(),
            "agent_step": self._agent_step[index].copy(),
            "active": self._active[index].copy(),
            **{f"last/{name}": values[index].copy() for name, values in self._last.items()},
        }

    def restore(self, snapshot: dict[str, NDArray[Any]], ids: ArrayLike | None = None) -> None:
        """As `Env.restore`: starts the episodes again with their seeds, and takes the same actions.

        Raises:
            SpecMismatch: The snapshot has other sizes than `ids` and this task.
            InfrastructureError: No worker can start the episodes.
        """
        index = index_of(ids, self.num_envs)
        check_replay(snapshot, self._last, len(index), len(self._names), self.spec)
        step, active = snapshot["step"].astype(np.int32), snapshot["active"].astype(bool)
        self._seeds[index], self._step[index] = snapshot["seed"], step
        self._episode[index], self._agent_step[index] = snapshot["episode"], snapshot["agent_step"]
        self._taken[index, : snapshot["actions"].shape[1]] = snapshot["actions"]
        self._active[index], self._broken[index] = active, False
        last = {name: snapshot[f"last/{name}"] for name in self._last}
        goes_on = active.any(axis=1)
        running = index[goes_on]
        if len(running):
            self._begin(running, replay=True)
            same: NDArray[np.bool_] = np.ones(len(running), bool)
            for name, values in self._last.items():
                if values.dtype == np.float32:
                    axes = tuple(range(1, values.ndim))
                    same &= (values[running] == last[name][goes_on]).all(axis=axes)
            self._broken[running[~same]] = True
            if not same.all():
                log.warning("%d episodes of %s do not repeat, and end as faults", (~same).sum(), self.spec.task)
        for name, values in last.items():
            self._last[name][index] = values
        self._begun = True

    def close(self) -> None:
        """Give the workers back; the last environment at an address stops listening there."""
        for part in self._parts:
            if part.peer is not None:
                self._pool.release(part.session, part.peer)
            part.peer = None
        self._release()
        self._release = lambda: None

    def _start(self, ids: NDArray[np.int32], seeds: NDArray[np.int64]) -> None:
        """Begin the next episodes of `ids`."""
        self._count_start(ids, seeds)
        self._begin(ids)
        self._broken[ids] = False

    def _count_start(self, ids: NDArray[np.int32], seeds: NDArray[np.int64]) -> None:
        self._episode[ids] += 1
        self._step[ids], self._agent_step[ids] = 0, 0
        self._active[ids] = True
        self._seeds[ids] = seeds

    def _next_seeds(self, ids: NDArray[np.int32]) -> NDArray[np.int64]:
        """[M] seeds of the next episodes of `ids`, from (seed, env, episode)."""
        keys = np.zeros((len(ids), 5), np.int64)
        keys[:, 0], keys[:, 1], keys[:, 3] = self.seed, self.first + ids, self._episode[ids] + 1
        return noise.integers(keys) & _SEED_MASK

    def _ask(
        self, acting: NDArray[np.bool_], actions: NDArray[np.float32], seeds: NDArray[np.int64]
    ) -> tuple[NDArray[np.float32], NDArray[np.uint8], Streams, NDArray[np.int32]]:
        """Let the workers take one step of the rows in which an agent acts; `seeds` become those that they start with.

        Returns:
            Rewards [B, A], outcomes [B, A], last observations [B, ...] of the episodes that ended, and the rows whose
            workers were lost, which end as faults with their last observations.
        """
        live = np.asarray(acting.any(axis=1))
        asked = {part.peer: (part, part.ids[live[part.ids]]) for part in self._parts if part.peer is not None}
        asked = {peer: (part, ids) for peer, (part, ids) in asked.items() if len(ids)}
        messages = {}
        for peer, (part, ids) in asked.items():
            arrays = {"ids": ids - part.ids[0], "actions": actions[ids]}
            if self.autoreset:
                arrays["seeds"] = seeds[ids]
            if self._broken[ids].any():
                arrays["unrepeated"] = (ids[self._broken[ids]] - part.ids[0]).astype(np.int32)
            messages[peer] = Message("step", session=part.session, arrays=arrays)
        rewards, outcomes = np.zeros(acting.shape, np.float32), np.zeros(acting.shape, np.uint8)
        final = {name: values.copy() for name, values in self._last.items()}
        orphans: list[NDArray[np.int32]] = []
        seconds = [0.0]
        for peer, answer in self._pool.exchange(messages, self._timeout_s).items():
            part, ids = asked[peer]
            try:
                stepped = take_step(answer, self.spec, self._step[ids], acting[ids])
                seeds[ids] = seeds_of(answer, seeds[ids])
            except EmbodiedError as error:
                self._lose(part, error)
                outcomes[ids] = acting[ids] * np.uint8(_INFRASTRUCTURE_FAULT)
                orphans.append(ids)
                continue
            rewards[ids], outcomes[ids] = stepped.rewards, stepped.outcomes
            for name, values in stepped.final.items():
                ended = stepped.outcomes[:, self._names.index(name.partition("/")[0])] != 0
                final[name][ids[ended]] = values
            for name, values in stepped.streams.items():
                self._last[name][ids] = values
            seconds.append(stepped.physics_s)
            for fault in stepped.faults:
                log.warning("a fault in rows %d to %d: %s", ids[0], ids[-1], fault)
        self.physics_s += max(seconds)
        lost = np.concatenate(orphans) if orphans else np.zeros(0, np.int32)
        return rewards, outcomes, final, np.sort(lost)

    def _begin(self, ids: NDArray[np.int32], replay: bool = False) -> None:
        """Start the episodes of `ids` with their seeds, and take the actions taken so far if this is a `replay`.

        A worker that is lost on the way is replaced, until the deadline. One that hangs is replaced too, and its rows
        start one by one; the row that hangs again gets another seed.
        """
        limit, hangs = time.monotonic() + self._timeout_s, 0
        mine = {part.session: part.ids[np.isin(part.ids, ids)] for part in self._parts}
        todo = {session: [rows] for session, rows in mine.items() if len(rows)}
        cause: EmbodiedError | None = None
        while todo:
            if cause is not None and time.monotonic() >= limit:
                raise cause
            homes = [part for part in self._parts if part.session in todo]
            self._place(homes, limit, cause)
            parts = {part.peer: part for part in homes if part.peer is not None}
            messages = {peer: self._reset_message(part, todo[part.session][0], replay) for peer, part in parts.items()}
            for peer, answer in self._pool.exchange(messages, self._timeout_s).items():
                session = parts[peer].session
                rows = todo[session][0]
                try:
                    counts = dict.fromkeys(self._names, len(rows))
                    streams = streams_of(answer, "stream", agent_streams(self.spec), counts)
                    seeds = seeds_of(answer, self._seeds[rows])
                except EmbodiedError as error:
                    cause = error
                    self._lose(parts[peer], error)
                    if isinstance(error, UserError):
                        raise
                    todo[session] = [mine[session]]
                    if isinstance(error, DeadlineExceeded):
                        hangs += 1
                        if hangs > _HANGS or (replay and len(rows) == 1):
                            raise
                        limit = time.monotonic() + self._timeout_s
                        todo[session] = [mine[session][[i]] for i in range(len(mine[session]))]
                        if len(rows) == 1:
                            self.faults += 1
                            hung = int(self._seeds[rows[0]])
                            self._seeds[rows] = next_seed(hung)
                            log.warning(
                                "reset of row %d hangs with seed %d; seed %d follows", rows[0], hung, next_seed(hung)
                            )
                    continue
                self.faults += int((seeds != self._seeds[rows]).sum())
                self._seeds[rows] = seeds
                for fault in faults_of(answer):
                    log.warning("a fault in rows %d to %d: %s", rows[0], rows[-1], fault)
                for name, values in streams.items():
                    self._last[name][rows] = values
                todo[session].pop(0)
                if not todo[session]:
                    del todo[session]

    def _reset_message(self, part: _Part, ids: NDArray[np.int32], replay: bool) -> Message:
        arrays: dict[str, NDArray[Any]] = {"ids": ids - part.ids[0], "seeds": self._seeds[ids]}
        if replay:
            lengths = self._step[ids]
            arrays |= {"lengths": lengths, "actions": self._taken[ids, : int(lengths.max(initial=0))]}
        body = {"size": len(part.ids), "success_ends": self._success_ends}
        return Message("reset", session=part.session, body=body, arrays=arrays)

    def _place(self, parts: list[_Part], limit: float, cause: EmbodiedError | None = None) -> None:
        """Find a worker for each part that has none."""
        homeless = [part for part in parts if part.peer is None]
        if not homeless:
            return
        taken = {part.peer for part in self._parts if part.peer is not None}
        try:
            workers = self._pool.acquire(homeless[0].session, len(homeless), taken, limit)
        except InfrastructureError as error:
            if cause is None:
                raise
            raise InfrastructureError(
                f"{cause.what} ({cause.where}), and {error.what}", error.where, error.fix
            ) from None
        for part, worker in zip(homeless, workers, strict=True):
            part.peer = worker.peer

    def _lose(self, part: _Part, error: EmbodiedError) -> None:
        log.warning(
            "rows %d to %d of %s lose their worker: %s", part.ids[0], part.ids[-1], self.spec.task, error.line()
        )
        assert part.peer is not None
        self._pool.release(part.session, part.peer, error)
        part.peer = None

    def _observations(self) -> dict[str, Observation]:
        seen = {}
        for index, name in enumerate(self._names):
            step = self._agent_step[:, index].copy()
            rows = Rows(self._rows[index].env.copy(), self._rows[index].agent.copy(), self._episode.copy(), step)
            streams = {s.name: self._last[f"{name}/{s.name}"].copy() for s in self.spec.agents[name].observations}
            seen[name] = Observation(rows, streams, step / np.float64(self.spec.control_hz))
        return seen

    def _starts(self, ids: NDArray[np.int32]) -> Resets:
        return Resets(ids + np.int32(self.first), self._seeds[ids].copy(), np.zeros((len(ids), 0)))
