"""Child processes: what they say, how they end, and that none outlives its parent."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from embodied.errors import InfrastructureError
from embodied.supervisor import Backoff, Child, stop_all

STUBBORN = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(99)"


def python(code: str, given: bytes = b"") -> Child:
    return Child("child", [sys.executable, "-c", code], given)


def until(condition: Callable[[], object]) -> None:
    limit = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < limit
        time.sleep(0.01)


def lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_child_reads_what_it_is_given_and_its_last_line_and_status_are_kept() -> None:
    child = python("import sys; print('first'); print(sys.stdin.read()); sys.exit(3)", b"last")
    until(lambda: not child.alive)
    assert (child.status, child.died(), child.last_line()) == (3, "with exit status 3", "last")
    child.stop()
    child.stop()


def test_a_program_that_does_not_exist_is_one_error() -> None:
    with pytest.raises(InfrastructureError, match="the child cannot be started"):
        Child("child", ["/no/such/program"])


def test_children_that_ignore_sigterm_are_killed_together_at_one_deadline() -> None:
    children = [python(STUBBORN) for _ in range(3)]
    until(lambda: all(child.last_line() == "up" for child in children))
    start = time.monotonic()
    stop_all(children, 0.5)
    assert time.monotonic() - start < 5.0
    assert [child.died() for child in children] == ["of SIGKILL"] * 3


def test_a_kill_reaches_what_the_child_started() -> None:
    code = "import subprocess, sys; p = subprocess.Popen(['sleep', '99']); print(p.pid, flush=True); p.wait()"
    child = python(code)
    until(child.last_line)
    grandchild = int(child.last_line())
    child.kill()
    until(lambda: not lives(grandchild))
    child.stop()


def test_a_child_ends_with_its_parent() -> None:
    code = "from embodied.supervisor import end_with_parent; import time; end_with_parent(); time.sleep(99)"
    parent = (
        "import sys; from embodied.supervisor import Child\n"
        f"child = Child('child', [sys.executable, '-c', {code!r}])\n"
        "print(child.pid, flush=True); sys.stdin.read()"
    )
    with subprocess.Popen([sys.executable, "-c", parent], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        child = int(process.stdout.readline())
        assert lives(child)
        os.kill(process.pid, signal.SIGKILL)
        until(lambda: not lives(child))


def test_pauses_double_up_to_the_budget_and_start_anew_after_a_long_life() -> None:
    backoff = Backoff(first_s=0.5, longest_s=30.0, quick_s=10.0, budget=5)
    assert [backoff.died(1.0) for _ in range(6)] == [0.5, 1.0, 2.0, 4.0, 30.0, 30.0]
    assert backoff.spent and backoff.died(11.0) == 0.5 and not backoff.spent and backoff.deaths == 7
