"""The environments of one body in a worker: stepped one after the other, started anew where an episode ended."""

import logging
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embodied.data import Outcome
from embodied.errors import InfrastructureError
from simulators.worker.suite import Env, Moment, Streams, Suite

log = logging.getLogger(__name__)

_TEXT = 300


@dataclass
class Stepped:
    """What a step of M environments gave, in their order.

    Attributes:
        streams: Stream name to [M, *shape], after the step and any start of a next episode.
        rewards: [M] float32, 0 at a fault.
        outcomes: [M] uint8 of `Outcome`.
        ended: [E] int32, indices into M of the episodes that ended.
        final: Stream name to [E, *shape], their last observations.
        faults: What went wrong, in words.
    """

    streams: Streams
    rewards: NDArray[np.float32]
    outcomes: NDArray[np.uint8]
    ended: NDArray[np.int32]
    final: Streams
    faults: list[str] = field(default_factory=list)


@dataclass
class _Row:
    env: Env | None = None  # None until its first start, and after a fault
    step: int = 0
    last: Streams = field(default_factory=dict)


class EnvRows:
    """`count` environments of a suite; each is made at its first start.

    Args:
        suite: Makes them.
        count: How many.
        success_ends: Whether success ends an episode at once, or counts only where an episode ends anyway.
    """

    def __init__(self, suite: Suite, count: int, success_ends: bool = False) -> None:
        self._suite, self.success_ends = suite, success_ends
        self._rows = [_Row() for _ in range(count)]
        self._streams = suite.spec.agents[suite.spec.only_agent].observations

    def __len__(self) -> int:
        return len(self._rows)

    def reset(self, ids: Sequence[int], seeds: Sequence[int]) -> Streams:
        """Start episodes; returns stream name to [M, *shape].

        Raises:
            InfrastructureError: An environment cannot be started, not even when it is made anew.
        """
        for id, seed in zip(ids, seeds, strict=True):
            self._start(self._rows[id], id, seed)
        return self._seen(ids)

    def replay(self, ids: Sequence[int], lengths: Sequence[int], actions: NDArray[np.float32]) -> Streams:
        """Take the first `lengths[i]` of `actions` [M, L, D]; an environment that fails on the way stays there."""
        for index, (id, length) in enumerate(zip(ids, lengths, strict=True)):
            row = self._rows[id]
            for action in actions[index, :length]:
                if self._step(row, id, action, [])[1] is Outcome.INFRASTRUCTURE_FAULT:
                    break
        return self._seen(ids)

    def step(self, ids: Sequence[int], actions: NDArray[np.float32], seeds: Sequence[int] | None = None) -> Stepped:
        """One control step of environments `ids`, ascending.

        Args:
            ids: [M].
            actions: [M, D]; one that is not finite is a fault.
            seeds: [M] of the episodes that follow where one ends; None to start none.

        Raises:
            InfrastructureError: As `reset`.
        """
        rewards, outcomes = np.zeros(len(ids), np.float32), np.zeros(len(ids), np.uint8)
        final: list[Streams] = []
        faults: list[str] = []
        for index, (id, action) in enumerate(zip(ids, actions, strict=True)):
            row = self._rows[id]
            rewards[index], outcomes[index] = self._step(row, id, action, faults)
            if outcomes[index]:
                final.append(row.last)
                if seeds is not None:
                    self._start(row, id, seeds[index])
        ended = np.flatnonzero(outcomes).astype(np.int32)
        return Stepped(self._seen(ids), rewards, outcomes, ended, self._stack(final), faults)

    def close(self) -> None:
        for row in self._rows:
            self._drop(row)

    def _start(self, row: _Row, id: int, seed: int) -> None:
        for last_try in (False, True):
            try:
                row.env = row.env or self._suite.make()
                row.last, row.step = self._checked(row.env.reset(seed)), 0
                return
            except Exception as error:
                self._drop(row)
                if last_try:
                    what = f"environment {id} cannot be started with seed {seed}: {_words(error)}"
                    raise InfrastructureError(what, self._suite.spec.task, "see the worker's log") from error
                log.warning("environment %d is made anew: reset failed: %s", id, _words(error))

    def _step(self, row: _Row, id: int, action: NDArray[np.float32], faults: list[str]) -> tuple[float, Outcome]:
        """Reward and outcome of one step; at a fault the last observation stays, and the environment goes."""
        try:
            if row.env is None:
                raise RuntimeError("it was never started, or not since its last fault")
            if not np.isfinite(action).all():
                raise ValueError("the action is not finite")
            moment = row.env.step(action)
            reward = float(_numbers("the reward", np.reshape(moment.reward, ()), "float32", ()))
            success, terminated, truncated = (_flag(moment, name) for name in ("success", "terminated", "truncated"))
            row.last = self._checked(moment.streams)
        except Exception as error:
            faults.append(f"environment {id}, step {row.step}: {_words(error)}")
            log.warning("%s; its episode ends as an infrastructure fault", faults[-1])
            self._drop(row)
            return 0.0, Outcome.INFRASTRUCTURE_FAULT
        row.step += 1
        done = terminated or truncated or row.step >= self._suite.spec.episode_steps
        if success and (done or self.success_ends):
            return reward, Outcome.SUCCESS
        if terminated:
            return reward, Outcome.FAILURE
        return reward, Outcome.TIME_LIMIT if done else Outcome.RUNNING

    def _checked(self, streams: Streams) -> Streams:
        """Streams as the spec says, owned; raises `ValueError` where they are not, or not finite."""
        return {
            stream.name: _numbers(f"observation {stream.name}", streams.get(stream.name), stream.dtype, stream.shape)
            for stream in self._streams
        }

    def _seen(self, ids: Sequence[int]) -> Streams:
        return self._stack([self._rows[id].last for id in ids])

    def _stack(self, rows: list[Streams]) -> Streams:
        if not rows:
            return {s.name: np.zeros((0, *s.shape), s.dtype) for s in self._streams}
        return {s.name: np.stack([row[s.name] for row in rows]) for s in self._streams}

    @staticmethod
    def _drop(row: _Row) -> None:
        if row.env is not None:
            with suppress(Exception):  # it is thrown away, perhaps because it is broken
                row.env.close()
        row.env = None


def _numbers(what: str, value: Any, dtype: str, shape: tuple[int, ...]) -> NDArray[Any]:
    """`value` as an array of its own; raises `ValueError` where it has another shape, or numbers that `dtype` lacks."""
    given = np.asarray(value)
    if given.dtype.kind not in "biuf":
        raise ValueError(f"{what} holds no numbers: {str(value)[:40]}")
    if given.shape != shape:
        raise ValueError(f"{what} has shape {given.shape}, its spec says {shape}")
    with np.errstate(over="ignore", invalid="ignore"):  # both are found out below
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
