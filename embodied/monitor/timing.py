"""Seconds that the parts of an RL step take."""

import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Stopwatch:
    """Seconds spent in named parts since the last `lap`.

    Parts may be nested: what an inner part takes is not counted again in the outer one, so that the parts of a lap
    never sum to more than its total. One thread uses one stopwatch.

    Args:
        clock: Monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._parts: dict[str, float] = defaultdict(float)
        self._inner = [0.0]
        self._start = clock()

    @contextmanager
    def __call__(self, part: str) -> Iterator[None]:
        """Count the time of a `with` block under `part`."""
        self._inner.append(0.0)
        start = self._clock()
        try:
            yield
        finally:
            spent = self._clock() - start
            self._parts[part] += spent - self._inner.pop()
            self._inner[-1] += spent

    def add(self, part: str, seconds: float) -> None:
        """Move `seconds` that something else measured (a physics engine's own count) into `part`."""
        self._parts[part] += seconds
        self._inner[-1] += seconds

    def lap(self) -> dict[str, float]:
        """Seconds per part since the last lap, and their `total` by the clock; then starts the next lap.

        Raises:
            RuntimeError: Called inside a part.
        """
        if len(self._inner) > 1:
            raise RuntimeError("a lap ends outside all parts")
        now = self._clock()
        parts = {**self._parts, "total": now - self._start}
        self._parts.clear()
        self._inner[0] = 0.0
        self._start = now
        return parts
