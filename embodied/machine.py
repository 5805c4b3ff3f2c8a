"""Cores and memory that this process may use, limits of its container included."""

import math
import os
from pathlib import Path

CGROUP = Path("/sys/fs/cgroup")


def number(path: str | Path, place: int = 0) -> float:
    """A number from a file of the kernel; infinite where there is no such file or no limit."""
    try:
        return float(Path(path).read_text().split()[place])
    except (OSError, ValueError, IndexError):
        return math.inf


def cgroup_cores() -> float:
    """Quota of the container in cores; infinite for none."""
    quota, period = number(CGROUP / "cpu.max"), number(CGROUP / "cpu.max", 1)
    if quota == math.inf:
        quota, period = number(CGROUP / "cpu/cpu.cfs_quota_us"), number(CGROUP / "cpu/cpu.cfs_period_us")
    return quota / period if 0 < quota < math.inf and 0 < period < math.inf else math.inf


def usable_cores() -> int:
    """Whole cores that this process may use, at least 1."""
    return max(1, int(min(len(os.sched_getaffinity(0)), cgroup_cores())))


def memory_limit() -> float:
    """Bytes of the machine, or of the container where it has fewer."""
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min(total, number(CGROUP / "memory.max"), number(CGROUP / "memory/memory.limit_in_bytes"))


def free_memory() -> float:
    """Bytes that can still be allocated."""
    free = [memory_limit()]
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        free += [float(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")]
    except OSError:
        pass
    for limit, used in (
        ("memory.max", "memory.current"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
    ):
        if (most := number(CGROUP / limit)) < math.inf and (now := number(CGROUP / used)) < math.inf:
            free.append(max(most - now, 0.0))
    return min(free)


def crowded(threads: int, key: str) -> str:
    """A line about threads for which no cores are free, since they wait for each other; empty where they fit.

    Args:
        threads: Threads that compute together.
        key: Setting that gives their number.
    """
    cores, busy = usable_cores(), os.getloadavg()[0]
    if threads == 1 or threads + busy <= cores + 0.5:
        return ""
    one = f"threads wait for each other and slow the run: give {key}=1"
    if threads > cores:
        return f"{key}={threads}, but this process may use {cores} cores; {one}"
    return f"{key}={threads}, but other programs keep {busy:.1f} of {cores} cores busy; {one}, or wait for them"
