"""Steps of B rows written down one after the other, and handed over as a segment."""

import numpy as np
from numpy.typing import NDArray

from embodied.data import ActionChunk, EnvStep, Observation, Resets, RewardStatus, Rows, Segment, Source, stack_rows
from embodied.spec import Streams


class SegmentRecorder:
    """Preallocated arrays for at most T steps of B rows.

    Args:
        steps: T.
        rows: B.
        chunk: K, actions in one chunk.
        action_dim: D.
        control_size: U.
        stored: What decisions carry beside their actions.
    """

    def __init__(
        self, steps: int, rows: int, chunk: int, action_dim: int, control_size: int, stored: Streams = ()
    ) -> None:
        t, b = steps, rows
        self.length = 0
        self.rows: list[Rows] = []
        self.observations: list[dict[str, NDArray]] = []
        self.actions = np.zeros((t, b, chunk, action_dim), np.float32)
        self.log_probs = np.zeros((t, b, chunk, action_dim), np.float32)
        self.executed = np.zeros((t, b, chunk), bool)
        self.values = np.full((t, b), np.nan, np.float32)
        self.versions = np.zeros((t, b), np.int64)
        self.stored = {s.name: np.zeros((t, b, *s.shape), s.dtype) for s in stored}
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
        self._all = np.arange(b)

    def start(self, starts: Resets | None) -> None:
        """Note episodes whose first step is the next one recorded."""
        if starts is not None and len(starts.ids):
            self.start_at.append(np.full(len(starts.ids), self.length, np.int32))
            self.starts.append(starts)

    def decide(self, ids: NDArray[np.intp], chunk: ActionChunk) -> None:
        """Write down the decision that rows `ids` took on the observation of the next step."""
        t = self.length
        self.actions[t, ids] = chunk.actions
        self.log_probs[t, ids] = chunk.log_probs
        self.values[t, ids] = chunk.values
        self.versions[t, ids] = chunk.versions
        for name, array in self.stored.items():
            array[t, ids] = chunk.stored[name]

    def step(self, observation: Observation, k: NDArray[np.int32], result: EnvStep, agent: str) -> None:
        """Write down one step: what was seen before it, which action of each chunk it executed, what it gave."""
        t, own = self.length, result.agents[agent]
        self.rows.append(observation.rows)
        self.observations.append(observation.streams)
        self.k[t] = k
        self.executed[t - k, self._all, k] = True
        self.versions[t] = self.versions[t - k, self._all]
        self.applied[t] = result.applied
        if result.state_hash is not None:
            self.state_hash.append(result.state_hash)
        self.rewards[t] = own.rewards
        self.reward_status[t] = own.reward_status
        self.terminated[t] = own.terminated
        self.truncated[t] = own.truncated
        self.outcomes[t] = own.outcomes
        if len(own.ended):
            self.final_at.append(np.stack([np.full(len(own.ended), t, np.int32), own.ended], axis=1))
            self.final.append(own.final)
        self.length += 1
        self.start(result.started)

    def finish(
        self,
        bootstrap: Observation,
        *,
        id: str,
        policy: str,
        agent: str,
        task: str,
        mode: str = "train",
        source: Source = Source.POLICY,
    ) -> Segment:
        """The recorded steps as a segment; `bootstrap` is the observation after the last of them."""
        n = self.length
        streams = bootstrap.streams
        keep = [i for i, at in enumerate(self.start_at) if at[0] < n]
        return Segment(
            id=id,
            policy=policy,
            agent=agent,
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
            trainable=self.reward_status[:n] == RewardStatus.SCORED,
            start_at=np.concatenate([self.start_at[i] for i in keep]) if keep else np.zeros(0, np.int32),
            starts=join_starts([self.starts[i] for i in keep]),
            state_hash=np.stack(self.state_hash) if self.state_hash else None,
            stored={name: array[:n] for name, array in self.stored.items()},
        )

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
