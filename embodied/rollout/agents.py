"""Rows of several agents put one after the other, so that one policy drives them as rows of one batch."""

from collections.abc import Sequence
from dataclasses import fields

import numpy as np
from numpy.typing import NDArray

from embodied.data import AgentStep, Observation, Rows
from embodied.spec import EnvSpec


def shared_streams(env: EnvSpec, agents: Sequence[str]) -> list[str]:
    """Names of the observation streams that all agents have, with equal shape and dtype, in the first one's order."""
    forms = [{s.name: (s.shape, s.dtype) for s in env.agents[agent].observations} for agent in agents]
    return [name for name, form in forms[0].items() if all(other.get(name) == form for other in forms[1:])]


def join_observations(parts: Sequence[Observation], names: Sequence[str]) -> Observation:
    """Observations [B] of A agents as one of [A * B] rows with the streams `names`; that of one agent as it is."""
    if len(parts) == 1:
        return parts[0]
    rows = Rows(*(np.concatenate([getattr(part.rows, f.name) for part in parts]) for f in fields(Rows)))
    apart = [name for name in names if any(name in part.times for part in parts)]
    return Observation(
        rows,
        {name: np.concatenate([part.streams[name] for part in parts]) for name in names},
        np.concatenate([part.time for part in parts]),
        {name: np.concatenate([part.times.get(name, part.time) for part in parts]) for name in apart},
    )


def join_steps(parts: Sequence[AgentStep], names: Sequence[str], requested: NDArray[np.float32]) -> AgentStep:
    """Steps [B] of A agents as one of [A * B] rows; that of one agent as it is.

    Args:
        names: Streams of the joined observations.
        requested: [A * B, D] actions that the agents were given, executed where a part says nothing else.
    """
    if len(parts) == 1:
        return parts[0]
    size = len(parts[0].rewards)

    def joined(name: str) -> NDArray:
        return np.concatenate([getattr(part, name) for part in parts])

    executed = rule = active = None
    if any(part.executed is not None for part in parts):
        asked = np.split(requested, len(parts))
        pairs = zip(parts, asked, strict=True)
        executed = np.concatenate([own if part.executed is None else part.executed for part, own in pairs])
    if any(part.rule is not None for part in parts):
        rule = np.concatenate([np.zeros(size, np.uint8) if part.rule is None else part.rule for part in parts])
    if any(part.active is not None for part in parts):
        active = np.concatenate([np.ones(size, bool) if part.active is None else part.active for part in parts])
    return AgentStep(
        observation=join_observations([part.observation for part in parts], names),
        rewards=joined("rewards"),
        reward_status=joined("reward_status"),
        terminated=joined("terminated"),
        truncated=joined("truncated"),
        outcomes=joined("outcomes"),
        ended=np.concatenate([part.ended + np.int32(i * size) for i, part in enumerate(parts)]),
        final={name: np.concatenate([part.final[name] for part in parts]) for name in names},
        active=active,
        executed=executed,
        rule=rule,
    )
