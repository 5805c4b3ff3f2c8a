"""Data that stages exchange: observations, action chunks, environment steps, segments, episodes.

Contracts carry owned, contiguous numpy arrays. B is the number of rows (environments, or environments times agents of
one policy), T the steps of a segment, K the actions of a chunk, D the numbers of one action, U the numbers of one
applied control.
"""

from dataclasses import dataclass, field, fields, replace
from enum import IntEnum
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray


class Outcome(IntEnum):
    """Ends of episodes; 0 while one runs."""

    RUNNING = 0
    SUCCESS = 1
    FAILURE = 2
    TIME_LIMIT = 3
    SAFETY_STOP = 4
    HUMAN_STOP = 5
    INFRASTRUCTURE_FAULT = 6


class Source(IntEnum):
    """Chooser of an action."""

    POLICY = 0
    HUMAN = 1
    SCRIPT = 2


class Rule(IntEnum):
    """The rule that changed a requested action into the executed one; `NONE` where it did not change."""

    NONE = 0
    ACTION_LIMIT = 1
    POSITION = 2
    VELOCITY = 3
    ACCELERATION = 4
    JERK = 5
    EFFORT = 6
    WORKSPACE = 7
    KEEP_OUT = 8
    SELF_COLLISION = 9
    END_EFFECTOR_STEP = 10
    CONTACT_FORCE = 11
    EXPIRED = 12
    HOLD = 13


class RewardStatus(IntEnum):
    """State of a step's reward. Only `SCORED` steps train."""

    SCORED = 0
    PENDING = 1
    FAILED = 2


@dataclass
class Rows:
    """Identity of each row: its environment, agent, episode and step; integer arrays of equal shape, [B] or [T, B].

    Attributes:
        env: Index of the environment (a simulated world or a robot cell), global within a run.
        agent: Index of the agent in `EnvSpec.agents`, in its order.
        episode: Count of episodes of this environment, from 0.
        step: Step within the episode, from 0.
    """

    env: NDArray[np.int32]
    agent: NDArray[np.int32]
    episode: NDArray[np.int64]
    step: NDArray[np.int32]

    @classmethod
    def of_envs(cls, count: int, first: int = 0, agent: int = 0) -> Self:
        """Rows of agent `agent` in environments `first` to `first + count - 1`, at the start of their first episode."""
        envs = np.arange(first, first + count, dtype=np.int32)
        return cls(envs, np.full(count, agent, np.int32), np.zeros(count, np.int64), np.zeros(count, np.int32))

    def __len__(self) -> int:
        return self.env.shape[-1]

    def take(self, index: Any) -> Self:
        """Copies of the rows at `index`."""
        return type(self)(*(np.array(getattr(self, f.name)[index]) for f in fields(self)))

    def arrays(self) -> dict[str, NDArray[Any]]:
        return {f.name: getattr(self, f.name) for f in fields(self)}

    def noise_keys(self, seed: int) -> NDArray[np.int64]:
        """[B, 5] keys (seed, env, agent, episode, step) for `embodied.noise`."""
        keys = np.empty((len(self), 5), np.int64)
        keys[:, 0], keys[:, 1], keys[:, 2], keys[:, 3], keys[:, 4] = (
            seed, self.env, self.agent, self.episode, self.step,
        )  # fmt: skip
        return keys


def stack_rows(rows: list[Rows]) -> Rows:
    """[T, B] rows from T rows of B."""
    return Rows(*(np.stack([getattr(r, f.name) for r in rows]) for f in fields(Rows)))


@dataclass
class Observation:
    """Streams sensed by B rows.

    Attributes:
        rows: [B].
        streams: Stream name to [B, *shape].
        time: [B] float64 seconds, capture time on the environment's own monotonic clock (simulated time in simulation).
        times: Stream name to [B] float64 seconds, of the streams that were not captured at `time`.
    """

    rows: Rows
    streams: dict[str, NDArray[Any]]
    time: NDArray[np.float64]
    times: dict[str, NDArray[np.float64]] = field(default_factory=dict)

    def take(self, index: Any) -> Self:
        """Copies of the rows at `index`."""
        return type(self)(
            self.rows.take(index),
            {k: np.array(v[index]) for k, v in self.streams.items()},
            np.array(self.time[index]),
            {k: np.array(v[index]) for k, v in self.times.items()},
        )


@dataclass
class ActionChunk:
    """Decisions of a policy for rows; the chunk is the unit of decision.

    Attributes:
        rows: [B], those of the observation answered; `rows.step` is the observation's number.
        actions: [B, K, D] float32 in physical units, as sampled: before clipping and the safety filter.
        log_probs: [B, K, D] float32 of the sampled actions; NaN where the policy has none.
        values: [B] float32, NaN where the policy has none.
        versions: [B] int64, the weights that decided.
        policy: Name of the policy.
        valid_s: Seconds after the observation's capture at which the chunk expires.
        stored: Name to [B, *shape] of `PolicySpec.stored`; empty where the mode of the distribution was taken.
    """

    rows: Rows
    actions: NDArray[np.float32]
    log_probs: NDArray[np.float32]
    values: NDArray[np.float32]
    versions: NDArray[np.int64]
    policy: str
    valid_s: float = float("inf")
    stored: dict[str, NDArray[Any]] = field(default_factory=dict)

    def take(self, index: Any) -> Self:
        """Copies of the rows at `index`."""
        names = ("actions", "log_probs", "values", "versions", "stored")
        own = {name: _taken(getattr(self, name), index) for name in names}
        return replace(self, rows=self.rows.take(index), **own)


def _taken(value: Any, index: Any) -> Any:
    """Copies of the entries at `index` of an array, or of each array of a dictionary."""
    if isinstance(value, dict):
        return {name: np.array(array[index]) for name, array in value.items()}
    return np.array(value[index])


@dataclass
class Resets:
    """Episodes that began, M of them.

    Attributes:
        ids: [M] int32 environments, by their global index (`Rows.env`).
        seeds: [M] int64; each alone determines the start of its episode.
        state: [M, S] float64 full simulator state, from which the episode replays; S is 0 for a robot.
        drawn: Name to [M, ...] of randomised quantities.
    """

    ids: NDArray[np.int32]
    seeds: NDArray[np.int64]
    state: NDArray[np.float64]
    drawn: dict[str, NDArray[Any]] = field(default_factory=dict)


@dataclass
class AgentStep:
    """One agent's part of one control step of B environments.

    An agent whose episode ended is *parked* until its environment resets: `active` is false, its observation repeats
    the last one, its reward is 0 and its outcome `RUNNING`. An environment that resets at once gives the first
    observation of the next episode instead (rows.episode one more, step 0), and the last one of the ended in `final`.

    Attributes:
        observation: [B] after the step and any reset.
        rewards: [B] float32.
        reward_status: [B] uint8 of `RewardStatus`.
        terminated, truncated: [B] bool. Success and failure terminate; a time limit truncates; an infrastructure
            fault truncates and its step never trains.
        outcomes: [B] uint8 of `Outcome`, `RUNNING` where the episode goes on.
        ended: [M] int32 rows whose episode ended, ascending.
        final: Stream name to [M, *shape], their last observations. Finite even after a fault.
        active: [B] bool, whether the agent acts in the next step; None for all.
        executed: [B, D] float32 actions after clipping, latency and filter; None where they are as requested.
        rule: [B] uint8 of `Rule`; None where no rule changed an action.
    """

    observation: Observation
    rewards: NDArray[np.float32]
    reward_status: NDArray[np.uint8]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    outcomes: NDArray[np.uint8]
    ended: NDArray[np.int32]
    final: dict[str, NDArray[Any]]
    active: NDArray[np.bool_] | None = None
    executed: NDArray[np.float32] | None = None
    rule: NDArray[np.uint8] | None = None


@dataclass
class EnvStep:
    """One control step of B environments.

    Attributes:
        agents: Agent name to its part, in the order of `EnvSpec.agents`.
        applied: [B, U] float64 controls that were applied, with which the step replays exactly.
        started: Episodes that began behind the step, in environments all of whose agents had ended; None for none.
        state_hash: [B] uint64 checksums of the simulator's states after the step, before any reset; None where there
            is no state to replay.
    """

    agents: dict[str, AgentStep]
    applied: NDArray[np.float64]
    started: Resets | None
    state_hash: NDArray[np.uint64] | None = None


@dataclass
class CarriedDecisions:
    """Decisions taken before a segment begins and executed within it: N, ordered by row, then `t`.

    Attributes:
        row: [N] int32, the segment's row b.
        t: [N] int32 below 0, the step whose observation the decision answers, counted from the segment's first.
        observations: Stream name to [N, *shape], that observation.
        actions, log_probs: [N, K, D] float32.
        executed: [N, K] bool, the actions that were executed within the segment.
        values: [N] float32.
        versions: [N] int64.
        stored: Name to [N, *shape] of `PolicySpec.stored`.
    """

    row: NDArray[np.int32]
    t: NDArray[np.int32]
    observations: dict[str, NDArray[Any]]
    actions: NDArray[np.float32]
    log_probs: NDArray[np.float32]
    executed: NDArray[np.bool_]
    values: NDArray[np.float32]
    versions: NDArray[np.int64]
    stored: dict[str, NDArray[Any]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.row)

    def take(self, index: Any) -> Self:
        """Copies of the decisions at `index`."""
        return type(self)(*(_taken(getattr(self, f.name), index) for f in fields(self)))


@dataclass
class Segment:
    """T steps of B rows of one policy: what learners consume and episodes are assembled from.

    Rows are those of all agents that the policy drives, agent after agent, the environments of each in order.

    Step (t, b) executed action `k[t, b]` of the decision taken on the observation of step `t - k[t, b]` of its row. The
    decision arrays (`actions`, `log_probs`, `executed`, `values`, `stored`) hold that decision at `[t - k[t, b], b]`,
    or, where `t - k[t, b]` is below 0, `carried` holds it. Where answers come at once, decisions lie where `k` is 0. An
    answer that comes late leaves `k` above 0 at the step that it answers: an older chunk was executed there. A decision
    of which nothing was executed has no true in `executed`. `k` is -1 where no decision was executed; such a step does
    not train. Rows of a parked agent have `rows.step` -1 and do not train.

    Attributes:
        id: `<origin>/<attempt>/<count>`, unique within a run, over resumes too.
        policy, task: Names.
        rows: [T, B].
        observations: Stream name to [T, B, *shape], what the policy saw.
        bootstrap: Stream name to [B, *shape], the observation after the last step.
        final_at: [M, 2] int32 (t, b) of steps that ended an episode.
        final: Stream name to [M, *shape], their last observations.
        k: [T, B] int32 index within the chunk; -1 where no decision was executed.
        actions, log_probs: [T, B, K, D] float32.
        executed: [T, B, K] bool, the actions of each decision that were executed within the segment.
        values: [T, B] float32.
        versions: [T, B] int64 of the decision that each step executed.
        applied: [T, B, U] float64, those of the whole environment.
        rewards: [T, B] float32.
        reward_status: [T, B] uint8.
        reward_version: Name of the reward function that scored the steps.
        terminated, truncated: [T, B] bool.
        outcomes: [T, B] uint8.
        source: [T, B] uint8 of `Source`.
        trainable: [T, B] bool; false at an infrastructure fault and wherever a reward is not `SCORED`.
        start_at: [N] int32, the t at which each of `starts` begins.
        starts: Episodes that began in this segment, or None.
        mode: `train`, `evaluation` or `demonstration`.
        state_hash: [T, B] uint64 or None, as in `EnvStep`.
        stored: Name to [T, B, *shape], decision arrays as in `ActionChunk`; learners consume them, episodes do not keep
            them.
        origin: Name of the process that produced the data, such as `sim-0` or a robot's name.
        time: [T, B] seconds at which each observation was captured, as in `Observation`.
        times: Stream name to [T, B] seconds, of the streams that were not captured at `time`.
        action_requested: [T, B, D] what the policy, script or person asked for; None where it is the chunk's action.
        action_executed: [T, B, D] what was executed after clipping, latency and filter; None where as requested.
        action_rule: [T, B] uint8 of `Rule`; None where no rule changed an action.
        carried: Decisions taken before the segment and executed within it; None where there are none.
    """

    id: str
    policy: str
    task: str
    rows: Rows
    observations: dict[str, NDArray[Any]]
    bootstrap: dict[str, NDArray[Any]]
    final_at: NDArray[np.int32]
    final: dict[str, NDArray[Any]]
    k: NDArray[np.int32]
    actions: NDArray[np.float32]
    log_probs: NDArray[np.float32]
    executed: NDArray[np.bool_]
    values: NDArray[np.float32]
    versions: NDArray[np.int64]
    applied: NDArray[np.float64]
    rewards: NDArray[np.float32]
    reward_status: NDArray[np.uint8]
    reward_version: str
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    outcomes: NDArray[np.uint8]
    source: NDArray[np.uint8]
    trainable: NDArray[np.bool_]
    start_at: NDArray[np.int32]
    starts: Resets | None
    mode: str = "train"
    state_hash: NDArray[np.uint64] | None = None
    stored: dict[str, NDArray[Any]] = field(default_factory=dict)
    origin: str = ""
    time: NDArray[np.float64] | None = None
    times: dict[str, NDArray[np.float64]] = field(default_factory=dict)
    action_requested: NDArray[np.float32] | None = None
    action_executed: NDArray[np.float32] | None = None
    action_rule: NDArray[np.uint8] | None = None
    carried: CarriedDecisions | None = None

    @property
    def steps(self) -> int:
        """Steps in all rows, T x B."""
        return self.rewards.size
