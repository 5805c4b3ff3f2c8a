"""Unfinished episodes of an assembler, and their form in a checkpoint."""

from collections.abc import Mapping
from dataclasses import dataclass, field, is_dataclass
from typing import Any

import msgpack
import numpy as np
from numpy.typing import NDArray

from embodied.buffer.packing import pack_arrays, unpack_arrays
from embodied.buffer.track_parts import Arrays, TrackPart
from embodied.data import Outcome
from embodied.episode import Track
from embodied.errors import DataError

EnvKey = tuple[str, str, int]
"""Origin, mode and environment."""
Key = tuple[str, str, int, int]
"""Origin, mode, environment and agent."""
_ARRAY = 1


@dataclass
class Start:
    """Start of an episode: seed, [S] float64 simulator state and drawn values."""

    seed: int
    state: NDArray[np.float64]
    drawn: Arrays


@dataclass
class UnfinishedTrack:
    """A track of an episode that is not complete.

    Attributes:
        number: Of the episode; unique for one environment, mode and attempt of an origin.
        counted: `Rows.episode`, which counts anew in environments that are made anew.
        form: Policy, K, D, whether there are state hashes, and stream names: the same in all its segments.
        attempt: Of the last segment.
        steps: Length so far.
        parts: One per segment; none once the track has ended.
        whole: The track, once it has ended.
    """

    number: int
    counted: int
    form: tuple[Any, ...]
    task: str
    start: Start
    attempt: int
    reward_versions: tuple[str, ...] = ()
    segments: tuple[str, ...] = ()
    steps: int = 0
    parts: list[TrackPart] = field(default_factory=list)
    whole: Track | None = None


@dataclass
class IncompleteEpisode:
    """An episode of which some agents have ended.

    Attributes:
        tracks: Agent index to its whole track.
        passed: Agents that began a later episode.
        dropped: Whether a part was lost, so that the other parts are dropped as they arrive.
    """

    tracks: dict[int, UnfinishedTrack] = field(default_factory=dict)
    passed: set[int] = field(default_factory=set)
    dropped: bool = False

    @property
    def nbytes(self) -> int:
        return sum(track.whole.nbytes for track in self.tracks.values() if track.whole)


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

    open: dict[Key, UnfinishedTrack] = field(default_factory=dict)
    early: dict[Key, Start] = field(default_factory=dict)
    incomplete: dict[EnvKey, dict[int, IncompleteEpisode]] = field(default_factory=dict)
    numbers: dict[Key, tuple[int, int, int]] = field(default_factory=dict)
    seen: dict[str, None] = field(default_factory=dict)
    dropped: int = 0

    def pack(self) -> Arrays:
        """The state as an array of bytes."""
        return {"packed": np.frombuffer(msgpack.packb(vars(self), default=_plain), np.uint8).copy()}

    @classmethod
    def unpack(cls, state: Mapping[str, NDArray[Any]]) -> "AssemblerState":
        """The state that `pack` packed.

        Raises:
            DataError: It is no such state.
        """
        try:
            packed = np.asarray(state["packed"], np.uint8).tobytes()
            fields = msgpack.unpackb(packed, ext_hook=_array, use_list=False, strict_map_key=False)
            made = cls(**fields)
            made.open = {key: _track(track) for key, track in fields["open"].items()}
            made.early = {key: Start(**start) for key, start in fields["early"].items()}
            made.incomplete = {
                env: {number: _incomplete(**episode) for number, episode in episodes.items()}
                for env, episodes in fields["incomplete"].items()
            }
        except (
            KeyError,
            TypeError,
            ValueError,
            ArithmeticError,
            AttributeError,
            msgpack.UnpackException,
            DataError,
        ) as error:
            raise DataError(f"no state of an episode assembler: {error}", "checkpoint", "resume from another") from None
        return made


def _plain(value: Any) -> Any:
    """Values that msgpack knows, of those that it does not."""
    if isinstance(value, np.ndarray):
        table, data = pack_arrays({"": value})
        return msgpack.ExtType(_ARRAY, msgpack.packb([table, data]))
    if isinstance(value, set):
        return sorted(value)
    if is_dataclass(value):
        return vars(value)
    raise TypeError(f"{type(value).__name__} in the state")


def _array(_: int, data: bytes) -> NDArray[Any]:
    table, values = msgpack.unpackb(data)
    return unpack_arrays(table, values)[""]


def _track(fields: Mapping[str, Any]) -> UnfinishedTrack:
    track = UnfinishedTrack(**fields)
    track.start = Start(**fields["start"])
    track.parts = [TrackPart(**part) for part in fields["parts"]]
    if fields["whole"] is not None:
        track.whole = Track(**fields["whole"])
        track.whole.outcome = Outcome(track.whole.outcome)
    return track


def _incomplete(tracks: Mapping[int, Any], passed: tuple[int, ...], dropped: bool) -> IncompleteEpisode:
    return IncompleteEpisode({agent: _track(track) for agent, track in tracks.items()}, set(passed), dropped)
