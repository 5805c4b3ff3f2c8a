"""The `embodied` command: in this process, or launched like a user's."""

import contextlib
import io
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

from embodied.cli import main

SMALL = [
    "task=reach", "rollout.num_envs=16", "rollout.steps=16", "evaluate.episodes=8", "evaluate.every=4",
    "evaluate.final_episodes=8", "checkpoint.every=3", "algo.epochs=2", "render.episodes=0", "env.num_threads=1",
]  # fmt: skip
COMMAND = [sys.executable, "-m", "embodied.cli.main"]


def embodied(*words: str, folder: Path, timeout: float = 240.0) -> "subprocess.CompletedProcess[str]":
    """Run the console command in this process, in a folder: its exit status and what it wrote.

    No end in `timeout` seconds fails the test.
    """
    out, err, status = io.StringIO(), io.StringIO(), 0
    with contextlib.ExitStack() as stack:
        stack.enter_context(contextlib.chdir(folder))
        stack.enter_context(_signals(timeout))
        stack.enter_context(mock.patch.object(sys, "argv", ["embodied", *words]))
        stack.enter_context(mock.patch.object(main, "end", sys.exit))
        stack.enter_context(mock.patch.dict(os.environ))
        stack.enter_context(contextlib.redirect_stdout(out))
        stack.enter_context(contextlib.redirect_stderr(err))
        try:
            main.entry()
        except SystemExit as ended:
            status = ended.code if isinstance(ended.code, int) else 1
    return subprocess.CompletedProcess(["embodied", *words], status, out.getvalue(), err.getvalue())


@contextlib.contextmanager
def _signals(timeout: float) -> Iterator[None]:
    """Restore the handlers that a command sets, and end it after `timeout` seconds."""

    class Late(BaseException):
        """Not an `Exception`, of which the command makes one line."""

    def late(*_: object) -> None:
        raise Late(f"no end in {timeout} s")

    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)}
    alarm = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, timeout)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, alarm)
        for number, handler in before.items():
            signal.signal(number, handler)


def launch(*words: str, folder: Path, timeout: float = 120.0) -> "subprocess.CompletedProcess[str]":
    """Run `embodied` as a process in a folder; no end in `timeout` seconds fails the test."""
    return subprocess.run([*COMMAND, *words], cwd=folder, capture_output=True, text=True, timeout=timeout)


def start(*words: str, folder: Path) -> "subprocess.Popen[str]":
    """Start `embodied` as a process in a folder."""
    return subprocess.Popen([*COMMAND, *words], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def one_line(result: "subprocess.CompletedProcess[str]", status: int = 2) -> str:
    """The single error line of a command that failed as it should."""
    assert result.returncode == status, result.stderr
    lines = [line for line in result.stderr.splitlines() if line.startswith("embodied: ")]
    assert "Traceback" not in result.stderr
    assert len(lines) == 1, result.stderr
    return lines[0]
