"""Record of what a run was made with: `provenance.jsonl`, a line for each start or resume."""

import importlib.metadata
import json
import os
import platform
import re
import subprocess
import time
from pathlib import Path
from typing import Any

import torch

FILE = "provenance.jsonl"

_ROOT = Path(__file__).parents[2]
_DISTRIBUTION = "embodied-rl"
_GIT_S = 5.0


def record_provenance(folder: Path, attempt: int) -> None:
    """Add a line about code, packages and machine to a run's record."""
    line = {"attempt": attempt, "time": time.time(), "commit": _commit(), "packages": _packages(), **_machine()}
    with (folder / FILE).open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


def _commit() -> str:
    """Commit of the clone, with `-dirty` where files differ from it; empty where the code is in no clone."""
    if not (_ROOT / ".git").exists():
        return ""
    command = ["git", "-C", str(_ROOT), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=_GIT_S, check=False).stdout.strip()
    except (OSError, subprocess.TimeoutExpired):
        return ""


def _packages() -> dict[str, str]:
    """Versions of this package and of those that it requires, as far as they are installed."""
    try:
        required = importlib.metadata.requires(_DISTRIBUTION) or []
    except importlib.metadata.PackageNotFoundError:
        required = ["numpy", "torch", "mujoco"]
    names = {re.split(r"[^\w.-]", requirement, maxsplit=1)[0] for requirement in required} | {_DISTRIBUTION}
    found = {}
    for name in sorted(names):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def _machine() -> dict[str, Any]:
    cpu = re.search(r"model name\s*: (.*)", _read("/proc/cpuinfo"))
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "machine": platform.node(),
        "cpu": cpu[1] if cpu else platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gb": round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 1e9, 1),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else "",
    }


def _read(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""
