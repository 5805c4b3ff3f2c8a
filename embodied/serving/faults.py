"""Logs errors nobody foresaw, without letting whoever causes them fill the disk."""

import logging
import threading
import time
from collections.abc import Callable

_EVERY_S = 60.0
_TRACEBACKS = 8  # of distinct errors per minute: a client may put other words in each


class Faults:
    """Each distinct error's traceback once a minute, then one line when its count reaches 10, 100, 1000, ...

    Errors are the same if what failed, their type and the last line of their text are. Beyond eight different ones a
    minute the others are counted as one. May be used by several threads.

    Args:
        log: Where to.
        clock: Seconds, monotonic.
    """

    def __init__(self, log: logging.Logger, clock: Callable[[], float] = time.monotonic) -> None:
        self._log, self._clock = log, clock
        self._counts: dict[str, int] = {}
        self._until = -float("inf")
        self._lock = threading.Lock()

    def say(self, what: str, error: BaseException) -> None:
        """Log an error that was caught; `what` went wrong."""
        last = (str(error).splitlines() or [""])[-1][:200]
        text = f"{what}: {type(error).__name__}: {last}"
        with self._lock:
            now = self._clock()
            if now >= self._until:
                self._until = now + _EVERY_S
                ended, self._counts = self._counts, {}
            else:
                ended = {}
            known = text in self._counts or len(self._counts) < _TRACEBACKS
            text = text if known else "other errors"
            count = self._counts[text] = self._counts.get(text, 0) + 1
        for before, times in ended.items():
            if times > 1:
                self._log.error("%s (%d times within a minute)", before, times)
        if count == 1 and known:
            self._log.error("%s", what, exc_info=error)
        elif count in (10, 100) or count % 1000 == 0:
            self._log.error("%s (%d times within a minute)", text, count)
