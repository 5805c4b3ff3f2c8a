"""Episodes: one track per agent, as they are stored and learned from."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embodied.data import Outcome


@dataclass
class Track:
    """One agent's part of an episode of L steps and N decisions.

    Attributes:
        observations: Stream name to [L + 1, *shape]; the last is the final observation.
        decision: [L] int32, the decision each step executes; -1 where the step executes none.
        k: [L] int32, its index within that decision's chunk; -1 where there is none.
        rewards, reward_status, terminated, truncated, source, trainable: [L], as in `Segment`.
        applied: [L, U] float64, those of the whole environment.
        segment: [L] int32, index into `Episode.segments` of the segment that carried the step to a learner.
        step: [N] int32, the step whose observation each decision answers.
        actions, log_probs: [N, K, D]. executed: [N, K]. values, versions: [N].
        state_hash: [L] uint64 checksums of the simulator's states after each step; None where there is none.
        policy: Name of the policy that drove the agent.
        outcome: End of the agent's episode.
        time: [L + 1] seconds at which each observation was captured, NaN where it is unknown; None where no time was
            recorded.
        times: Stream name to [L + 1] seconds, of the streams that were not captured at `time`.
        action_requested, action_executed: [L, D]; None where as the decision says, or as requested.
        action_rule: [L] uint8 of `Rule`; None where no rule changed an action.
        jpeg: Stream name to L + 1 JPEG files, of pictures that the policy saw as JPEG. They are stored as they are;
            `observations` holds them decoded, or lacks the stream until the track is read from a file.
    """

    observations: dict[str, NDArray[Any]]
    decision: NDArray[np.int32]
    k: NDArray[np.int32]
    rewards: NDArray[np.float32]
    reward_status: NDArray[np.uint8]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    source: NDArray[np.uint8]
    trainable: NDArray[np.bool_]
    applied: NDArray[np.float64]
    segment: NDArray[np.int32]
    step: NDArray[np.int32]
    actions: NDArray[np.float32]
    log_probs: NDArray[np.float32]
    executed: NDArray[np.bool_]
    values: NDArray[np.float32]
    versions: NDArray[np.int64]
    state_hash: NDArray[np.uint64] | None = None
    policy: str = ""
    outcome: Outcome = Outcome.RUNNING
    time: NDArray[np.float64] | None = None
    times: dict[str, NDArray[np.float64]] = field(default_factory=dict)
    action_requested: NDArray[np.float32] | None = None
    action_executed: NDArray[np.float32] | None = None
    action_rule: NDArray[np.uint8] | None = None
    jpeg: dict[str, list[bytes]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.rewards)

    @property
    def requested(self) -> NDArray[np.float32]:
        """[L, D] actions that the policy, script or person asked for; NaN where nothing was asked for."""
        return self.decided if self.action_requested is None else self.action_requested

    @property
    def decided(self) -> NDArray[np.float32]:
        """[L, D] actions of the decisions, `actions[decision, k]`; NaN where a step executes no decision."""
        if not len(self.actions):
            return np.full((len(self), self.actions.shape[2]), np.nan, np.float32)
        chosen = self.actions[self.decision, self.k]
        chosen[self.decision < 0] = np.nan
        return chosen

    @property
    def changed_steps(self) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """[L] whether the requested action is not the decision's; [L] whether the executed one is not as requested."""
        none = np.zeros(len(self), bool)
        requested, executed = self.action_requested, self.action_executed
        return (
            none if requested is None else _differ(requested, self.decided),
            none if executed is None else _differ(executed, self.requested),
        )

    def set_actions(
        self,
        requested: NDArray[np.float32] | None,
        executed: NDArray[np.float32] | None,
        rule: NDArray[np.uint8] | None,
    ) -> None:
        """Set the three action arrays, each to None where no step differs from the usual."""
        self.action_requested, self.action_executed, self.action_rule = requested, executed, rule
        of_requested, of_executed = self.changed_steps
        if not of_executed.any():
            self.action_executed = None
        if not of_requested.any():
            self.action_requested = None
        if rule is not None and not rule.any():
            self.action_rule = None

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays and JPEG files."""
        arrays = (*vars(self).values(), *self.observations.values(), *self.times.values())
        files = sum(len(file) for files in self.jpeg.values() for file in files)
        return files + sum(value.nbytes for value in arrays if isinstance(value, np.ndarray))


def _differ(one: NDArray[Any], other: NDArray[Any]) -> NDArray[np.bool_]:
    """[L] whether rows differ, NaN being equal to NaN."""
    return ((one != other) & ~(np.isnan(one) & np.isnan(other))).any(axis=1)


_PRECEDENCE = (
    Outcome.RUNNING, Outcome.INFRASTRUCTURE_FAULT, Outcome.SAFETY_STOP, Outcome.HUMAN_STOP, Outcome.FAILURE,
    Outcome.TIME_LIMIT, Outcome.SUCCESS,
)  # fmt: skip


def joint_outcome(outcomes: Iterable[Outcome]) -> Outcome:
    """Outcome of an episode of several agents: `SUCCESS` only if every agent succeeded, else the gravest outcome."""
    return min(outcomes, key=_PRECEDENCE.index, default=Outcome.RUNNING)


@dataclass
class Episode:
    """One whole episode of an environment.

    Attributes:
        id: `<origin>/<mode>/<attempt>-<env>-<episode>`, unique in a store; one name without slashes in format 1.
        task, mode, reward_version: As in `Segment`; several reward versions are joined by `+`.
        seed: The seed that alone drew the start.
        spec: `EnvSpec.to_dict()` of the environment.
        agents: Agent name to its track. Tracks may have different lengths, policies and outcomes.
        initial_state: [S] float64.
        drawn: As in `Resets`.
        segments: Ids of the segments that carried its steps.
    """

    id: str
    task: str
    mode: str
    reward_version: str
    seed: int
    spec: Mapping[str, Any]
    agents: dict[str, Track]
    initial_state: NDArray[np.float64]
    drawn: dict[str, NDArray[Any]]
    segments: list[str]

    @property
    def outcome(self) -> Outcome:
        """Joint outcome of the agents, as `joint_outcome`."""
        return joint_outcome(track.outcome for track in self.agents.values())

    @property
    def policy(self) -> str:
        """Names of the policies that drove the agents, joined by `+`."""
        return "+".join(dict.fromkeys(track.policy for track in self.agents.values()))

    @property
    def applied(self) -> NDArray[np.float64]:
        """[L, U] controls of the environment in all its steps: those of the longest track."""
        return max(self.agents.values(), key=len).applied

    def __len__(self) -> int:
        """Steps of the longest track."""
        return max((len(track) for track in self.agents.values()), default=0)
