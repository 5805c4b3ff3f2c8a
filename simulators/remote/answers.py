"""Answers of workers, checked on arrival."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embodied.data import AgentStep, Observation, Outcome, RewardStatus, Rule
from embodied.errors import EmbodiedError, MessageError
from embodied.spec import EnvSpec
from embodied.spec import Streams as Specs
from embodied.wire.codecs import take_array
from embodied.wire.message import Message

Streams = dict[str, NDArray[Any]]

# Plain numbers: numpy takes several times as long with members of an enumeration.
_SUCCESS, _FAILURE, _INFRASTRUCTURE_FAULT = map(int, (Outcome.SUCCESS, Outcome.FAILURE, Outcome.INFRASTRUCTURE_FAULT))
_TEXT = 500
_FAULTS = 8
_KNOWN = (Outcome.RUNNING, Outcome.SUCCESS, Outcome.FAILURE, Outcome.TIME_LIMIT, Outcome.INFRASTRUCTURE_FAULT)


@dataclass
class StepAnswer:
    """A step of M rows: as `simulators.worker.rows.Stepped`, and the seconds it took there."""

    streams: Streams
    rewards: NDArray[np.float32]
    outcomes: NDArray[np.uint8]
    final: Streams
    faults: list[str]
    physics_s: float


def agent_streams(spec: EnvSpec) -> dict[str, Specs]:
    """Agent name to the streams of its observations."""
    return {name: agent.observations for name, agent in spec.agents.items()}


def streams_of(
    answer: Message | EmbodiedError, prefix: str, specs: Mapping[str, Specs], counts: Mapping[str, int]
) -> Streams:
    """`<agent>/<stream>` to [count, *shape] of an answer, with a count of rows for each agent.

    Raises:
        MessageError: A stream is missing, or of another dtype or shape.
        EmbodiedError: An error came instead of an answer.
    """
    if isinstance(answer, EmbodiedError):
        raise answer
    streams = {
        f"{agent}/{s.name}": take_array(answer.arrays, f"{prefix}/{agent}/{s.name}", s.dtype, (counts[agent], *s.shape))
        for agent, streams in specs.items()
        for s in streams
    }
    for name, values in streams.items():
        if not np.isfinite(values).all():
            raise MessageError(f"{prefix} {name} is not finite", answer.kind, "run the same version on both sides")
    return streams


def seeds_of(answer: Message | EmbodiedError, asked: NDArray[np.int64]) -> NDArray[np.int64]:
    """[M] seeds that episodes began with; a worker replaces those `asked` that its environments do not start with.

    Raises:
        MessageError: They are no seeds.
    """
    if isinstance(answer, EmbodiedError) or "seeds" not in answer.arrays:
        return asked
    seeds = take_array(answer.arrays, "seeds", "int64", asked.shape)
    if (seeds < 0).any():
        raise MessageError("a negative seed", answer.kind, "run the same version on both sides")
    return seeds


def faults_of(answer: Message | EmbodiedError) -> list[str]:
    """Faults of an answer, in words; the first few."""
    faults = [] if isinstance(answer, EmbodiedError) else answer.body.get("faults")
    return [str(fault)[:_TEXT] for fault in faults[:_FAULTS]] if isinstance(faults, list) else []


def take_step(
    answer: Message | EmbodiedError, spec: EnvSpec, step: NDArray[np.int32], active: NDArray[np.bool_]
) -> StepAnswer:
    """The answer to a step of rows that have taken `step` [M] steps with it, and whose agents `active` [M, A] act.

    Raises:
        MessageError: Something is missing, of another type or shape, or not finite where it must be.
        EmbodiedError: An error came instead of an answer.
    """
    if isinstance(answer, EmbodiedError):
        raise answer
    specs, shape = agent_streams(spec), active.shape
    outcomes = take_array(answer.arrays, "outcomes", "uint8", shape)
    late = (step >= spec.episode_steps)[:, None] & active
    if not np.isin(outcomes, _KNOWN).all() or not outcomes[late].all() or outcomes[~active].any():
        raise MessageError("outcomes of agents that cannot have ended", "step", "run the same version on both sides")
    rewards = take_array(answer.arrays, "rewards", "float32", shape)
    if not np.isfinite(rewards).all():
        raise MessageError("rewards that are not finite", "step", "run the same version on both sides")
    faults, physics_s = answer.body.get("faults"), answer.body.get("physics_s")
    if type(faults) is not list or type(physics_s) is not float or not 0 <= physics_s < 1e9:
        raise MessageError("a step without faults or physics_s", "step", "run the same version on both sides")
    ended = {name: int(np.count_nonzero(outcomes[:, index])) for index, name in enumerate(specs)}
    return StepAnswer(
        streams_of(answer, "stream", specs, dict.fromkeys(specs, len(step))),
        rewards,
        outcomes,
        streams_of(answer, "final", specs, ended),
        faults_of(answer),
        physics_s,
    )


def agent_step(
    seen: Observation,
    requested: NDArray[np.float32],
    clipped: NDArray[np.float32],
    acting: NDArray[np.bool_],
    outcomes: NDArray[np.uint8],
    active: NDArray[np.bool_],
) -> AgentStep:
    """An agent's step of B rows, without its rewards and last observations; `active` are the rows it acts in next."""
    ends, terminated = outcomes > 0, (outcomes == _SUCCESS) | (outcomes == _FAILURE)
    limited = ((clipped != requested) & np.isfinite(requested)).any(axis=1) & acting
    changed = limited.any()
    return AgentStep(
        observation=seen,
        rewards=np.zeros(0, np.float32),
        reward_status=(outcomes == _INFRASTRUCTURE_FAULT) * np.uint8(RewardStatus.FAILED),
        terminated=terminated,
        truncated=ends & ~terminated,
        outcomes=np.ascontiguousarray(outcomes),
        ended=np.flatnonzero(ends).astype(np.int32),
        final={},
        active=None if active.all() else active.copy(),
        executed=clipped if changed else None,
        rule=limited * np.uint8(Rule.ACTION_LIMIT) if changed else None,
    )
