"""Meters of a server: counts, time of a batch, latency of answers."""

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
    """Counts since the start."""

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
    """Estimate of the time that a batch takes.

    It is the median of the last batches of about the same number of rows, so that one slow batch has no effect. It is
    halved with every second without a batch, so that after a slow period, in which all requests were refused, one is
    tried again; if that is much faster than the median, the old times are dropped. An unknown size counts as the next
    smaller known one.
    """

    def __init__(self) -> None:
        self._sizes: dict[int, _Size] = {}

    def add(self, rows: int, seconds: float, now: float) -> None:
        """Record the duration of a batch that ended now."""
        self._sizes.setdefault(rows.bit_length(), _Size()).add(seconds, now)

    def estimate(self, rows: int, now: float) -> float:
        """Estimated seconds of a batch of so many rows."""
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
        # After a pause this may be the only batch for a long time; without one the next batches correct the median.
        if now - seconds - self.at >= _IDLE_S and seconds < self.median / 2:
            self._last.clear()
        self._last.append(seconds)
        self.median, self.at = median_low(self._last), now  # low, so that one slow batch of few has no effect


class Latency:
    """Histogram of seconds with the upper bounds `BUCKETS_S`; the last count is of longer times."""

    def __init__(self) -> None:
        self.counts = [0] * (len(BUCKETS_S) + 1)
        self.sum = 0.0

    def add(self, seconds: float) -> None:
        self.counts[bisect_left(BUCKETS_S, seconds)] += 1
        self.sum += seconds

    def to_dict(self) -> dict[str, Any]:
        """`buckets` upper bounds in seconds, `counts` one more and not cumulated, `sum` seconds, `count`."""
        return {
            "buckets": list(BUCKETS_S), "counts": list(self.counts), "sum": self.sum, "count": sum(self.counts),
        }  # fmt: skip
