"""Run a test's work in processes that are killed, or that may write little, and check what they leave behind.

A program of its own, so that it forks from a process without threads:

    python tests/faults.py calls   FILE WORK CHECK FOLDER        kill -9 before each call that changes a file, in turn
    python tests/faults.py random  FILE WORK CHECK FOLDER COUNT  kill -9 at random moments of repeated work
    python tests/faults.py limited FILE WORK CHECK FOLDER BYTES...  no file may grow beyond BYTES, in a folder each

FILE holds the functions WORK(folder) and CHECK(folder, outcome), where outcome is `done`, `killed` or the line of the
`EmbodiedError` that ended the work. Prints how often the work was killed.
"""

import importlib.util
import os
import random
import resource
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from embodied.errors import EmbodiedError

CALLS = ("fsync", "mkdir", "open", "pwrite", "rename", "replace", "rmdir", "symlink", "unlink", "write")
DEADLINE_S = 60
REPEATS = 3


def kill_before(number: int) -> None:
    """Let this process kill itself before its `number`-th call of one of `CALLS`."""
    left = [number]

    def counted(call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            left[0] -= 1
            if left[0] <= 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return call(*args, **kwargs)

        return wrapped

    for name in CALLS:
        setattr(os, name, counted(getattr(os, name)))


def forked(work: Callable[[], None]) -> int:
    """Run in a fork; returns its pid."""
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        signal.alarm(DEADLINE_S)
        work()
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


def ended(pid: int) -> str:
    """`done` or `killed`; anything else ends this program."""
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if code not in (0, -signal.SIGKILL):
        sys.exit(f"the work ended with {code}")
    return "done" if code == 0 else "killed"


def main(mode: str, file: str, work_name: str, check_name: str, folder_name: str, *counts: str) -> None:
    sys.path.insert(0, str(Path(file).parent))  # as pytest does, for what the tests of a folder share
    spec = importlib.util.spec_from_file_location("under_test", file)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    work, check, folder = getattr(module, work_name), getattr(module, check_name), Path(folder_name)
    (folder / "warm").mkdir()
    work(folder / "warm")  # lazy imports are done once, before anything is forked or counted

    def checked(folder: Path, outcome: str) -> None:
        if ended(forked(lambda: check(folder, outcome))) != "done":
            sys.exit("the check was killed")

    def work_until(call: int, folder: Path) -> None:
        kill_before(call)
        work(folder)

    def work_on() -> None:
        while True:
            work(folder)

    kills = 0
    if mode == "calls":
        for done in (0, REPEATS):  # in an empty folder, and in one that has been worked in
            before = folder / f"before-{done}"
            before.mkdir()
            for _ in range(done):
                work(before)
            outcome, call = "killed", 0
            while outcome == "killed":
                call += 1
                now = folder / f"{done}-{call}"
                shutil.copytree(before, now, symlinks=True)
                outcome = ended(forked(partial(work_until, call, now)))
                checked(now, outcome)
                kills += outcome == "killed"
    elif mode == "random":
        draw = random.Random(0)
        for _ in range(int(counts[0])):
            pid = forked(work_on)
            time.sleep(draw.uniform(0, 0.06))
            os.kill(pid, signal.SIGKILL)
            outcome = ended(pid)
            checked(folder, outcome)
            kills += outcome == "killed"
    else:

        def limited(most: int, folder: Path) -> None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (most, resource.RLIM_INFINITY))
            outcome = "done"
            try:
                work(folder)
            except EmbodiedError as error:
                outcome = f"{type(error).__name__}: {error.line()}"
            resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
            check(folder, outcome)

        for count in counts:
            (folder / count).mkdir()
            ended(forked(partial(limited, int(count), folder / count)))
    print(kills)


if __name__ == "__main__":
    main(*sys.argv[1:])
