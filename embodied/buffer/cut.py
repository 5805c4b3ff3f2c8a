"""Slices of a segment that belong to one row, and how they join."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embodied.data import Segment

Arrays = dict[str, NDArray[Any]]

STEPS = ("k", "rewards", "reward_status", "terminated", "truncated", "source", "trainable", "applied", "state_hash")
DECISIONS = ("actions", "log_probs", "executed", "values", "versions")
SMALL = 4096


@dataclass
class Piece:
    """What one segment carries of one episode: n steps and m decisions.

    Attributes:
        columns: `Track` attribute to [n, ...] or [m, ...].
        streams: Stream name to [n, *shape].
    """

    columns: Arrays
    streams: Arrays

    @property
    def steps(self) -> int:
        return len(self.columns["k"])

    @property
    def decisions(self) -> int:
        return len(self.columns["step"])

    def fits(self, segment: Segment) -> bool:
        """Whether pieces of `segment` can be joined to this one."""
        shape = self.columns["actions"].shape[1:]
        alike = ("state_hash" in self.columns) == (segment.state_hash is not None)
        return alike and shape == segment.actions.shape[2:] and self.streams.keys() == segment.observations.keys()


class Cut:
    """A segment laid out row after row, so that a piece is a slice.

    Small arrays are copied once for all rows and pieces are views of that; streams of more than `SMALL` bytes a step
    are sliced where they are, and copied only if the episode outlives the segment.
    """

    def __init__(self, segment: Segment) -> None:
        self._length = len(segment.k)
        begins = _rows_first(segment.k) == 0
        self._before = np.concatenate([np.zeros(1, np.int32), np.cumsum(begins, dtype=np.int32)])
        self._index = self._before[1:] - np.int32(1)
        at = np.flatnonzero(begins)
        self._seq = (at % self._length).astype(np.int32)
        given = {name: getattr(segment, name) for name in STEPS}
        self._columns = {name: _rows_first(value) for name, value in given.items() if value is not None}
        self._decided = {name: _rows_first(getattr(segment, name))[at] for name in DECISIONS}
        self._streams, self._large = {}, {}
        for name, value in segment.observations.items():
            if value.nbytes > SMALL * segment.steps:
                self._large[name] = value
            else:
                self._streams[name] = _rows_first(value)

    def piece(self, since: int, until: int, b: int, steps: int, decisions: int, segment: int) -> Piece:
        """Steps [since, until) of row b, of an episode that has `steps` and `decisions`; `segment` is its index."""
        first, last = b * self._length + since, b * self._length + until
        begin, end = int(self._before[first]), int(self._before[last])
        columns = {name: value[first:last] for name, value in self._columns.items()}
        for name, value in self._decided.items():
            columns[name] = value[begin:end]
        columns["decision"] = self._index[first:last] + np.int32(decisions - begin)
        columns["step"] = self._seq[begin:end] + np.int32(steps - since)
        columns["segment"] = np.full(until - since, segment, np.int32)
        streams = {name: value[first:last] for name, value in self._streams.items()}
        for name, value in self._large.items():
            part = value[since:until, b]
            streams[name] = part.copy() if until == self._length else part
        return Piece(columns, streams)


def join(pieces: list[Piece], final: Arrays | None = None) -> Piece:
    """Pieces of one episode as one, always copied, so that no episode keeps those of its segment in memory.

    Args:
        final: Stream name to [1, *shape], appended to the streams.
    """
    first, tail = pieces[0], {name: [value] for name, value in (final or {}).items()}
    return Piece(
        {name: np.concatenate([piece.columns[name] for piece in pieces]) for name in first.columns},
        {name: np.concatenate([*(p.streams[name] for p in pieces), *tail.get(name, ())]) for name in first.streams},
    )


def _rows_first(value: NDArray[Any]) -> NDArray[Any]:
    """[T, B, ...] as a copy [B * T, ...], row after row."""
    turned = np.array(value.swapaxes(0, 1), order="C")
    return turned.reshape(-1, *value.shape[2:])
