"""Child processes: started in a group of their own, watched, started again after pauses, ended with their parent."""

import importlib
import json
import logging
import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from embodied.errors import EmbodiedError, InfrastructureError

log = logging.getLogger(__name__)

Say = Callable[[object], None]
"""Sends a plain value to the parent as one line of JSON."""
Main = Callable[[Any, Say], int | None]
"""Function of a module, called in a child with plain values; it runs until SIGTERM and returns its exit status."""

LIFE, SAID = "EMBODIED_LIFE_FD", "EMBODIED_SAID_FD"
END_S = 5.0
_ORPHAN_S = 10.0
_TAIL_BYTES = 4096
_LINE_CHARACTERS = 300
_SAID_BYTES = 2**16

_said = -1  # in a child: descriptor that its parent reads


@dataclass
class Backoff:
    """Pauses before a child is started again.

    Attributes:
        first_s, longest_s: The first pause, doubled at each quick death in a row, and its limit.
        quick_s: A child that dies sooner did not get to work.
        budget: Quick deaths in a row after which only the longest pause is left.
    """

    first_s: float = 0.5
    longest_s: float = 30.0
    quick_s: float = 10.0
    budget: int = 5
    quick: int = field(default=0, init=False)
    deaths: int = field(default=0, init=False)

    @property
    def spent(self) -> bool:
        """Whether the budget of quick deaths is used up."""
        return self.quick >= self.budget

    def died(self, lived_s: float) -> float:
        """Seconds to wait, after a life of `lived_s` seconds."""
        self.deaths += 1
        self.quick = self.quick + 1 if lived_s < self.quick_s else 0
        if self.spent:
            return self.longest_s
        return min(self.first_s * 2 ** max(self.quick - 1, 0), self.longest_s)


class Child:
    """One process, started at construction. It leads a session of its own, so that an interrupt reaches the parent
    alone, and it ends with its parent if it calls `end_with_parent`. Not thread-safe.

    Args:
        name: Of the child, in errors.
        command: Program and arguments.
        given: Bytes that it reads from its standard input.
        environment: Variables beside the parent's.
        logged: Whether its output is kept for `last_line`; else it goes where the parent's goes.

    Raises:
        InfrastructureError: It cannot be started.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        given: bytes = b"",
        environment: dict[str, str] | None = None,
        logged: bool = True,
    ) -> None:
        self.name, self._buffer = name, b""
        self._log: IO[bytes] | None = tempfile.TemporaryFile() if logged else None  # noqa: SIM115 (lives with it)
        theirs_life, self._life = os.pipe()
        self._said, theirs_said = os.pipe()
        os.set_blocking(self._said, False)
        variables = {**os.environ, **(environment or {}), LIFE: str(theirs_life), SAID: str(theirs_said)}
        try:
            with tempfile.TemporaryFile() as stdin:
                stdin.write(given)
                stdin.seek(0)
                self.process = subprocess.Popen(
                    command, stdin=stdin, stdout=self._log, stderr=self._log and subprocess.STDOUT, env=variables,
                    start_new_session=True, pass_fds=(theirs_life, theirs_said),
                )  # fmt: skip
        except OSError as error:
            self._release()
            raise InfrastructureError(f"the {name} cannot be started: {error}", command[0]) from None
        finally:
            os.close(theirs_life)
            os.close(theirs_said)

    @classmethod
    def calling(cls, name: str, main: Main, options: Any) -> "Child":
        """A child that calls `main(options, say)` in a fresh interpreter of this environment.

        Args:
            options: Plain values; they reach the child as JSON.
        """
        command = [sys.executable, "-c", "from embodied.supervisor import serve_call; serve_call()"]
        path = {"PYTHONPATH": os.pathsep.join(entry or str(Path.cwd()) for entry in sys.path)}
        call = {"module": main.__module__, "function": main.__qualname__, "options": options}
        return cls(name, command, json.dumps(call).encode(), path, logged=False)

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def status(self) -> int | None:
        """Exit status, negative for a signal; None while it lives."""
        return self.process.poll()

    @property
    def alive(self) -> bool:
        return self.status is None

    def said(self) -> list[Any]:
        """Plain values that it has sent since the last call, None for a heartbeat; what is no JSON is left out."""
        with suppress(BlockingIOError, OSError):
            while len(self._buffer) <= _SAID_BYTES and (read := os.read(self._said, _SAID_BYTES)):
                self._buffer += read
        *lines, self._buffer = self._buffer.split(b"\n")
        self._buffer = self._buffer[:_SAID_BYTES]
        values = []
        for line in lines:
            try:
                values.append(json.loads(line))
            except ValueError:
                log.warning("%s said something that is no JSON", self.name)
        return values

    def last_line(self) -> str:
        """The last line of its output, cut; empty where there is none."""
        if self._log is None or self._log.closed:
            return ""
        size = os.fstat(self._log.fileno()).st_size
        text = os.pread(self._log.fileno(), _TAIL_BYTES, max(size - _TAIL_BYTES, 0)).decode(errors="replace")
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        return lines[-1][:_LINE_CHARACTERS] if lines else ""

    def died(self) -> str:
        """Manner of its end, such as "of SIGKILL" or "with exit status 1"."""
        status = self.process.returncode
        return f"of {signal.Signals(-status).name}" if status < 0 else f"with exit status {status}"

    def kill(self) -> None:
        """Kill it at once, with its group."""
        self._signal(signal.SIGKILL)
        with suppress(subprocess.TimeoutExpired):  # the kernel may hold it
            self.process.wait(END_S)

    def stop(self, timeout_s: float = END_S) -> None:
        """End it: SIGTERM, and SIGKILL after `timeout_s`. A second call does nothing."""
        stop_all([self], timeout_s)

    def _signal(self, number: signal.Signals) -> None:
        """Signal a child; SIGKILL reaches its whole group, so that nothing it started is left."""
        with suppress(ProcessLookupError):
            if self.alive and number == signal.SIGKILL:
                os.killpg(self.process.pid, number)
            elif self.alive:
                self.process.send_signal(number)

    def _release(self) -> None:
        for descriptor in (self._life, self._said):
            with suppress(OSError):
                os.close(descriptor)
        self._life = self._said = -1
        if self._log is not None:
            self._log.close()


def stop_all(children: Sequence[Child], timeout_s: float = END_S) -> None:
    """End children together: SIGTERM to each, and SIGKILL to those that live after `timeout_s` seconds."""
    for child in children:
        child._signal(signal.SIGTERM)
    limit = time.monotonic() + timeout_s
    for child in children:
        try:
            child.process.wait(max(limit - time.monotonic(), 0.0))
        except subprocess.TimeoutExpired:
            log.warning("%s did not end within %g s and is killed", child.name, timeout_s)
            child.kill()
        child._release()


def end_with_parent() -> None:
    """In a child: send this process SIGTERM when the parent is gone, and end it `_ORPHAN_S` seconds later. Does nothing
    in a process that no `Child` started."""
    descriptor = int(os.environ.pop(LIFE, "-1"))
    if descriptor >= 0:
        os.set_inheritable(descriptor, False)
        threading.Thread(target=_end_at_eof, args=(descriptor,), name="parent", daemon=True).start()


def heartbeat() -> None:
    """In a child of `Child.calling`: tell the parent that this process does its work. Elsewhere it does nothing."""
    if _said >= 0 and select.select((), (_said,), (), 0)[1]:
        _say(None)


def _say(value: object) -> None:
    os.write(_said, json.dumps(value).encode()[: _SAID_BYTES - 1] + b"\n")


def serve_call() -> None:
    """In a child of `Child.calling`: run the function; its error is sent to the parent as a dictionary."""
    global _said
    end_with_parent()
    _said = int(os.environ.pop(SAID))
    os.set_inheritable(_said, False)

    call = json.load(sys.stdin.buffer)
    main: Main = getattr(importlib.import_module(call["module"]), call["function"])
    try:
        status = main(call["options"], _say)
    except EmbodiedError as error:
        _say(error.to_dict())
        status = error.exit_status
    except KeyboardInterrupt:
        status = 0
    raise SystemExit(status or 0)


def _end_at_eof(descriptor: int) -> None:
    with suppress(OSError):
        os.read(descriptor, 1)  # nothing is ever written: it ends when the parent's half is closed
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(_ORPHAN_S)
    os._exit(1)
