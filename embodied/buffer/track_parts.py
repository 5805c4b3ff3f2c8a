"""Parts of a track: slices of a segment that belong to one row, and their concatenation."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embodied.buffer.layout import drop_equal_actions
from embodied.data import Outcome, Segment
from embodied.episode import Track, decided_actions
from embodied.errors import DataError

Arrays = dict[str, NDArray[Any]]

STEPS = ("k", "rewards", "reward_status", "terminated", "truncated", "source", "trainable", "applied", "state_hash")
SOMETIMES = ("time", "action_requested", "action_executed", "action_rule")
"""Columns that one segment of an episode may have and another lack."""
DECISIONS = ("actions", "log_probs", "values", "versions", "executed")
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

    @property
    def steps(self) -> int:
        return len(self.columns["k"])

    @property
    def decisions(self) -> int:
        return len(self.columns["step"])

    def fits(self, segment: Segment) -> bool:
        """Whether parts of `segment` can follow this one."""
        shape = self.columns["actions"].shape[1:]
        alike = ("state_hash" in self.columns) == (segment.state_hash is not None)
        return alike and shape == segment.actions.shape[2:] and self.streams.keys() == segment.observations.keys()


class SegmentRows:
    """A segment laid out row after row, so that a part is a slice.

    Small arrays are copied once for all rows, and parts are views of the copy. Streams of more than `SMALL` bytes a
    step are sliced in place, and copied only if the track outlives the segment.
    """

    def __init__(self, segment: Segment) -> None:
        self._length = len(segment.k)
        k = _rows_first(segment.k)
        at = np.arange(len(k), dtype=np.int32)
        asked = at - k  # of each step, the place of the decision that it executes
        begins = np.zeros(len(k), bool)
        own = (k >= 0) & (asked >= at - at % self._length)  # steps whose decision is not carried into the segment
        begins[asked[own]] = True
        self._before = np.concatenate([np.zeros(1, np.int32), np.cumsum(begins, dtype=np.int32)])
        decided = np.flatnonzero(begins)
        # Of each step, the row of its decision among those of the segment; -1 where there is none or it is carried.
        self._index = np.full(len(k), -1, np.int32)
        self._index[own] = self._before[asked[own]]
        self._whole = bool(own.all())
        executed = np.zeros((len(decided), segment.actions.shape[2]), bool)
        executed[self._index[own], k[own]] = True
        self._asked = (decided % self._length).astype(np.int32)
        given = {name: getattr(segment, name) for name in (*STEPS, *SOMETIMES, "versions")}
        self._columns = {name: _rows_first(value) for name, value in given.items() if value is not None}
        self._columns["k"] = k
        self._decided = {
            name: _rows_first(getattr(segment, name))[decided] for name in ("actions", "log_probs", "values")
        }
        versions = self._columns.pop("versions")
        if k[decided].any():  # late answers: a step executes its own version, not that of the decision taken there
            of_decision = versions.copy()
            of_decision[asked[own]] = versions[own]
            versions = of_decision
        self._decided["versions"] = versions[decided]
        self._decided["executed"] = executed
        self._times = {name: _rows_first(value) for name, value in segment.times.items()}
        self._streams, self._large = {}, {}
        for name, value in segment.observations.items():
            if value.nbytes > SMALL * segment.steps:
                self._large[name] = value
            else:
                self._streams[name] = _rows_first(value)
        self._carried = segment.carried

    def part(self, since: int, until: int, b: int, known: list[TrackPart], segment: int) -> TrackPart:
        """Steps [since, until) of row b, after the `known` parts of the track; `segment` is its index in the track."""
        steps, decisions = sum(part.steps for part in known), sum(part.decisions for part in known)
        first, last = b * self._length + since, b * self._length + until
        begin, end = int(self._before[first]), int(self._before[last])
        columns = {name: value[first:last] for name, value in self._columns.items()}
        for name, value in self._decided.items():
            columns[name] = value[begin:end]
        columns["step"] = self._asked[begin:end] + np.int32(steps - since)
        if since == 0 and known and self._carried is not None:
            decisions += self._add_carried(columns, b, steps, known)
        index = self._index[first:last]
        own = index + np.int32(decisions - begin)
        columns["decision"] = own if self._whole else np.where(index < 0, np.int32(-1), own)
        columns["segment"] = np.full(until - since, segment, np.int32)
        streams = {name: value[first:last] for name, value in self._streams.items()}
        for name, value in self._large.items():
            part = value[since:until, b]
            streams[name] = part.copy() if until == self._length else part
        return TrackPart(columns, streams, {name: value[first:last] for name, value in self._times.items()})

    def _add_carried(self, columns: Arrays, b: int, steps: int, known: list[TrackPart]) -> int:
        """Put before a part's decisions those that row b carried into the segment and that `known` parts lack.

        Args:
            columns: Of the part.
            steps: Steps of the track before the segment.

        Returns:
            The number of them.
        """
        assert self._carried is not None
        mine = np.flatnonzero(self._carried.row == b)
        asked = self._carried.t[mine] + np.int32(steps)
        new = ~np.isin(asked, np.concatenate([np.zeros(0, np.int32), *(each.columns["step"] for each in known)]))
        if new.any():
            for name in DECISIONS:
                columns[name] = np.concatenate([getattr(self._carried, name)[mine[new]], columns[name]])
            columns["step"] = np.concatenate([asked[new], columns["step"]])
        return int(new.sum())


def join(parts: list[TrackPart], final: Arrays | None = None) -> TrackPart:
    """Parts of one track as one, always copied, so that no track keeps the arrays of a segment in memory.

    Args:
        final: Stream name to [1, *shape], appended to the streams.
    """
    first, tail = parts[0], {name: [value] for name, value in (final or {}).items()}
    columns = {
        name: np.concatenate([part.columns[name] for part in parts]) for name in first.columns if name not in SOMETIMES
    }
    streams = {name: np.concatenate([*(p.streams[name] for p in parts), *tail.get(name, ())]) for name in first.streams}
    whole = TrackPart(columns, streams, {})
    present = [name for name in SOMETIMES if any(name in part.columns for part in parts)]
    if "time" in present:
        columns["time"] = np.concatenate([_time(part) for part in parts])
        for name in dict.fromkeys(name for part in parts for name in part.times):
            whole.times[name] = np.concatenate([part.times.get(name, _time(part)) for part in parts])
    if "action_rule" in present:
        blank = [np.zeros(part.steps, np.uint8) for part in parts]
        columns["action_rule"] = np.concatenate(
            [part.columns.get("action_rule", none) for part, none in zip(parts, blank, strict=True)]
        )
    if "action_requested" in present or "action_executed" in present:
        _join_actions(whole, parts, present)
    return whole


def _time(part: TrackPart) -> NDArray[np.float64]:
    return part.columns["time"] if "time" in part.columns else np.full(part.steps, np.nan)


def _join_actions(whole: TrackPart, parts: list[TrackPart], present: list[str]) -> None:
    """Set requested and executed actions, of which each part may lack those that were as decided, or as requested."""
    size, begin = whole.columns["actions"].shape[2], 0
    requested = np.empty((whole.steps, size), np.float32)
    executed = np.empty_like(requested)
    decision = find_decisions(whole.columns["k"], whole.columns["step"])
    decided = decided_actions(whole.columns["actions"], decision, whole.columns["k"])
    for part in parts:
        steps = slice(begin, begin + part.steps)
        requested[steps] = part.columns.get("action_requested", decided[steps])
        executed[steps] = part.columns.get("action_executed", requested[steps])
        begin += part.steps
    if "action_requested" in present:
        whole.columns["action_requested"] = requested
    if "action_executed" in present:
        whole.columns["action_executed"] = executed


def find_decisions(k: NDArray[np.int32], step: NDArray[np.int32]) -> NDArray[np.int32]:
    """[L] index of the decision that each step executes, -1 where `k` is.

    Args:
        k: [L] index within the chunk.
        step: [N] ascending, the step whose observation each decision answers.

    Raises:
        DataError: A step executes a decision that is not there.
    """
    if not len(step):
        index = np.full(len(k), -1, np.int32)
        missing = k >= 0
    else:
        asked = np.arange(len(k), dtype=np.int32) - k
        index = np.minimum(np.searchsorted(step, asked), len(step) - 1).astype(np.int32)
        missing = (step[index] != asked) & (k >= 0)
        index[k < 0] = -1
    if missing.any():
        what = f"step {int(missing.argmax())} executes a decision that no segment holds"
        raise DataError(what, "episode", "record decisions with the segment that takes or carries them")
    return index


def as_track(parts: list[TrackPart], final: Arrays, policy: str, outcome: Outcome) -> Track:
    """The whole track of parts and of the final observation.

    Args:
        final: Stream name to [1, *shape].

    Raises:
        DataError: A step executes a decision that no part holds.
    """
    whole = join(parts, final)
    columns: dict[str, Any] = whole.columns
    if ((columns["decision"] < 0) & (columns["k"] >= 0)).any():  # decisions that were carried over
        columns["decision"] = decision = find_decisions(columns["k"], columns["step"])
        done = decision >= 0
        columns["executed"][decision[done], columns["k"][done]] = True
    unknown = np.full(1, np.nan)
    if "time" in columns:
        columns["time"] = np.concatenate([columns["time"], unknown])
    times = {name: np.concatenate([value, unknown]) for name, value in whole.times.items()}
    track = Track(observations=whole.streams, policy=policy, outcome=outcome, times=times, **columns)
    if any(name in columns for name in ("action_requested", "action_executed", "action_rule")):
        drop_equal_actions(track)
    return track


def _rows_first(value: NDArray[Any]) -> NDArray[Any]:
    """[T, B, ...] as a copy [B * T, ...], row after row."""
    turned = np.array(value.swapaxes(0, 1), order="C")
    return turned.reshape(-1, *value.shape[2:])
