"""Rate of requests: a cap on bytes per second, range sizes that fit the link, pauses after failures."""

import time
from collections.abc import Callable

BURST_S = 0.25
LEAST, FIRST, MOST, MOST_CAPPED = 2**14, 2**16, 2**20, 2**18
"""Bytes of one range: at least, at first, at most, and at most under a cap, so that the link stays free for others."""

_FAST_S, _SLOW_S = 0.4, 1.0  # what is asked besides, such as which version is active, waits behind the ranges in flight
_FIRST_S, _LONGEST_S = 1.0, 60.0


class RateLimiter:
    """Spreads what is asked for over time.

    In any `t` seconds at most `rate * (t + BURST_S)` bytes and one range more are let through.

    Args:
        mbit: Megabits per second, 10^6 bits; 0 for no limit.
        clock: Seconds, monotonic.
    """

    def __init__(self, mbit: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.rate = mbit * 1e6 / 8
        self._clock = clock
        self._free = -float("inf")

    def wait(self) -> float:
        """Seconds until more may be asked for; 0 for now."""
        return max(self._free - BURST_S - self._clock(), 0.0) if self.rate else 0.0

    def spend(self, nbytes: int) -> None:
        """So many bytes have been asked for."""
        if self.rate:
            self._free = max(self._free, self._clock()) + nbytes / self.rate


class RangeSize:
    """Size of the ranges to ask for: larger while answers come fast, smaller when they take long.

    Args:
        rate: Cap in bytes per second; 0 for none.
    """

    def __init__(self, rate: float) -> None:
        self._most = int(min(max(rate * BURST_S, LEAST), MOST_CAPPED)) if rate else MOST
        self.size = min(FIRST, self._most)

    def took(self, size: int, seconds: float) -> None:
        """A range of `size` bytes arrived after so long."""
        if seconds < _FAST_S and size == self.size:
            self.size = min(2 * self.size, self._most)
        elif seconds > _SLOW_S:
            self.size = max(self.size // 2, LEAST)

    def least(self) -> None:
        """A range did not arrive."""
        self.size = LEAST


class Backoff:
    """Pauses that double from a second to a minute, until something succeeds."""

    def __init__(self) -> None:
        self._pause, self._until = 0.0, -float("inf")

    def fail(self, now: float) -> None:
        """Rest, longer than the last time."""
        self._pause = min(max(2 * self._pause, _FIRST_S), _LONGEST_S)
        self._until = now + self._pause

    def clear(self) -> None:
        self._pause, self._until = 0.0, -float("inf")

    def wait(self, now: float) -> float:
        """Seconds of rest left."""
        return max(self._until - now, 0.0)
