"""Reads, verifies and loads weights while the policy answers requests: one thread, one job at a time."""

import logging
import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from embodied.errors import Busy, EmbodiedError, InfrastructureError
from embodied.serving.error_log import ErrorLog
from embodied.serving.versioned_policy import Prepared, VersionedPolicy
from embodied.weights.manifest import Manifest, Version

log = logging.getLogger(__name__)
errors = ErrorLog(log)

_JOBS = 8

Weights = tuple[Manifest, Mapping[str, NDArray[Any]]]
Load = Callable[[], Weights | None]
Done = Callable[[Version | EmbodiedError], None]
Switched = Callable[[Version, Version, str], None]


@dataclass
class _Job:
    load: Load
    why: str
    back: bool
    done: Done
    prepared: Prepared | None = None
    error: EmbodiedError | None = None


class Loader:
    """Prepares versions beside the serving thread; `tick`, called between batches, switches to them.

    Args:
        host: Switches. It should have a standby, else `tick` waits for the weights to be copied.
        switched: Called in the loader's thread after a switch with the version before, the version now and why; for
            the audit.
    """

    def __init__(self, host: VersionedPolicy, switched: Switched | None = None) -> None:
        self._host, self._switched = host, switched
        self._jobs: deque[_Job] = deque()
        self._after: deque[tuple[Version, Version, str]] = deque()
        self._ready: deque[_Job] = deque()
        self._work = threading.Condition()
        self._pending = 0
        self._at: _Job | None = None
        self._closed = False
        self._thread: threading.Thread | None = None

    @property
    def busy(self) -> bool:
        """Tell whether a version is being prepared, or waits for `tick`."""
        return self._pending > 0

    def submit(self, load: Load, why: str, done: Done = lambda _: None, back: bool = False) -> None:
        """Prepare what `load` returns and switch to it; None from `load` leaves what is served.

        Args:
            load: Called in the loader's thread; raises `EmbodiedError` to refuse.
            why: For the audit, such as `push` or `rollback`.
            done: Called in the serving thread with the version then served, or why it was refused.
            back: Take a version older than the one served.

        Raises:
            Busy: Eight jobs wait already.
            InfrastructureError: It is closed.
        """
        with self._work:
            if self._closed:
                raise _stopping()
            if self._pending >= _JOBS:
                raise Busy(f"{self._pending} versions wait to be loaded", "policy server", "push again later")
            self._pending += 1
            self._jobs.append(_Job(load, why, back, done))
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="weights", daemon=True)
                self._thread.start()
            self._work.notify()

    def tick(self) -> None:
        """Switch to what has been prepared, and tell who asked. In the serving thread."""
        while self._ready:
            job = self._ready[0]  # stays until it is served: the thread must not touch the standby before
            result: Version | EmbodiedError
            before = self._host.version
            if job.error is not None:
                result = job.error
            else:
                try:
                    result = self._host.version if job.prepared is None else self._host.commit(job.prepared)
                except Exception as error:
                    result = _refusal(error)
            with self._work:
                self._ready.popleft()
                self._pending -= 1
                if isinstance(result, Version) and result != before:
                    self._after.append((before, result, job.why))
                self._work.notify()
            _answer(job, result)

    def close(self, timeout_s: float = 3.0) -> None:
        """Finish the job at hand, switch to it, and end the thread; who waits in line is refused. In the serving
        thread; a second time it does nothing."""
        with self._work:
            if self._closed:
                return
            self._closed = True
            dropped = list(self._jobs)
            self._jobs.clear()
            self._pending -= len(dropped)
            self._work.notify()
        for job in dropped:
            _answer(job, _stopping())
        if self._thread is not None:
            self._thread.join(timeout_s)
            if self._thread.is_alive():
                log.error("a version is still being loaded after %g s; the server ends without it", timeout_s)
                self.tick()
                if self._at is not None:
                    _answer(self._at, _stopping())
                return
        self.tick()
        while self._after:
            self._record(self._after.popleft())

    def _run(self) -> None:
        while True:
            with self._work:
                # A standby takes one version at a time: the next is begun when `tick` has taken the last.
                self._work.wait_for(lambda: self._after or self._closed or (self._jobs and not self._ready))
                after = self._after.popleft() if self._after else None
                job = self._jobs.popleft() if after is None and self._jobs else None
                if after is None and job is None and self._closed:
                    return
            if after is not None:
                self._record(after)
            elif job is not None:
                self._at = job
                self._prepare(job)
                self._at = None
                self._ready.append(job)

    def _prepare(self, job: _Job) -> None:
        try:
            weights = job.load()
            job.prepared = None if weights is None else self._host.prepare(*weights, back=job.back)
        except Exception as error:
            job.error = _refusal(error)

    def _record(self, after: tuple[Version, Version, str]) -> None:
        if self._switched is None:
            return
        try:
            self._switched(*after)
        except EmbodiedError as error:
            log.error("a switch could not be written down: %s", error.line())
        except Exception as error:
            errors.record("a switch could not be written down", error)


def _answer(job: _Job, result: Version | EmbodiedError) -> None:
    try:
        job.done(result)
    except Exception as error:
        errors.record("who asked for a version could not be told", error)


def _refusal(error: Exception) -> EmbodiedError:
    if isinstance(error, EmbodiedError):
        return error
    errors.record("a version could not be loaded", error)
    return InfrastructureError(f"{type(error).__name__}: {error}", "policy server", "see the server's log")


def _stopping() -> InfrastructureError:
    return InfrastructureError("the server is stopping", "policy server", "push to its successor")
