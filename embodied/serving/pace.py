"""How fast to ask: a cap on bytes per second that lets a short burst through."""

import time
from collections.abc import Callable

BURST_S = 0.25


class Pace:
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
