"""Bounded logging of unexpected errors, so that no client can fill the disk."""

import logging
import threading
import time
from collections.abc import Callable

_EVERY_S = 60.0
_TRACEBACKS = 8  # of distinct errors per minute: a client may vary the text


class ErrorLog:
    """Logs each distinct error's traceback once a minute, then one line when its count reaches 10, 100, 1000, ...

    Two errors are the same if the failed action, their type and the last line of their text are. Beyond eight distinct
    ones a minute all others are counted as one. Thread-safe.

    Args:
        log: Logger to write to.
        clock: Monotonic seconds.
    """

    def __init__(self, log: logging.Logger, clock: Callable[[], float] = time.monotonic) -> None:
        self._log, self._clock = log, clock
        self._counts: dict[str, int] = {}
        self._until = -float("inf")
        self._lock = threading.Lock()

    def record(self, what: str, error: BaseException) -> None:
        """Log a caught error; `what` names the failed action."""
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
