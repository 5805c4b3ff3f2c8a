"""The driver of chunk execution: when rows ask, what they are told, and which action each step executes."""

from collections import deque
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from embodied.client.execution import prefix as prefixes
from embodied.client.execution.kept import Floats, Kept
from embodied.data import ActionChunk, Rows
from embodied.errors import ConfigError, DataError
from embodied.spec import PolicySpec

_DELAYS = 8  # answers whose delay is remembered


class Strategy(Protocol):
    """Which action a step executes, of the chunks kept.

    Attributes:
        execute: Steps from one decision to the next.
        on_policy: Whether what is executed was sampled by the policy as it stands; else on-policy losses refuse it.
        prefixed: Whether the policy is told what will be executed until its answer comes.
    """

    @property
    def execute(self) -> int: ...

    @property
    def on_policy(self) -> bool: ...

    @property
    def prefixed(self) -> bool: ...

    def kept(self, chunk: int) -> int:
        """N, how many chunks of K actions to keep per row."""
        ...

    def choose(self, kept: Kept) -> Floats:
        """[B, D], NaN where no chunk has an action for this step. A pure function."""
        ...


@dataclass(frozen=True)
class Step:
    """What B rows execute at one step.

    Attributes:
        actions: [B, D] float32; NaN where there is none, and then it is the body's to hold still. None is made up.
        k: [B] int32, the action's index in the newest chunk that has a part in it; -1 where there is no action.
        versions: [B] int64 of the weights that decided that chunk; -1 where there is no action.
    """

    actions: Floats
    k: NDArray[np.int32]
    versions: NDArray[np.int64]

    @property
    def ready(self) -> NDArray[np.bool_]:
        """[B] whether there is an action."""
        return self.k >= 0

    def as_chunk(self, rows: Rows, policy: str) -> ActionChunk:
        """What was executed as chunks of one action, for a recorder.

        Ensembled and real-time actions are nobody's sample, so their log-probabilities are NaN; on-policy losses
        refuse them by that.
        """
        actions = self.actions[:, None]
        none = np.full(actions.shape, np.nan, np.float32)
        return ActionChunk(rows, actions, none, none[:, 0, 0].copy(), self.versions, policy)


class Executor:
    """Executes chunks on B rows whose steps are counted by `rows.step`, whether or not they wait for their answers.

    At each step: `due` says who asks, `ask` what to add to their observations, `accept` takes in answers, at this step
    or at a later one, and `next` gives the actions. Action j of a chunk is for the step j after the one whose
    observation it answers: what has passed when an answer comes is skipped, and until then the chunks at hand are
    executed. Chunks end with their episode, at `reset`, and `valid_s` after their observation was captured. A row
    asks one question at a time; whoever gives up an answer says so by `failed`.

    Args:
        rows: B.
        policy: Spec of the policy that answers.
        strategy: `RecedingHorizon`, `Ensembling` or `RealTime`.

    Raises:
        ConfigError: `execute` exceeds the chunk, or the policy cannot do what the strategy needs.
        SpecMismatch: The policy's prefix streams have a wrong shape or dtype.
    """

    def __init__(self, rows: int, policy: PolicySpec, strategy: Strategy) -> None:
        if strategy.execute > policy.chunk:
            raise ConfigError(
                f"execute is {strategy.execute}, a chunk of policy {policy.name} has {policy.chunk} actions",
                "chunk execution",
                f"give 1 to {policy.chunk}",
            )
        if strategy.prefixed:
            prefixes.check(policy)
        self.policy, self.strategy = policy, strategy
        slots, size = strategy.kept(policy.chunk), (policy.chunk, policy.agent.action_dim)
        self._actions = np.zeros((rows, slots, *size), np.float32)
        self._start = np.full((rows, slots), -1, np.int64)  # -1 for an empty slot
        self._length = np.zeros((rows, slots), np.int64)
        self._until = np.zeros((rows, slots), np.float64)
        self._versions = np.zeros((rows, slots), np.int64)
        self._episode = np.full(rows, -1, np.int64)
        self._asked = np.full(rows, -1, np.int64)  # the step of the last question
        self._awaited = np.zeros(rows, bool)
        self._future = np.zeros(rows, np.int64)  # the first step not executed yet
        self._prefix = np.zeros((rows, *size), np.float32)
        self._promised = np.zeros(rows, np.int32)
        self._delays = deque([getattr(strategy, "delay", 0)], maxlen=_DELAYS)

    @property
    def delay(self) -> int:
        """Steps that the slowest of the last answers took."""
        return max(self._delays)

    def due(self, rows: Rows, time: NDArray[np.float64]) -> NDArray[np.bool_]:
        """[B] whether a decision is due at the present step, and none is awaited.

        Args:
            rows: [B], the present step of each row.
            time: [B] seconds on the bodies' clock.
        """
        self._enter(rows)
        empty = ~self._kept(rows, time).valid.any(axis=1)
        return ~self._awaited & ((self._asked < 0) | (rows.step - self._asked >= self.strategy.execute) | empty)

    def ask(self, ids: ArrayLike, rows: Rows, time: NDArray[np.float64]) -> dict[str, NDArray[Any]]:
        """Note that rows `ids` [M] ask now; returns the streams to add to their observations, [M, ...] each.

        Args:
            ids: Of `due`.
            rows: [B], the present step of every row.
            time: [B].
        """
        self._enter(rows)
        index = np.asarray(ids, np.intp)
        self._asked[index], self._awaited[index] = rows.step[index], True
        if not self.strategy.prefixed:
            return prefixes.no_prefix(self.policy, len(index))
        kept = self._kept(rows, time)
        k = np.where(kept.valid[:, 0], kept.index[:, 0], self.policy.chunk)[index]
        left = self._length[index, 0] - np.minimum(k, self._length[index, 0])
        delay = np.minimum(left, self.delay)
        self._prefix[index], self._promised[index] = prefixes.prefix(self._actions[index, 0], k, delay)
        return prefixes.streams(self.policy, self._prefix[index], self._promised[index])

    def accept(self, ids: ArrayLike, chunk: ActionChunk, captured: NDArray[np.float64]) -> NDArray[np.bool_]:
        """Take in answers to rows `ids` [M]; returns which were taken, [M]: what answers no open question is not.

        Args:
            ids: As asked.
            chunk: M rows; `chunk.rows` are those of the observations answered.
            captured: [M] when those were captured, seconds on the bodies' clock.

        Raises:
            DataError: Actions are not finite, or more or wider than the policy's spec says.
        """
        index = np.asarray(ids, np.intp)
        self._check(chunk)
        start, length = chunk.rows.step.astype(np.int64), chunk.actions.shape[1]
        taken = self._awaited[index] & (start == self._asked[index]) & (chunk.rows.episode == self._episode[index])
        at, since = index[taken], start[taken]
        if not len(at):
            return taken
        actions = chunk.actions[taken]
        if self.strategy.prefixed:
            actions = prefixes.merge(actions, self._prefix[at, :length], self._promised[at])
        oldest = self._start[at].argmin(axis=1)
        self._actions[at, oldest, :length] = actions
        self._start[at, oldest], self._length[at, oldest] = since, length
        self._until[at, oldest] = captured[taken] + chunk.valid_s
        self._versions[at, oldest] = chunk.versions[taken]
        self._awaited[at] = False
        self._delays.append(int(np.maximum(self._future[at] - since, 0).max()))
        return taken

    def failed(self, ids: ArrayLike) -> None:
        """Rows `ids` will get no answer to what they asked last; a decision is due again."""
        index = np.asarray(ids, np.intp)
        self._asked[index], self._awaited[index] = -1, False

    def next(self, rows: Rows, time: NDArray[np.float64]) -> Step:
        """What the rows execute at the present step.

        Args:
            rows: [B], the present step of each row.
            time: [B].
        """
        self._enter(rows)
        kept = self._kept(rows, time)
        everyone, slot = np.arange(len(rows)), kept.youngest()
        some = kept.valid[everyone, slot]
        self._future = rows.step.astype(np.int64) + 1
        return Step(
            self.strategy.choose(kept),
            np.where(some, kept.index[everyone, slot], -1).astype(np.int32),
            np.where(some, self._versions[everyone, slot], -1),
        )

    def reset(self, ids: ArrayLike) -> None:
        """Forget the chunks of rows `ids` and what they asked."""
        index = np.asarray(ids, np.intp)
        self._start[index], self._asked[index], self._awaited[index] = -1, -1, False
        self._future[index] = 0

    def _check(self, chunk: ActionChunk) -> None:
        most, wide = self._actions.shape[2:]
        if chunk.actions.shape[1] > most or chunk.actions.shape[2] != wide:
            raise DataError(
                f"a chunk is {chunk.actions.shape[1:]}, policy {self.policy.name} gives ({most}, {wide})",
                "chunk execution",
                "run the same version on both sides",
            )
        if not (finite := np.isfinite(chunk.actions).all(axis=(1, 2))).all():
            row = int(np.flatnonzero(~finite)[0])
            raise DataError(
                f"policy {self.policy.name} gave actions that are not finite",
                f"env {chunk.rows.env[row]}, episode {chunk.rows.episode[row]}, step {chunk.rows.step[row]}",
                "look at its weights: roll back to a version that was sound",
            )

    def _enter(self, rows: Rows) -> None:
        """Forget the chunks of rows whose episode is another one."""
        changed = np.flatnonzero(self._episode != rows.episode)
        if len(changed):
            self.reset(changed)
            self._episode[changed] = rows.episode[changed]

    def _kept(self, rows: Rows, time: NDArray[np.float64]) -> Kept:
        index = rows.step[:, None] - self._start
        valid = (self._start >= 0) & (index >= 0) & (index < self._length) & (time[:, None] <= self._until)
        return Kept(self._actions, index, valid)
