"""One line per episode: the light index of an episode file, read without its arrays."""

from dataclasses import astuple, dataclass, fields
from pathlib import Path

import msgpack
import numpy as np

from embodied.buffer.container import FIX
from embodied.data import Episode, RewardStatus
from embodied.errors import CorruptFile


@dataclass(frozen=True)
class EpisodeSummary:
    """What a list of episodes shows.

    Attributes:
        id, task, mode, policy: As in `Episode`.
        outcome: Name of the outcome in lower case.
        seed: The seed that drew the start.
        steps: Steps of the longest track.
        total_reward: Sum of the scored rewards of all agents.
        version_min, version_max: Policy versions of the decisions; -1 without any.
    """

    id: str
    task: str
    mode: str
    policy: str
    outcome: str
    seed: int
    steps: int
    total_reward: float
    version_min: int
    version_max: int


_TYPES = {field.name: field.type for field in fields(EpisodeSummary)}


def summarise(episode: Episode) -> EpisodeSummary:
    """The summary of one episode."""
    tracks = episode.agents.values()
    versions = np.concatenate([t.versions for t in tracks]) if tracks else np.zeros(0, np.int64)
    scored = sum(float(t.rewards[t.reward_status == RewardStatus.SCORED].sum(dtype=np.float64)) for t in tracks)
    return EpisodeSummary(
        episode.id,
        episode.task,
        episode.mode,
        episode.policy,
        episode.outcome.name.lower(),
        int(episode.seed),
        len(episode),
        scored,
        int(versions.min()) if len(versions) else -1,
        int(versions.max()) if len(versions) else -1,
    )


def pack_index(summaries: list[EpisodeSummary]) -> bytes:
    """Summaries as msgpack: a list of lists in the order of the fields."""
    return msgpack.packb([list(astuple(summary)) for summary in summaries])


def unpack_index(data: bytes, path: Path) -> list[EpisodeSummary]:
    """Summaries from `pack_index`.

    Raises:
        CorruptFile: It is no such index; names `path`.
    """
    try:
        rows = [EpisodeSummary(*row) for row in msgpack.unpackb(data)]
    except (ValueError, TypeError, msgpack.UnpackException):
        raise CorruptFile("its index cannot be read", str(path), FIX) from None
    if not all(isinstance(getattr(row, name), kind) for row in rows for name, kind in _TYPES.items()):  # type: ignore[arg-type]
        raise CorruptFile("its index holds a value of a wrong type", str(path), FIX)
    return rows
