"""Work that may wait for a disk, done beside the serving thread."""

import threading
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

from embodied.errors import Busy, EmbodiedError, InfrastructureError

T = TypeVar("T")

_MOST = 256


class Background:
    """One thread that does work in order; `tick` hands the results over in the thread that calls it.

    The thread begins with the first work. It ends with the process, since no one can interrupt a disk that hangs.

    Args:
        name: Of the thread, and of the work in an error.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._waiting: deque[tuple[Callable[[], Any], Callable[[Any], None]]] = deque()
        self._done: deque[Callable[[], None]] = deque()
        self._work = threading.Semaphore(0)
        self._thread: threading.Thread | None = None
        self._pending = 0

    @property
    def busy(self) -> bool:
        """Whether work waits, is done, or has a result that `tick` has not handed over."""
        return self._pending > 0

    def submit(self, work: Callable[[], T], done: Callable[[T | EmbodiedError], None]) -> None:
        """Do work in the thread, then call `done` in `tick` with its result, or with the error that it raised.

        Raises:
            Busy: 256 pieces of work wait already.
        """
        if self._pending >= _MOST:
            raise Busy(f"{self._pending} requests wait for the disk", self._name, "ask again later")
        self._pending += 1
        self._waiting.append((work, done))
        self._work.release()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()

    def tick(self) -> None:
        """Hand over the results that are there. `done` of them may submit more work."""
        for _ in range(len(self._done)):
            self._pending -= 1
            self._done.popleft()()

    def _run(self) -> None:
        while True:
            self._work.acquire()
            work, done = self._waiting.popleft()
            result: Any
            try:
                result = work()
            except EmbodiedError as error:
                result = error
            except Exception as error:
                result = InfrastructureError(f"{type(error).__name__}: {error}", self._name, "see the server's log")
            self._done.append(lambda done=done, result=result: done(result))  # type: ignore[misc]
