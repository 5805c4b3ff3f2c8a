"""Summaries of episodes: the index of an episode file, read without its arrays."""

import re
from collections.abc import Sequence
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from typing import Any

import msgpack

from embodied.buffer.container import FIX
from embodied.data import Outcome, RewardStatus
from embodied.episode import Episode, Track, joint_outcome
from embodied.errors import CorruptFile


@dataclass(frozen=True)
class TrackSummary:
    """Summary of one agent's track.

    Attributes:
        agent, policy: Names.
        outcome: Name of the outcome in lower case.
        steps: Length.
        total_reward: Sum of the scored rewards.
        version_min, version_max: Policy versions of the decisions; -1 without any.
    """

    agent: str
    policy: str
    outcome: str
    steps: int
    total_reward: float
    version_min: int
    version_max: int


@dataclass(frozen=True)
class EpisodeSummary:
    """Summary of one episode.

    Attributes:
        id, task, mode: As in `Episode`.
        seed: The seed that drew the start.
        tracks: One summary per agent.
    """

    id: str
    task: str
    mode: str
    seed: int
    tracks: tuple[TrackSummary, ...]

    @property
    def outcome(self) -> str:
        """Joint outcome of the agents in lower case."""
        return joint_outcome(Outcome[track.outcome.upper()] for track in self.tracks).name.lower()

    @property
    def steps(self) -> int:
        """Steps of the longest track."""
        return max((track.steps for track in self.tracks), default=0)

    @property
    def total_reward(self) -> float:
        """Sum of the scored rewards of all agents."""
        return sum(track.total_reward for track in self.tracks)

    def to_dict(self) -> dict[str, Any]:
        """JSON values: the fields, and outcome, steps and total_reward of all agents."""
        whole = {"outcome": self.outcome, "steps": self.steps, "total_reward": self.total_reward}
        return vars(self) | whole | {"tracks": [vars(track) for track in self.tracks]}


def natural_key(name: str) -> list[tuple[int, str]]:
    """Key that sorts names by their numbers: `shard-2` before `shard-10`. It depends on the name alone."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"([0-9]+)", name)]


def summarise(episode: Episode) -> EpisodeSummary:
    """The summary of one episode."""
    tracks = tuple(_summarise_track(agent, track) for agent, track in episode.agents.items())
    return EpisodeSummary(episode.id, episode.task, episode.mode, int(episode.seed), tracks)


def _summarise_track(agent: str, track: Track) -> TrackSummary:
    scored = track.rewards[track.reward_status == RewardStatus.SCORED]
    versions = (int(track.versions.min()), int(track.versions.max())) if len(track.versions) else (-1, -1)
    reward = float(scored.sum(dtype="f8"))
    return TrackSummary(agent, track.policy, track.outcome.name.lower(), len(track), reward, *versions)


def pack_index(summaries: list[EpisodeSummary]) -> bytes:
    """Summaries as msgpack: a list of lists in the order of the fields."""
    return msgpack.packb([[s.id, s.task, s.mode, s.seed, [astuple(t) for t in s.tracks]] for s in summaries])


def unpack_index(data: bytes, path: Path) -> list[EpisodeSummary]:
    """Summaries from `pack_index`, or from the index of a format-1 file.

    Raises:
        CorruptFile: It is no such index; names `path`.
    """
    try:
        return [_unpack_row(row) for row in msgpack.unpackb(data)]
    except (ValueError, ArithmeticError, TypeError, KeyError, msgpack.UnpackException):
        raise CorruptFile("its index cannot be read", str(path), FIX) from None


def _unpack_row(row: Sequence[Any]) -> EpisodeSummary:
    if len(row) == 10:  # format 1: one line for all agents
        id, task, mode, policy, outcome, seed, *numbers = row
        row = (id, task, mode, seed, [["", policy, outcome, *numbers]])
    id, task, mode, seed, tracks = row
    summary = EpisodeSummary(id, task, mode, seed, tuple(TrackSummary(*track) for track in tracks))
    parts: list[EpisodeSummary | TrackSummary] = [summary, *summary.tracks]
    for part in parts:
        for field in fields(part):
            kind: Any = tuple if field.name == "tracks" else field.type
            if not isinstance(getattr(part, field.name), kind):
                raise TypeError(f"{field.name} of a wrong type")
    Outcome[summary.outcome.upper()]
    return summary
