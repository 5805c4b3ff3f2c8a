"""Environments of one session in a worker: stepped one after the other, started anew where their episodes ended."""

import logging
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embodied.data import Outcome
from embodied.errors import InfrastructureError
from simulators.worker.suite import Env, Moment, MultiAgentEnv, Streams, Suite, next_seed

log = logging.getLogger(__name__)

_TEXT = 300
_SEEDS = 8  # seeds that a start is tried with


@dataclass
class Stepped:
    """One step of M environments of A agents, in their order.

    Attributes:
        streams: `<agent>/<stream>` to [M, *shape], after the step and any start of a next episode.
        rewards: [M, A] float32, 0 at a fault and for a parked agent.
        outcomes: [M, A] uint8 of `Outcome`.
        final: `<agent>/<stream>` to [E, *shape], the last observations of the E episodes that the agent ended.
        faults: Faults, in words.
    """

    streams: Streams
    rewards: NDArray[np.float32]
    outcomes: NDArray[np.uint8]
    final: Streams
    faults: list[str] = field(default_factory=list)


@dataclass
class _Row:
    env: Env | MultiAgentEnv | None = None  # None until its first start, and after a fault
    step: int = 0
    seed: int = 0
    last: dict[str, Streams] = field(default_factory=dict)
    active: set[str] = field(default_factory=set)


class EnvRows:
    """`count` environments of a suite; each is made at its first start.

    Args:
        suite: Their maker.
        count: Number of environments.
        success_ends: Whether success ends an episode at once, or counts only where an episode ends anyway.
    """

    def __init__(self, suite: Suite, count: int, success_ends: bool = False) -> None:
        self._suite, self.success_ends = suite, success_ends
        self._rows = [_Row() for _ in range(count)]
        self._agents = suite.spec.agents
        self._ends = np.cumsum([agent.action_dim for agent in self._agents.values()])

    def __len__(self) -> int:
        return len(self._rows)

    def reset(self, ids: Sequence[int], seeds: Sequence[int], faults: list[str] | None = None) -> Streams:
        """Start episodes; returns `<agent>/<stream>` to [M, *shape].

        A seed that an environment does not start with is replaced, see `seeds`, and appended to `faults`, in words.

        Raises:
            InfrastructureError: An environment starts with none of several seeds.
        """
        faults = [] if faults is None else faults
        for id, seed in zip(ids, seeds, strict=True):
            self._start(self._rows[id], id, seed, faults)
        return self._seen(ids)

    def seeds(self, ids: Sequence[int]) -> NDArray[np.int64]:
        """[M] seeds that the episodes began with."""
        return np.array([self._rows[id].seed for id in ids], np.int64)

    def replay(self, ids: Sequence[int], lengths: Sequence[int], actions: NDArray[np.float32]) -> Streams:
        """Take the first `lengths[i]` of `actions` [M, L, D]; an environment that fails on the way stays there."""
        for index, (id, length) in enumerate(zip(ids, lengths, strict=True)):
            row = self._rows[id]
            for action in actions[index, :length]:
                if Outcome.INFRASTRUCTURE_FAULT in self._step(row, id, action, [])[1]:
                    break
        return self._seen(ids)

    def step(
        self,
        ids: Sequence[int],
        actions: NDArray[np.float32],
        seeds: Sequence[int] | None = None,
        unrepeated: Collection[int] = (),
    ) -> Stepped:
        """Take one control step of environments `ids`, ascending.

        Args:
            ids: [M].
            actions: [M, D] of all agents, one after the other; one that is not finite is a fault. Those of a parked
                agent are ignored.
            seeds: [M] of the episodes that follow where all agents have ended; None to start none.
            unrepeated: Environments whose restored episode is not the one before, and ends as a fault.

        Raises:
            InfrastructureError: As `reset`.
        """
        shape = len(ids), len(self._agents)
        rewards, outcomes = np.zeros(shape, np.float32), np.zeros(shape, np.uint8)
        final: dict[str, list[Streams]] = {name: [] for name in self._agents}
        faults: list[str] = []
        for index, (id, action) in enumerate(zip(ids, actions, strict=True)):
            row = self._rows[id]
            rewards[index], outcomes[index] = self._step(row, id, action, faults, repeats=id not in unrepeated)
            for name, outcome in zip(self._agents, outcomes[index], strict=True):
                if outcome:
                    final[name].append(row.last[name])
            if outcomes[index].any() and not row.active and seeds is not None:
                self._start(row, id, seeds[index], faults)
        last = {key: values for name, rows in final.items() for key, values in self._stack(name, rows).items()}
        return Stepped(self._seen(ids), rewards, outcomes, last, faults)

    def close(self) -> None:
        for row in self._rows:
            self._drop(row)

    def _start(self, row: _Row, id: int, seed: int, faults: list[str]) -> None:
        """Start an episode with `seed`, twice if need be, or with the first seed after it that works."""
        failed = ""
        for tries in (0, *range(_SEEDS)):
            row.seed = next_seed(seed, tries)
            try:
                row.env = row.env or self._suite.make()
                seen = self._by_agent(row.env.reset(row.seed))
                row.last = {name: self._checked(name, seen[name]) for name in self._agents}
                row.step, row.active = 0, set(self._agents)
            except Exception as error:
                self._drop(row)
                failed = failed or _words(error)
                log.warning("environment %d is made anew: reset with seed %d failed: %s", id, row.seed, _words(error))
                continue
            if row.seed != seed:
                faults.append(f"environment {id} cannot be started with seed {seed}: {failed}; seed {row.seed} follows")
            return
        what = f"environment {id} cannot be started with seed {seed}: {failed}; {_SEEDS - 1} other seeds fail too"
        raise InfrastructureError(what, self._suite.spec.task, "mend its reset; the worker's log has every error")

    def _step(
        self, row: _Row, id: int, action: NDArray[np.float32], faults: list[str], repeats: bool = True
    ) -> tuple[list[float], list[Outcome]]:
        """Rewards and outcomes of one step; at a fault the last observations stay, and the environment is closed."""
        rewards, outcomes = dict.fromkeys(self._agents, 0.0), dict.fromkeys(self._agents, Outcome.RUNNING)
        acting = [name for name in self._agents if name in row.active]
        try:
            if row.env is None:
                raise RuntimeError("it was never started, or not since its last fault")
            if not repeats:
                raise RuntimeError(f"reset with seed {row.seed} and the same actions do not repeat the episode")
            parts = dict(zip(self._agents, np.split(action, self._ends[:-1]), strict=True))
            given = {name: parts[name] for name in acting}
            if not all(np.isfinite(part).all() for part in given.values()):
                raise ValueError("the action is not finite")
            moments = self._by_agent(row.env.step(given if len(self._agents) > 1 else action))  # type: ignore[arg-type]
            seen = {}
            for name in acting:
                rewards[name], outcomes[name] = self._scored(moments[name], row.step + 1)
                seen[name] = self._checked(name, moments[name].streams)
            row.last |= seen
        except Exception as error:
            faults.append(f"environment {id}, step {row.step}: {_words(error)}")
            log.warning("%s; its episode ends as an infrastructure fault", faults[-1])
            self._drop(row)
            ended = acting or self._agents
            row.active = set()
            return [0.0] * len(self._agents), [
                Outcome.INFRASTRUCTURE_FAULT if name in ended else Outcome.RUNNING for name in self._agents
            ]
        row.step += 1
        row.active -= {name for name, outcome in outcomes.items() if outcome}
        return list(rewards.values()), list(outcomes.values())

    def _scored(self, moment: Moment, step: int) -> tuple[float, Outcome]:
        """Reward and outcome of one agent at its episode's step `step`, counted from 1."""
        reward = float(_numbers("the reward", np.reshape(moment.reward, ()), "float32", ()))
        success, terminated, truncated = (_flag(moment, name) for name in ("success", "terminated", "truncated"))
        done = terminated or truncated or step >= self._suite.spec.episode_steps
        if success and (done or self.success_ends):
            return reward, Outcome.SUCCESS
        if terminated:
            return reward, Outcome.FAILURE
        return reward, Outcome.TIME_LIMIT if done else Outcome.RUNNING

    def _by_agent(self, given: Any) -> dict[str, Any]:
        """`given` of an environment of several agents, or as the mapping of the only one."""
        return given if len(self._agents) > 1 else {self._suite.spec.only_agent: given}

    def _checked(self, agent: str, streams: Streams) -> Streams:
        """Streams as the spec says, owned; raises `ValueError` where they are not, or not finite."""
        return {
            stream.name: _numbers(f"observation {stream.name}", streams.get(stream.name), stream.dtype, stream.shape)
            for stream in self._agents[agent].observations
        }

    def _seen(self, ids: Sequence[int]) -> Streams:
        rows = [self._rows[id] for id in ids]
        return {
            key: values
            for name in self._agents
            for key, values in self._stack(name, [row.last[name] for row in rows]).items()
        }

    def _stack(self, agent: str, rows: list[Streams]) -> Streams:
        streams = self._agents[agent].observations
        if not rows:
            return {f"{agent}/{s.name}": np.zeros((0, *s.shape), s.dtype) for s in streams}
        return {f"{agent}/{s.name}": np.stack([row[s.name] for row in rows]) for s in streams}

    @staticmethod
    def _drop(row: _Row) -> None:
        if row.env is not None:
            with suppress(Exception):  # it may be broken
                row.env.close()
        row.env = None


def _numbers(what: str, value: Any, dtype: str, shape: tuple[int, ...]) -> NDArray[Any]:
    """`value` as an array of its own; raises `ValueError` where it has another shape, or numbers that `dtype` lacks."""
    given = np.asarray(value)
    if given.dtype.kind not in "biuf":
        raise ValueError(f"{what} holds no numbers: {str(value)[:40]}")
    if given.shape != shape:
        raise ValueError(f"{what} has shape {given.shape}, its spec says {shape}")
    with np.errstate(over="ignore", invalid="ignore"):  # both are checked below
        array = given.astype(dtype)
    if not (np.isfinite(given) & np.isfinite(array)).all():
        raise ValueError(f"{what} is not finite as {dtype}")
    if array.dtype.kind != "f" and not (array == given).all():
        raise ValueError(f"{what} holds numbers that are not {dtype}, from {given.min()} to {given.max()}")
    return array


def _flag(moment: Moment, name: str) -> bool:
    value = getattr(moment, name)
    if not isinstance(value, bool | np.bool_):
        raise ValueError(f"{name} is {str(value)[:40]}, neither True nor False")
    return bool(value)


def _words(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:_TEXT]


def as_ints(values: NDArray[Any]) -> list[int]:
    """Python integers, which environments take for a seed where they refuse numpy's."""
    return [int(value) for value in values]
