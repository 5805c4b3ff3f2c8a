"""The `embodied` command as a user's process."""

import subprocess
import sys
from pathlib import Path

SMALL = [
    "task=reach", "rollout.num_envs=16", "rollout.steps=16", "evaluate.episodes=8", "evaluate.every=4",
    "evaluate.final_episodes=8", "checkpoint.every=3", "algo.epochs=2", "render.episodes=0", "env.num_threads=1",
]  # fmt: skip


def embodied(*words: str, folder: Path, timeout: float = 120.0) -> subprocess.CompletedProcess[str]:
    """Run `embodied` in a folder; no answer in `timeout` seconds fails the test."""
    return subprocess.run(
        [sys.executable, "-m", "embodied.cli.main", *words], cwd=folder, capture_output=True, text=True, timeout=timeout
    )


def start(*words: str, folder: Path) -> "subprocess.Popen[str]":
    """Start `embodied` in a folder."""
    return subprocess.Popen(
        [sys.executable, "-m", "embodied.cli.main", *words],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def one_line(result: "subprocess.CompletedProcess[str]", status: int = 2) -> str:
    """The single error line of a command that failed as it should."""
    assert result.returncode == status, result.stderr
    lines = [line for line in result.stderr.splitlines() if line.startswith("embodied: ")]
    assert "Traceback" not in result.stderr
    assert len(lines) == 1, result.stderr
    return lines[0]
