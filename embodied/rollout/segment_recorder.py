"""Recording of B rows, step by step, into a segment."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embodied.client import Step
from embodied.data import (
    ActionChunk,
    AgentStep,
    CarriedDecisions,
    Observation,
    Resets,
    RewardStatus,
    Rows,
    Rule,
    Segment,
    Source,
    stack_rows,
)
from embodied.rollout.carried import Carried, join_carried
from embodied.spec import PolicySpec

_NEVER = np.iinfo(np.int32).min


class SegmentRecorder:
    """Preallocated arrays for at most T steps of B rows.

    Args:
        steps: T.
        rows: B.
        policy: Spec of the policy that decides: K, D, and what its decisions store.
        control_size: U.
        carried: Decisions that are open at the first step, as `carry` gave them.
    """

    def __init__(
        self,
        steps: int,
        rows: int,
        policy: PolicySpec,
        control_size: int,
        carried: CarriedDecisions | None = None,
    ) -> None:
        t, b, chunk, action_dim = steps, rows, policy.chunk, policy.agent.action_dim
        self.length = 0
        self.rows: list[Rows] = []
        self.observations: list[dict[str, NDArray]] = []
        self.times: list[dict[str, NDArray]] = []
        self.time = np.zeros((t, b))
        self.actions = np.zeros((t, b, chunk, action_dim), np.float32)
        self.log_probs = np.zeros((t, b, chunk, action_dim), np.float32)
        self.executed = np.zeros((t, b, chunk), bool)
        self.values = np.full((t, b), np.nan, np.float32)
        self.versions = np.zeros((t, b), np.int64)
        self.decided_by = np.zeros((t, b), np.int64)  # versions at the steps whose observations decisions answer
        self.stored = {s.name: np.zeros((t, b, *s.shape), s.dtype) for s in policy.stored}
        self.k = np.zeros((t, b), np.int32)
        self.applied = np.zeros((t, b, control_size), np.float64)
        self.state_hash: list[NDArray[np.uint64]] = []
        self.rewards = np.zeros((t, b), np.float32)
        self.reward_status = np.zeros((t, b), np.uint8)
        self.terminated = np.zeros((t, b), bool)
        self.truncated = np.zeros((t, b), bool)
        self.outcomes = np.zeros((t, b), np.uint8)
        self.final_at: list[NDArray[np.int32]] = []
        self.final: list[dict[str, NDArray]] = []
        self.start_at: list[NDArray[np.int32]] = []
        self.starts: list[Resets] = []
        self.chosen: list[NDArray[np.float32]] = []
        self.requested: list[NDArray[np.float32] | None] = []
        self.obeyed: list[NDArray[np.float32] | None] = []
        self.rule: list[NDArray[np.uint8] | None] = []
        self._carried = Carried(carried)
        self._decided = np.full(b, _NEVER, np.int32)  # the step of each row's last decision
        if carried is not None:
            self._decided[carried.row] = carried.t
        self._all = np.arange(b)

    def start(self, starts: Resets | None) -> None:
        """Note episodes whose first step is the next one recorded."""
        if starts is not None and len(starts.ids):
            self.start_at.append(np.full(len(starts.ids), self.length, np.int32))
            self.starts.append(starts)

    def decide(
        self,
        ids: NDArray[np.intp],
        chunk: ActionChunk,
        ago: NDArray[np.int32] | None = None,
        answered: Observation | None = None,
    ) -> None:
        """Record the decisions of rows `ids` [M], before the step from which they can be executed.

        Args:
            ago: [M] steps from the observation that each decision answers to the next step recorded; None for 0.
            answered: Those observations; needed where they lie before the segment.
        """
        if ago is None or not ago.any():
            at: Any = self.length
        else:
            at = self.length - ago.astype(np.int32)
        self._decided[ids] = at
        if np.min(at) < 0:
            before = np.flatnonzero(at < 0)
            assert answered is not None
            self._carried.add(ids[before], at[before], chunk.take(before), answered.take(before))
            inside = np.flatnonzero(at >= 0)
            ids, at, chunk = ids[inside], at[inside], chunk.take(inside)
        n = chunk.actions.shape[1]
        self.actions[at, ids, :n] = chunk.actions
        self.log_probs[at, ids, :n] = chunk.log_probs
        self.values[at, ids] = chunk.values
        self.decided_by[at, ids] = chunk.versions
        for name, array in self.stored.items():
            array[at, ids] = chunk.stored[name]

    def step(
        self,
        observation: Observation,
        step: Step,
        result: AgentStep,
        applied: NDArray[np.float64],
        state_hash: NDArray[np.uint64] | None = None,
        requested: NDArray[np.float32] | None = None,
    ) -> None:
        """Record one step.

        Args:
            observation: [B] before the step; rows of parked agents have `rows.step` -1.
            step: The decisions executed.
            result: The rows' rewards and ends.
            applied: [B, U].
            state_hash: [B], as in `EnvStep`.
            requested: [B, D] actions asked for in place of `step.actions`, such as a person's.
        """
        t, k = self.length, step.k
        self.rows.append(observation.rows)
        self.observations.append(observation.streams)
        self.time[t] = observation.time
        self.times.append(observation.times)
        self.k[t] = k
        inside = (k >= 0) & (k <= t)
        if inside.all():
            self.executed[t - k, self._all, k] = True
        else:
            b, before = np.flatnonzero(inside), np.flatnonzero(k > t)
            self.executed[t - k[b], b, k[b]] = True
            self._carried.execute(before, t - k[before], k[before])
        self.versions[t] = step.versions
        self.applied[t] = applied
        if state_hash is not None:
            self.state_hash.append(state_hash)
        self.rewards[t] = result.rewards
        self.reward_status[t] = result.reward_status
        self.terminated[t] = result.terminated
        self.truncated[t] = result.truncated
        self.outcomes[t] = result.outcomes
        self.chosen.append(step.actions)
        self.requested.append(requested)
        self.obeyed.append(result.executed)
        self.rule.append(result.rule)
        if len(result.ended):
            self.final_at.append(np.stack([np.full(len(result.ended), t, np.int32), result.ended], axis=1))
            self.final.append(result.final)
        self.length += 1

    def finish(
        self,
        bootstrap: Observation,
        *,
        id: str,
        policy: str,
        task: str,
        mode: str = "train",
        source: Source = Source.POLICY,
        origin: str = "",
    ) -> Segment:
        """The recorded steps as a segment; `bootstrap` is the observation after the last of them."""
        n = self.length
        streams = bootstrap.streams
        keep = [i for i, at in enumerate(self.start_at) if at[0] < n]
        requested = _filled(self.requested, self.chosen)
        executed = _filled(self.obeyed, self.chosen if requested is None else list(requested))
        rule = _filled(self.rule, [np.full(len(self._all), Rule.NONE, np.uint8)] * n)
        return Segment(
            id=id,
            policy=policy,
            task=task,
            mode=mode,
            rows=stack_rows(self.rows),
            observations={name: np.stack([seen[name] for seen in self.observations]) for name in streams},
            bootstrap={name: np.array(value) for name, value in streams.items()},
            final_at=np.concatenate(self.final_at) if self.final_at else np.zeros((0, 2), np.int32),
            final={
                name: np.concatenate([last[name] for last in self.final])
                if self.final
                else np.zeros((0, *value.shape[1:]), value.dtype)
                for name, value in streams.items()
            },
            k=self.k[:n],
            actions=self.actions[:n],
            log_probs=self.log_probs[:n],
            executed=self.executed[:n],
            values=self.values[:n],
            versions=self.versions[:n],
            applied=self.applied[:n],
            rewards=self.rewards[:n],
            reward_status=self.reward_status[:n],
            reward_version="",
            terminated=self.terminated[:n],
            truncated=self.truncated[:n],
            outcomes=self.outcomes[:n],
            source=np.full(self.k[:n].shape, source, np.uint8),
            trainable=(self.reward_status[:n] == RewardStatus.SCORED) & (self.k[:n] >= 0),
            start_at=np.concatenate([self.start_at[i] for i in keep]) if keep else np.zeros(0, np.int32),
            starts=join_starts([self.starts[i] for i in keep]),
            state_hash=np.stack(self.state_hash) if self.state_hash else None,
            stored={name: array[:n] for name, array in self.stored.items()},
            origin=origin,
            time=self.time[:n],
            times={name: np.stack([times[name] for times in self.times]) for name in self.times[0]} if n else {},
            action_requested=requested,
            action_executed=executed,
            action_rule=rule,
            carried=self._carried.executed(),
        )

    def carry(self, open: NDArray[np.bool_]) -> CarriedDecisions | None:
        """The last decision of each row that is `open` [B], for the recorder of the steps after these; None for none.

        Raises:
            ValueError: An open row has no decision.
        """
        b = np.flatnonzero(open)
        if not len(b):
            return None
        at = self._decided[b]
        if (at == _NEVER).any():
            raise ValueError(f"row {b[at == _NEVER][0]} has no decision to carry over")
        here = at >= 0
        parts = []
        if here.any():
            t, row = at[here], b[here]
            names = self.observations[0].keys()
            parts.append(
                CarriedDecisions(
                    row=row.astype(np.int32),
                    t=t,
                    observations={
                        n: np.stack([self.observations[i][n][j] for i, j in zip(t, row, strict=True)]) for n in names
                    },
                    actions=self.actions[t, row],
                    log_probs=self.log_probs[t, row],
                    executed=np.zeros((len(row), self.actions.shape[2]), bool),
                    values=self.values[t, row],
                    versions=self.decided_by[t, row],
                    stored={name: array[t, row] for name, array in self.stored.items()},
                )
            )
        if (before := self._carried.of(b[~here], at[~here])) is not None:
            parts.append(before)
        whole = join_carried(parts)
        whole.t -= np.int32(self.length)
        return whole

    def pending_starts(self) -> Resets | None:
        """Episodes that begin with the step after the last recorded one; the next segment's."""
        return join_starts([s for s, at in zip(self.starts, self.start_at, strict=True) if at[0] == self.length])


def join_starts(parts: list[Resets]) -> Resets | None:
    """Several groups of starts as one, or None where there are none."""
    if not parts:
        return None
    return Resets(
        np.concatenate([p.ids for p in parts]),
        np.concatenate([p.seeds for p in parts]),
        np.concatenate([p.state for p in parts]),
        {name: np.concatenate([p.drawn[name] for p in parts]) for name in parts[0].drawn},
    )


def _filled(given: Sequence[NDArray[Any] | None], otherwise: Sequence[NDArray[Any]]) -> NDArray[Any] | None:
    """[T, ...] of what was given at each step, else what stands there otherwise; None where nothing differs."""
    if all(one is None for one in given):
        return None
    usual = np.stack(otherwise)
    filled = np.stack([own if one is None else one for one, own in zip(given, otherwise, strict=True)])
    return None if np.array_equal(filled, usual, equal_nan=usual.dtype.kind == "f") else filled.astype(usual.dtype)
