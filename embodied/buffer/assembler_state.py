"""Unfinished episodes of an assembler, and their form in a checkpoint."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embodied.buffer.packing import pack_arrays, unpack_arrays
from embodied.buffer.track_parts import Arrays, TrackPart, join
from embodied.data import Outcome
from embodied.episode import Track
from embodied.errors import DataError

EnvKey = tuple[str, str, int]
"""Origin, mode and environment."""
Key = tuple[str, str, int, int]
"""Origin, mode, environment and agent."""


@dataclass
class Start:
    """Start of an episode: seed, [S] float64 simulator state and drawn values."""

    seed: int
    state: NDArray[np.float64]
    drawn: Arrays


@dataclass
class OpenTrack:
    """A track whose end has not arrived.

    Attributes:
        number: Of the episode; unique for one environment, mode and attempt of an origin.
        counted: `Rows.episode`, which counts anew in environments that are made anew.
        steps: Length so far.
        parts: One per segment.
    """

    number: int
    counted: int
    policy: str
    task: str
    start: Start
    reward_versions: list[str] = field(default_factory=list)
    segments: list[str] = field(default_factory=list)
    steps: int = 0
    parts: list[TrackPart] = field(default_factory=list)


@dataclass
class EndedTrack:
    """A whole track, and what its episode needs besides."""

    track: Track
    attempt: int
    task: str
    start: Start
    reward_versions: list[str]
    segments: list[str]

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for array in _track_arrays(self.track).values())


@dataclass
class IncompleteEpisode:
    """An episode of which some agents have ended.

    Attributes:
        tracks: Agent index to its track.
        passed: Agents that began a later episode.
        dropped: Whether a part was lost, so that the other parts are dropped as they arrive.
    """

    tracks: dict[int, EndedTrack] = field(default_factory=dict)
    passed: set[int] = field(default_factory=set)
    dropped: bool = False

    @property
    def nbytes(self) -> int:
        return sum(ended.nbytes for ended in self.tracks.values())


@dataclass
class AssemblerState:
    """Everything that an assembler remembers between segments.

    Attributes:
        open: Tracks whose end has not arrived.
        early: Starts told by the segment before the one that they begin.
        incomplete: Episode number to the episode, per environment.
        numbers: Attempt, number and `Rows.episode` of the last episode that began.
        seen: Ids of the latest segments, oldest first.
        dropped: Episodes lost so far.
    """

    open: dict[Key, OpenTrack] = field(default_factory=dict)
    early: dict[Key, Start] = field(default_factory=dict)
    incomplete: dict[EnvKey, dict[int, IncompleteEpisode]] = field(default_factory=dict)
    numbers: dict[Key, tuple[int, int, int]] = field(default_factory=dict)
    seen: dict[str, None] = field(default_factory=dict)
    dropped: int = 0

    def pack(self) -> Arrays:
        """The state as arrays of bytes, `data` and `meta`, which is JSON."""
        arrays: Arrays = {}
        meta: dict[str, Any] = {"dropped": self.dropped, "seen": list(self.seen)}
        meta["numbers"] = [[*key, *numbers] for key, numbers in self.numbers.items()]
        meta["open"] = []
        for n, (key, track) in enumerate(self.open.items()):
            if track.parts:
                _put(arrays, f"open/{n}/part", _part_arrays(join(track.parts)))
            row = [track.number, track.counted, track.policy, track.task, track.reward_versions, track.segments]
            meta["open"].append([*key, row, _put_start(arrays, f"open/{n}/start", track.start)])
        meta["early"] = [
            [*key, _put_start(arrays, f"early/{n}/start", start)] for n, (key, start) in enumerate(self.early.items())
        ]
        meta["incomplete"] = []
        for env, episodes in self.incomplete.items():
            for number, episode in episodes.items():
                tracks = []
                for agent, ended in episode.tracks.items():
                    place = f"incomplete/{len(meta['incomplete'])}-{agent}"
                    _put(arrays, f"{place}/part", _track_arrays(ended.track))
                    whole = [ended.track.policy, int(ended.track.outcome), ended.attempt, ended.task]
                    seed = _put_start(arrays, f"{place}/start", ended.start)
                    tracks.append([agent, *whole, seed, ended.reward_versions, ended.segments])
                meta["incomplete"].append([*env, number, sorted(episode.passed), episode.dropped, tracks])
        meta["arrays"], data = pack_arrays(arrays)
        return {
            "meta": np.frombuffer(json.dumps(meta).encode(), np.uint8).copy(),
            "data": np.frombuffer(data, np.uint8).copy(),
        }

    @classmethod
    def unpack(cls, state: Mapping[str, NDArray[Any]]) -> "AssemblerState":
        """The state that `pack` packed.

        Raises:
            DataError: It is no such state.
        """
        try:
            meta = json.loads(np.asarray(state["meta"], np.uint8).tobytes())
            arrays = _Tree(unpack_arrays(meta["arrays"], np.asarray(state["data"], np.uint8).tobytes()))
            made = cls(dropped=int(meta["dropped"]), seen=dict.fromkeys(map(str, meta["seen"])))
            for *key, attempt, number, counted in meta["numbers"]:
                made.numbers[_key(key)] = attempt, number, counted
            for n, (*key, (number, counted, policy, task, versions, segments), seed) in enumerate(meta["open"]):
                track = OpenTrack(number, counted, policy, task, arrays.start(f"open/{n}/start", seed))
                track.reward_versions, track.segments = versions, segments
                if segments:
                    track.parts = [TrackPart(**arrays.sections(f"open/{n}/part"))]
                    track.steps = track.parts[0].steps
                made.open[_key(key)] = track
            for n, (*key, seed) in enumerate(meta["early"]):
                made.early[_key(key)] = arrays.start(f"early/{n}/start", seed)
            for n, (origin, mode, env, number, passed, dropped, tracks) in enumerate(meta["incomplete"]):
                episode = IncompleteEpisode(passed=set(passed), dropped=bool(dropped))
                for agent, policy, outcome, attempt, task, seed, versions, segments in tracks:
                    place = f"incomplete/{n}-{agent}"
                    sections = arrays.sections(f"{place}/part")
                    columns: dict[str, Any] = sections["columns"]
                    track_ = Track(sections["streams"], times=sections["times"], **columns)
                    track_.policy, track_.outcome = policy, Outcome(outcome)
                    start = arrays.start(f"{place}/start", seed)
                    episode.tracks[agent] = EndedTrack(track_, attempt, task, start, versions, segments)
                made.incomplete.setdefault((origin, mode, env), {})[number] = episode
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(f"no state of an episode assembler: {error}", "checkpoint", "resume from another") from None
        return made


def _key(values: list[Any]) -> Key:
    origin, mode, env, agent = values
    return str(origin), str(mode), int(env), int(agent)


def _put(arrays: Arrays, place: str, values: Arrays) -> None:
    arrays |= {f"{place}/{name}": value for name, value in values.items()}


def _put_start(arrays: Arrays, place: str, start: Start) -> int:
    """Add the arrays of a start; its seed."""
    _put(
        arrays, place, {"columns/state": start.state} | {f"drawn/{name}": value for name, value in start.drawn.items()}
    )
    return start.seed


def _part_arrays(part: TrackPart) -> Arrays:
    sections = {"columns": part.columns, "streams": part.streams, "times": part.times}
    return {f"{section}/{name}": value for section, values in sections.items() for name, value in values.items()}


def _track_arrays(track: Track) -> Arrays:
    columns = {name: value for name, value in vars(track).items() if isinstance(value, np.ndarray)}
    return _part_arrays(TrackPart(columns, track.observations, track.times))


class _Tree:
    """Arrays by place: `<place>/<section>/<name>`."""

    def __init__(self, arrays: Arrays) -> None:
        self._places: dict[str, dict[str, Arrays]] = {}
        for name, value in arrays.items():
            kind, n, part, section, last = name.split("/", 4)
            self._places.setdefault(f"{kind}/{n}/{part}", {}).setdefault(section, {})[last] = value

    def sections(self, place: str) -> dict[str, Arrays]:
        return {"streams": {}, "times": {}} | self._places[place]

    def start(self, place: str, seed: int) -> Start:
        sections = self._places[place]
        return Start(int(seed), sections["columns"]["state"], sections.get("drawn", {}))
