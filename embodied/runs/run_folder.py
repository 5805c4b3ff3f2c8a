"""Run folders: `runs/<name>/`, named once, written by one process at a time, found again by name or path.

`attempt.json` marks a run folder and counts how often the run was started, so that ids stay unique over resumes.
"""

import logging
import os
import re
import shutil
import time
from collections.abc import Sequence
from pathlib import Path

from embodied.errors import ConfigError, CorruptFile, InfrastructureError, UserError, nearest
from embodied.files import (
    Lock,
    atomic_dir,
    disk_errors,
    fsync_dir,
    is_temporary,
    read_bytes,
    read_sealed,
    sealed,
    temporary_name,
    write_bytes,
    write_new,
)

log = logging.getLogger(__name__)

LATEST = "latest"
MIN_FREE = 200 * 10**6

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_ATTEMPT = "attempt.json"


def create(root: Path, name: str | None = None, prefix: str = "run") -> Path:
    """Make the folder of a new run.

    Args:
        root: Folder of all runs, made if missing.
        name: Name of the run; None names it `<prefix>-<yyyymmdd-hhmmss>`.
        prefix: Such as `<task>-<algo>`.

    Raises:
        ConfigError: The name is not allowed.
        UserError: The folder exists.
        InfrastructureError: Less than 200 MB are free, or the folder cannot be made.
    """
    there = _nearest_there(root)
    if not there.is_dir():
        raise UserError("a file is where the folder of all runs should be", str(there), "choose another runs=...")
    check_free(root)
    stamp = f"{prefix}-{time.strftime('%Y%m%d-%H%M%S')}"
    # Runs started within one second get -2, -3; a name that was asked for is taken as it is or refused.
    names: Sequence[str] = [name] if name is not None else [stamp, *(f"{stamp}-{i}" for i in range(2, 100))]
    if not _NAME.fullmatch(names[0]) or names[0] == LATEST:
        raise ConfigError(
            f"a run cannot be named {names[0]!r}", "name", "use letters, digits, dot, dash and underscore"
        )
    for candidate in names:
        path = root / candidate
        # `atomic_dir` would replace an empty folder, which may be someone's too.
        if path.exists():
            continue
        try:
            with atomic_dir(path) as part:
                write_new(part / _ATTEMPT, [sealed({"attempts": 0})])
        except FileExistsError:
            continue
        return path
    raise UserError(f"the run {names[0]} exists", str(root / names[0]), f"choose another name=... or resume={names[0]}")


def point_latest(root: Path, run: Path) -> None:
    """Let `<root>/latest` link to a run, replacing the link atomically.

    Raises:
        UserError: `latest` is something other than a link.
    """
    link = root / LATEST
    if link.exists() and not link.is_symlink():
        raise UserError("it is no link to a run", str(link), "move it away")
    fresh = temporary_name(link)
    with disk_errors(link):
        fresh.symlink_to(os.path.relpath(run, root), target_is_directory=True)
        try:
            fresh.replace(link)
        finally:
            fresh.unlink(missing_ok=True)
        fsync_dir(root)


def runs(root: Path) -> list[str]:
    """Names of the runs under `root`, sorted."""
    if not root.is_dir():
        return []
    return sorted(p.name for p in root.iterdir() if not p.is_symlink() and not is_temporary(p) and is_run(p))


def resolve(run: str | Path, root: Path) -> Path:
    """The folder of a run given as `latest`, as a name under `root`, or as a path.

    Raises:
        UserError: There is no such run; offers the nearest names.
    """
    known = runs(root)
    if str(run) == LATEST and not (root / LATEST).exists():
        fix = f"choose run={known[-1]}" if known else "start one with embodied train"
        raise UserError("there is no latest run", str(root), fix)
    for path in (root / run, Path(run)):
        if str(run) and is_there(path):
            if is_run(path):
                return path.resolve()
            if path.is_file():
                raise UserError(f"{run} is a file, not a run", str(path), "give a run's name, or its folder")
            raise UserError(f"{run} is a folder, but not of a run", str(path), nearest(str(run), known))
    raise UserError(f"no run {run}", str(root), nearest(str(run), known))


def is_there(path: Path) -> bool:
    """Whether a path exists; one that no disk could have, such as one too long, does not."""
    try:
        return path.exists()
    except OSError:
        return False


def lock(run: Path) -> Lock:
    """Become the only writer of a run folder, until `release` or the end of this process; use it as a context.

    Raises:
        UserError: Another process, which it names, writes the run. One that died holds nothing.
    """
    lock = Lock(run / ".lock")
    if not lock.try_acquire():
        raise UserError(
            f"the run {run.name} is being written by {lock.holder()}",
            str(run),
            "wait for it, end it, or choose another name=...",
        )
    return lock


def next_attempt(run: Path) -> int:
    """The number of this start or resume of the run, from 0; on disk before it is returned. The caller holds `lock`.

    Where `attempt.json` is damaged, the count continues after the last attempt that left a file, and that is logged.

    Raises:
        InfrastructureError: No disk space.
    """
    path = run / _ATTEMPT
    try:
        attempts = read_sealed(path, "").get("attempts")
        if type(attempts) is not int or attempts < 0:
            raise CorruptFile("holds no count of attempts", str(path), "")
    except CorruptFile as error:
        attempts = _next_of_files(run)
        log.warning("%s: %s; attempt %d begins, after the last that left a file", path, error.what, attempts)
    write_bytes(path, sealed({"attempts": attempts + 1}))
    return attempts


def _next_of_files(run: Path) -> int:
    """One more than the last attempt that left episodes or its provenance."""
    found = {int(name[1]) for path in run.glob("episodes/shard-*") if (name := path.name.split("-"))[1].isdecimal()}
    lines = run / "provenance.jsonl"
    written = len(read_bytes(lines, 2**26, "").splitlines()) if lines.is_file() else 0
    return max([written, *(attempt + 1 for attempt in found)])


def check_free(folder: Path, need: int = MIN_FREE) -> None:
    """Refuse to start with less than `need` bytes free where `folder` is or will be.

    Raises:
        InfrastructureError: Says how much is free.
    """
    there = _nearest_there(folder)
    free = shutil.disk_usage(there).free
    if free < need:
        raise InfrastructureError(
            f"no disk space: {free / 1e6:.0f} MB free, {need / 1e6:.0f} MB needed",
            str(there),
            "free space or choose another disk",
        )


def _nearest_there(path: Path) -> Path:
    """The path itself, or the nearest above it that exists."""
    path = path.absolute()
    while not path.exists():
        path = path.parent
    return path


def is_run(path: Path) -> bool:
    """Whether a path is the folder of a run."""
    return (path / _ATTEMPT).is_file()
