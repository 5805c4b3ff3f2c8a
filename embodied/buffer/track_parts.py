"""Parts of a track: slices of a segment that belong to one row, and the track that they make."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embodied.data import Outcome, Segment
from embodied.episode import Track
from embodied.errors import DataError

Arrays = dict[str, NDArray[Any]]

STEPS = (
    "k", "rewards", "reward_status", "terminated", "truncated", "source", "trainable", "applied", "state_hash", "time",
    "action_requested", "action_executed", "action_rule",
)  # fmt: skip
SOMETIMES = ("time", "action_requested", "action_executed", "action_rule")
"""Columns that one segment of an episode may have and another lack."""
DECISIONS = ("actions", "log_probs", "values", "versions")
SMALL = 4096


@dataclass
class TrackPart:
    """The n steps and m new decisions of a track that one segment carries.

    Attributes:
        columns: `Track` attribute to [n, ...] or [m, ...].
        streams: Stream name to [n, *shape].
        times: Stream name to [n] capture times, of the streams that were not captured at `time`.
    """

    columns: Arrays
    streams: Arrays
    times: Arrays


class SegmentRows:
    """A segment laid out row after row, so that a part is a slice.

    Small arrays are copied once for all rows, and parts are views of the copy. Streams of more than `SMALL` bytes a
    step are sliced in place, and copied only if the track outlives the segment.
    """

    def __init__(self, segment: Segment) -> None:
        self._length = len(segment.k)
        given = {name: getattr(segment, name) for name in STEPS}
        self._columns = {name: _rows_first(value) for name, value in given.items() if value is not None}
        k = self._columns["k"]
        at = np.arange(len(k), dtype=np.int32)
        asked = at - k  # of each step, the place of the decision that it executes
        own = (k >= 0) & (asked >= at - at % self._length)  # steps whose decision is not carried into the segment
        begins = np.zeros(len(k), bool)
        begins[asked[own]] = True
        self._before = np.concatenate([[0], np.cumsum(begins)]).tolist()
        decided = np.flatnonzero(begins)
        self._asked = (decided % self._length).astype(np.int32)
        self._decided = {name: _rows_first(getattr(segment, name)) for name in DECISIONS}
        if k[decided].any():  # late answers: a step executes its own version, not that of the decision taken there
            versions = self._decided["versions"]
            versions[asked[own]] = versions[own]
        self._decided = {name: value[decided] for name, value in self._decided.items()}
        self._times = {name: _rows_first(value) for name, value in segment.times.items()}
        seen = segment.observations
        self._large = {name: value for name, value in seen.items() if value.nbytes > SMALL * segment.steps}
        self._streams = {name: _rows_first(value) for name, value in seen.items() if name not in self._large}
        self._carried = segment.carried

    def part(self, since: int, until: int, b: int, known: list[TrackPart], steps: int) -> TrackPart:
        """Steps [since, until) of row b, after the `known` parts of the track and their `steps`."""
        first, last = b * self._length + since, b * self._length + until
        begin, end = self._before[first], self._before[last]
        columns = {name: value[first:last] for name, value in self._columns.items()}
        for name, value in self._decided.items():
            columns[name] = value[begin:end]
        columns["step"] = self._asked[begin:end] + np.int32(steps - since)
        if known and self._carried is not None:
            self._add_carried(columns, b, steps, known)
        streams = {name: value[first:last] for name, value in self._streams.items()}
        for name, value in self._large.items():
            part = value[since:until, b]
            streams[name] = part.copy() if until == self._length else part
        return TrackPart(columns, streams, {name: value[first:last] for name, value in self._times.items()})

    def _add_carried(self, columns: Arrays, b: int, steps: int, known: list[TrackPart]) -> None:
        """Put before a part's decisions those that row b carried into the segment and that `known` parts lack."""
        assert self._carried is not None
        mine = np.flatnonzero(self._carried.row == b)
        asked = self._carried.t[mine] + np.int32(steps)
        new = ~np.isin(asked, np.concatenate([part.columns["step"] for part in known]))
        for name in DECISIONS:
            columns[name] = np.concatenate([getattr(self._carried, name)[mine[new]], columns[name]])
        columns["step"] = np.concatenate([asked[new], columns["step"]])


def join(parts: list[TrackPart], final: Arrays, policy: str, outcome: Outcome) -> Track:
    """The whole track of parts. Arrays are always copied, so that no track keeps those of a segment in memory.

    Args:
        parts: One per segment.
        final: Stream name to [1, *shape], the final observation.

    Raises:
        DataError: A step executes a decision that no part holds.
    """
    lengths = [len(part.columns["k"]) for part in parts]
    first = parts[0].columns
    columns = {name: np.concatenate([p.columns[name] for p in parts]) for name in first if name not in SOMETIMES}
    k, step = columns["k"], columns["step"]
    decision = find_decisions(k, step)
    executed = np.zeros(columns["actions"].shape[:2], bool)
    done = decision >= 0
    executed[decision[done], k[done]] = True
    track = Track(
        observations={
            name: np.concatenate([*(part.streams[name] for part in parts), last]) for name, last in final.items()
        },
        decision=decision,
        executed=executed,
        segment=np.repeat(np.arange(len(parts), dtype=np.int32), lengths),
        policy=policy,
        outcome=outcome,
        **columns,  # type: ignore[arg-type]
    )
    given = [part.columns for part in parts]
    if any("time" in columns for columns in given):
        track.time = _filled(given, "time", np.full(len(k) + 1, np.nan), lengths)
        times = [part.times for part in parts]
        for name in dict.fromkeys(name for each in times for name in each):
            track.times[name] = _filled(times, name, track.time, lengths)
    if any(name in columns for columns in given for name in SOMETIMES[1:]):
        requested = _filled(given, "action_requested", track.decided, lengths)
        obeyed = _filled(given, "action_executed", requested, lengths)
        track.set_actions(requested, obeyed, _filled(given, "action_rule", np.zeros(len(k), np.uint8), lengths))
    return track


def _filled(parts: list[Arrays], name: str, usual: NDArray[Any], lengths: list[int]) -> NDArray[Any]:
    """A copy of `usual` with the array `name` of those parts that have it."""
    filled, begin = usual.copy(), 0
    for part, length in zip(parts, lengths, strict=True):
        if name in part:
            filled[begin : begin + length] = part[name]
        begin += length
    return filled


def find_decisions(k: NDArray[np.int32], step: NDArray[np.int32]) -> NDArray[np.int32]:
    """[L] index of the decision that each step executes, -1 where `k` is.

    Args:
        k: [L] index within the chunk.
        step: [N] ascending, the step whose observation each decision answers.

    Raises:
        DataError: A step executes a decision that is not there.
    """
    asked = np.arange(len(k), dtype=np.int32) - k
    index = np.searchsorted(step, asked).astype(np.int32)
    missing = (k >= 0) & ((np.append(step, -1)[index] != asked) | (asked < 0))
    if missing.any():
        what = f"step {int(missing.argmax())} executes a decision that no segment holds"
        raise DataError(what, "episode", "record decisions with the segment that takes or carries them")
    index[k < 0] = -1
    return index


def _rows_first(value: NDArray[Any]) -> NDArray[Any]:
    """[T, B, ...] as a copy [B * T, ...], row after row."""
    turned = np.array(value.swapaxes(0, 1), order="C")
    return turned.reshape(-1, *value.shape[2:])
