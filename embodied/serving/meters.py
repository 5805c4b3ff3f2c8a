"""What a server measures of itself: counts, how long a batch takes, how long an answer took."""

from bisect import bisect_left
from collections import deque
from dataclasses import dataclass
from statistics import median_low
from typing import Any

_BATCHES = 15
_FORGET_S = 1.0
_IDLE_S = 0.1
BUCKETS_S = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)


@dataclass
class Counts:
    """What has been done since the start."""

    requests: int = 0
    rows: int = 0
    batches: int = 0
    switches: int = 0
    errors: int = 0
    busy: int = 0
    late: int = 0

    def __add__(self, other: "Counts") -> "Counts":
        return Counts(**{name: value + getattr(other, name) for name, value in vars(self).items()})


class BatchTime:
    """How long a batch will take, as far as one can tell.

    The median of the last batches of about this many rows, so that one slow batch says nothing; halved with every
    second in which there was none, so that a slow stretch, after which everyone was refused, is tried again. If that
    try is much faster than what is remembered, the slow stretch is over and forgotten. A size that was never seen is
    taken for the next smaller one that was.
    """

    def __init__(self) -> None:
        self._sizes: dict[int, _Size] = {}

    def add(self, rows: int, seconds: float, now: float) -> None:
        """A batch of so many rows that ended now took this long."""
        self._sizes.setdefault(rows.bit_length(), _Size()).add(seconds, now)

    def estimate(self, rows: int, now: float) -> float:
        """Seconds."""
        known = self._sizes.get(rows.bit_length())
        if known is None:
            smaller = [size for size in self._sizes if size < rows.bit_length()]
            if not smaller:
                return 0.0
            known = self._sizes[max(smaller)]
        return known.median * 0.5 ** ((now - known.at) / _FORGET_S)


class _Size:
    def __init__(self) -> None:
        self._last: deque[float] = deque(maxlen=_BATCHES)
        self.median, self.at = 0.0, 0.0

    def add(self, seconds: float, now: float) -> None:
        # Without a pause the next batches tell soon enough; after one, each might be the only one for a long time.
        if now - seconds - self.at >= _IDLE_S and seconds < self.median / 2:
            self._last.clear()
        self._last.append(seconds)
        self.median, self.at = median_low(self._last), now  # of few, one slow batch says nothing either


class Latency:
    """A histogram of seconds with the upper bounds `BUCKETS_S`; the last count is of what was longer."""

    def __init__(self) -> None:
        self.counts = [0] * (len(BUCKETS_S) + 1)
        self.sum = 0.0

    def add(self, seconds: float) -> None:
        self.counts[bisect_left(BUCKETS_S, seconds)] += 1
        self.sum += seconds

    def to_dict(self) -> dict[str, Any]:
        """`buckets` upper bounds in seconds, `counts` one more than those and not cumulated, `sum` seconds, `count`."""
        return {
            "buckets": list(BUCKETS_S), "counts": list(self.counts), "sum": self.sum, "count": sum(self.counts),
        }  # fmt: skip
