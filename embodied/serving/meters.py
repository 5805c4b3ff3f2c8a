"""What a server measures of itself: counts, how long a batch takes, how long an answer took."""

from bisect import bisect_left
from collections import deque
from dataclasses import dataclass
from statistics import median
from typing import Any

_BATCHES = 15
_FORGET_S = 1.0
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
    """How long the next batch will take, as far as one can tell.

    The median of the last batches, so that one slow batch says nothing; halved with every second in which no batch
    ended, so that a slow stretch, after which everyone was refused, is tried again.
    """

    def __init__(self) -> None:
        self._last: deque[float] = deque(maxlen=_BATCHES)
        self._median, self._at = 0.0, 0.0

    def add(self, seconds: float, now: float) -> None:
        """A batch that ended now took this long."""
        self._last.append(seconds)
        self._median, self._at = median(self._last), now

    def estimate(self, now: float) -> float:
        """Seconds."""
        return self._median * 0.5 ** ((now - self._at) / _FORGET_S) if self._median else 0.0


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
