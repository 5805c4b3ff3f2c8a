"""Workers with tiny environments as processes, and environments that call for them."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from simulators.remote import make_env
from simulators.remote.env import RemoteEnv

TINY = "gymnasium:tests.simulators.worker.tiny_gym:Tiny-v0"
HERE = Path(__file__).parent
PATH = os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])


def start_worker(address: str, *words: str, env: str = TINY) -> "subprocess.Popen[str]":
    """A worker that calls `address`."""
    command = [sys.executable, "-m", "embodied.cli.main", "sim-worker", "--env", env, "--connect", address, *words]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ | {"PYTHONPATH": PATH}
    )


def end(process: "subprocess.Popen[str]") -> tuple[str, str]:
    """Kill a worker, hanging or not; what it said."""
    process.kill()
    return process.communicate(timeout=30)


@contextmanager
def workers(count: int, address: str, *words: str, env: str = TINY) -> Iterator[list["subprocess.Popen[str]"]]:
    started = [start_worker(address, *words, env=env) for _ in range(count)]
    try:
        yield started
    finally:
        for process in started:
            end(process)


@contextmanager
def env(num_envs: int, address: str | None, **options: Any) -> Iterator[RemoteEnv]:
    whole: dict[str, Any] = {"env": TINY, "address": address, "seed": 3, "timeout_s": 60.0} | options
    made = make_env("tiny", num_envs, **whole)
    try:
        yield made
    finally:
        made.close()
