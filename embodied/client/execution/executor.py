"""Chunk execution: the steps at which rows ask for decisions, and the action that each step executes."""

from collections import deque
from collections.abc import Mapping
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
_EMPTY = np.int32(2**30)  # start of an empty slot, beyond every step
_NEVER = np.int32(-(2**30))  # step of the last question of a row that has asked none


class Strategy(Protocol):
    """Choice of the action that a step executes, of the chunks kept.

    Attributes:
        execute: Steps from one decision to the next.
        on_policy: Whether executed actions are samples of the policy; on-policy losses refuse others.
        prefixed: Whether the policy is given the actions that will be executed until its answer is there.
    """

    @property
    def execute(self) -> int: ...

    @property
    def on_policy(self) -> bool: ...

    @property
    def prefixed(self) -> bool: ...

    def kept(self, chunk: int) -> int:
        """Number N of chunks of K actions to keep per row."""
        ...

    def choose(self, kept: Kept) -> Floats:
        """Actions [B, D] of a step, NaN where no chunk has one; a pure function."""
        ...


@dataclass(frozen=True)
class Step:
    """Actions that B rows execute at one step.

    Attributes:
        actions: [B, D] float32; NaN where there is none, so that the robot holds still.
        decision: [B] int32, the step whose observation the executed decision answers, `step - k`; -1 where there is
            no action. With the row and its episode it identifies an accepted chunk.
        k: [B] int32, the action's index in that decision's chunk, the newest one where several take part; -1 where
            there is no action.
        versions: [B] int64 of the weights that decided; -1 where there is no action.
    """

    actions: Floats
    decision: NDArray[np.int32]
    k: NDArray[np.int32]
    versions: NDArray[np.int64]

    @property
    def ready(self) -> NDArray[np.bool_]:
        """[B] whether there is an action."""
        return self.k >= 0

    def as_chunk(self, rows: Rows, policy: str) -> ActionChunk:
        """The executed actions as chunks of one action, for a recorder.

        Ensembled and real-time actions are no samples of the policy, so their log-probabilities are NaN, and on-policy
        losses refuse them.
        """
        actions = self.actions[:, None]
        none = np.full(actions.shape, np.nan, np.float32)
        return ActionChunk(rows, actions, none, none[:, 0, 0].copy(), self.versions, policy)


class Executor:
    """Executes chunks on B rows whose steps are counted by `rows.step`, with answers at once or some steps later.

    At each step: `due` gives the rows that ask, `ask` the streams to add to their observations, `accept` takes in
    answers, at this step or at a later one, and `next` gives the actions. Action j of a chunk is for the step j after
    the one whose observation it answers. Actions whose step has passed when an answer comes are skipped; until then the
    chunks at hand are executed. Chunks end with their episode, at `reset`, and `valid_s` after their observation was
    captured. A row has at most one question open; `failed` gives it up. A row whose `rows.step` is -1 is parked: it is
    never due, and has no action.

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
        self._start = np.full((rows, slots), _EMPTY, np.int32)
        self._length = np.zeros((rows, slots), np.int32)
        self._until = np.full((rows, slots), np.inf)
        self._versions = np.zeros((rows, slots), np.int64)
        self._episode = np.full(rows, -1, np.int64)
        self._asked = np.full(rows, _NEVER, np.int32)  # the step of the last question
        self._awaited = np.zeros(rows, bool)
        self._future = np.zeros(rows, np.int32)  # the first step not executed yet
        self._prefix = np.zeros((rows, *size), np.float32)
        self._promised = np.zeros(rows, np.int32)
        self._expire = False  # whether any chunk has had an end
        self._delays = deque([getattr(strategy, "delay", 0)], maxlen=_DELAYS)
        self._everyone = np.arange(rows)

    @property
    def delay(self) -> int:
        """Steps that the slowest of the last answers took."""
        return max(self._delays)

    def due(self, rows: Rows, time: NDArray[np.float64]) -> NDArray[np.bool_]:
        """[B] whether a decision is due at the present step, and none is awaited.

        Args:
            rows: [B], the present step of each row.
            time: [B] seconds on the environments' clocks.
        """
        self._enter(rows)
        due = rows.step - self._asked >= self.strategy.execute
        due |= ~self._kept(rows, time).any
        due &= rows.step >= 0
        return due & ~self._awaited

    def ask(self, ids: ArrayLike, rows: Rows, time: NDArray[np.float64]) -> dict[str, NDArray[Any]]:
        """Note that rows `ids` [M] ask now; returns the streams to add to their observations, [M, ...] each.

        Args:
            ids: Rows that `due` gave.
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
        """Take in answers to rows `ids` [M]; returns [M] whether each was taken: it answers an open question.

        Args:
            ids: As asked.
            chunk: M rows; `chunk.rows` are those of the observations answered.
            captured: [M] seconds at which those were captured, on the environments' clocks.

        Raises:
            DataError: Actions are not finite, or more or wider than the policy's spec says.
        """
        at = np.asarray(ids, np.intp)
        self._check(chunk)
        actions, since, versions, length = chunk.actions, chunk.rows.step, chunk.versions, chunk.actions.shape[1]
        taken = self._awaited[at] & (since == self._asked[at]) & (chunk.rows.episode == self._episode[at])
        if not taken.all():
            at, actions, since, captured = at[taken], actions[taken], since[taken], captured[taken]
            versions = versions[taken]
            if not len(at):
                return taken
        if self.strategy.prefixed:
            actions = prefixes.merge(actions, self._prefix[at, :length], self._promised[at])
            self._delays.append(int(np.maximum(self._future[at] - since, 0).max()))
        oldest: Any = 0
        if self._start.shape[1] > 1:
            oldest = np.where(self._start[at] == _EMPTY, -1, self._start[at]).argmin(axis=1)
        self._actions[at, oldest, :length] = actions
        self._start[at, oldest], self._length[at, oldest] = since, length
        self._versions[at, oldest] = versions
        if self._expire or chunk.valid_s < np.inf:
            self._until[at, oldest], self._expire = captured + chunk.valid_s, True
        self._awaited[at] = False
        return taken

    def failed(self, ids: ArrayLike) -> None:
        """Give up the open questions of rows `ids`; a decision is due again."""
        index = np.asarray(ids, np.intp)
        self._asked[index], self._awaited[index] = _NEVER, False

    def next(self, rows: Rows, time: NDArray[np.float64]) -> Step:
        """Actions that the rows execute at the present step.

        Args:
            rows: [B], the present step of each row.
            time: [B].
        """
        self._enter(rows)
        kept = self._kept(rows, time)
        slot = kept.youngest()
        some, k, start = kept.valid[self._everyone, slot], kept.index[self._everyone, slot], self._start
        if self.strategy.prefixed:
            self._future = rows.step + np.int32(1)
        actions, decision, versions = self.strategy.choose(kept), start[self._everyone, slot], self._versions
        versions = versions[self._everyone, slot]
        if not some.all():
            none = ~some
            k[none], decision[none], versions[none] = -1, -1, -1
        return Step(actions, decision, k, versions)

    def reset(self, ids: ArrayLike) -> None:
        """Forget the chunks of rows `ids` and their open questions."""
        index = np.asarray(ids, np.intp)
        self._start[index], self._asked[index], self._awaited[index] = _EMPTY, _NEVER, False
        self._future[index] = 0

    def state(self) -> dict[str, NDArray[Any]]:
        """Chunks at hand and open questions as named arrays, from which `load` continues bit for bit."""
        return {name: np.array(getattr(self, f"_{name}")) for name in (*_STATE, "delays")}

    def load(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Continue from `state`.

        Raises:
            DataError: It is the state of other rows, or of a policy with other chunks.
        """
        for name in _STATE:
            own = getattr(self, f"_{name}")
            if name not in state or np.shape(state[name]) != own.shape:
                raise DataError(f"no state of {len(self._episode)} rows: {name}", "chunk execution", "start anew")
        for name in _STATE:
            getattr(self, f"_{name}")[:] = state[name]
        self._delays.clear()
        self._delays.extend(int(delay) for delay in state["delays"])
        self._expire = bool(np.isfinite(self._until).any())

    def _check(self, chunk: ActionChunk) -> None:
        most, wide = self._actions.shape[2:]
        if chunk.actions.shape[1] > most or chunk.actions.shape[2] != wide:
            raise DataError(
                f"a chunk is {chunk.actions.shape[1:]}, policy {self.policy.name} gives ({most}, {wide})",
                "chunk execution",
                "run the same version on both sides",
            )
        if not np.isfinite(chunk.actions).all():
            row = int(np.flatnonzero(~np.isfinite(chunk.actions).all(axis=(1, 2)))[0])
            raise DataError(
                f"policy {self.policy.name} gave actions that are not finite",
                f"env {chunk.rows.env[row]}, episode {chunk.rows.episode[row]}, step {chunk.rows.step[row]}",
                "look at its weights: roll back to a version that was sound",
            )

    def _enter(self, rows: Rows) -> None:
        """Forget the chunks of rows whose episode is another one."""
        changed = self._episode != rows.episode
        if changed.any():
            self.reset(np.flatnonzero(changed))
            self._episode[changed] = rows.episode[changed]

    def _kept(self, rows: Rows, time: NDArray[np.float64]) -> Kept:
        index = rows.step[:, None] - self._start
        valid = (index >= 0) & (index < self._length)
        if self._expire:
            valid &= time[:, None] <= self._until
        return Kept(self._actions, index, valid)


_STATE = (
    "actions", "start", "length", "until", "versions", "episode", "asked", "awaited", "future", "prefix", "promised",
)  # fmt: skip
