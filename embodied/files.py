"""Files that are whole or absent: atomic writes, bounded reads, locks that end with their holder.

Everything is written under a temporary name, fsync'd, renamed, and its directory fsync'd, so that a reader never sees
half of it and what a call returned from survives `kill -9`. A full disk becomes one `InfrastructureError`.
"""

import errno
import fcntl
import hashlib
import json
import logging
import os
import shutil
import stat
import threading
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Self

from embodied.errors import CorruptFile, DeadlineExceeded, InfrastructureError

log = logging.getLogger(__name__)

TEMPORARY = ".tmp-"
JSON_LIMIT = 64 * 2**20

_warned: set[Path] = set()
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_DENIED = (errno.EACCES, errno.EPERM, errno.EROFS)
_UNFIT = (errno.EIO, errno.ESTALE, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.EMFILE, errno.ENFILE)


@contextmanager
def disk_errors(where: Path | str) -> Iterator[None]:
    """Turn a full, read-only or failing disk into one `InfrastructureError` that names `where`; other errors pass."""
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            raise InfrastructureError(
                "no disk space", str(where), "free space, raise the quota or choose another disk"
            ) from None
        if error.errno in _DENIED:
            raise InfrastructureError(
                f"may not write: {os.strerror(error.errno or 0)}", str(where), "check the owner and mode of the folder"
            ) from None
        if error.errno in _UNFIT:
            raise InfrastructureError(
                f"cannot be written: {os.strerror(error.errno or 0)}", str(where), "choose another folder or disk"
            ) from None
        raise


def warn_of_mode(path: Path, secret: bool) -> None:
    """Log once that other users can read a secret file, or change a file or folder that must be trusted."""
    bits, doing, mode = (0o077, "read the secret file", "600") if secret else (0o022, "change", "go-w")
    try:
        found = path.stat()
    except OSError:
        return
    if found.st_mode & bits and not found.st_mode & stat.S_ISVTX and path not in _warned:
        _warned.add(path)
        log.warning("others can %s %s: chmod %s %s", doing, path, mode, path)


@contextmanager
def private() -> Iterator[None]:
    """Files made within are readable by their owner only, from their first byte; the mask is the whole process's."""
    mask = os.umask(0o077)
    try:
        yield
    finally:
        os.umask(mask)


def fsync_dir(path: Path) -> None:
    """Make renames and new names in a directory survive a power cut."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def temporary_name(path: Path) -> Path:
    """A fresh name beside `path` that readers skip and `clean_temporaries` removes."""
    return path.with_name(f"{TEMPORARY}{path.name}.{uuid.uuid4().hex[:12]}")


def is_temporary(path: Path) -> bool:
    return path.name.startswith(TEMPORARY)


def clean_temporaries(folder: Path) -> list[Path]:
    """Remove what killed writers left directly in `folder`. Call it only while no other writer is at work there."""
    left = [path for path in folder.iterdir() if is_temporary(path)] if folder.is_dir() else []
    for path in left:
        remove(path)
    return left


def remove(path: Path) -> None:
    """Delete a file or a directory with all it holds; nothing happens if it is missing."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    elif path.is_symlink() or path.exists():
        path.unlink(missing_ok=True)


def write_new(path: Path, parts: Iterable[bytes | memoryview]) -> None:
    """Write one file in place and fsync it: for files inside an `atomic_dir`."""
    with disk_errors(path), path.open("xb") as file:
        for part in parts:
            file.write(part)
        file.flush()
        os.fsync(file.fileno())


def write_bytes(path: Path, *parts: bytes | memoryview) -> None:
    """Replace `path` by `parts`, whole or not at all.

    Raises:
        InfrastructureError: The disk is full or read-only; the old file stays as it was.
    """
    part = temporary_name(path)
    try:
        with disk_errors(path):
            write_new(part, parts)
            part.replace(path)
            fsync_dir(path.parent)
    finally:
        part.unlink(missing_ok=True)


def write_json(path: Path, value: Any) -> None:
    """Replace `path` by a JSON value, whole or not at all; raises as `write_bytes`."""
    write_bytes(path, (json.dumps(value, indent=1, sort_keys=True) + "\n").encode())


@contextmanager
def atomic_dir(path: Path) -> Iterator[Path]:
    """Fill a directory under a temporary name, then rename it to `path`.

    On exit every file is fsync'd. After an exception nothing is left under either name.

    Yields:
        The temporary directory.

    Raises:
        InfrastructureError: The disk is full or read-only.
        FileExistsError: `path` exists and is not an empty directory.
    """
    part = temporary_name(path)
    try:
        with disk_errors(path):
            part.mkdir(parents=True)
            yield part
            for root, _, names in os.walk(part):
                for name in names:
                    _fsync_file(Path(root) / name)
                fsync_dir(Path(root))
            try:
                part.rename(path)
            except OSError as error:
                if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                    raise FileExistsError(errno.EEXIST, "exists", str(path)) from None
                raise
            fsync_dir(path.parent)
    finally:
        remove(part)


def _fsync_file(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def append_line(path: Path, line: str, sync: bool = True) -> None:
    """Append one line; a torn last line left by a killed writer is closed first.

    Args:
        sync: Whether it survives a power cut once this returns; it survives `kill -9` in any case.
    """
    with disk_errors(path):
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o644)
        try:
            size = os.fstat(fd).st_size
            torn = size > 0 and os.pread(fd, 1, size - 1) != b"\n"
            data = (("\n" if torn else "") + line + "\n").encode()
            while data:
                data = data[os.write(fd, data) :]
            if sync:
                os.fsync(fd)
        finally:
            os.close(fd)


def open_file(path: Path) -> BinaryIO:
    """Open a regular file to read its bytes. A FIFO, which would wait for a writer, or a device is refused.

    Raises:
        OSError: It cannot be opened, or is no regular file.
    """
    file = open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK))  # noqa: SIM115
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(errno.EINVAL, "no regular file", str(path))
    return file


def read_bytes(path: Path, limit: int, fix: str) -> bytes:
    """A file's bytes.

    Raises:
        CorruptFile: It is missing, no regular file, or larger than `limit` bytes; checked before anything is allocated.
    """
    try:
        with open_file(path) as file:
            size = os.fstat(file.fileno()).st_size
            if size > limit:
                raise CorruptFile(f"{size} bytes where at most {limit} are allowed", str(path), fix)
            data = file.read(limit + 1)
    except OSError as error:
        raise CorruptFile(f"cannot be read: {error.strerror}", str(path), fix) from None
    if len(data) > limit:
        raise CorruptFile(f"grew beyond {limit} bytes while it was read", str(path), fix)
    return data


def read_json(path: Path, fix: str, limit: int = JSON_LIMIT) -> dict[str, Any]:
    """A JSON object from a file.

    Raises:
        CorruptFile: It is missing, too large, no JSON, or not an object.
    """
    try:
        value = json.loads(read_bytes(path, limit, fix))
    except (ValueError, RecursionError):
        raise CorruptFile("not JSON: truncated or altered", str(path), fix) from None
    if not isinstance(value, dict):
        raise CorruptFile("JSON, but not an object", str(path), fix)
    return value


def sealed(value: Mapping[str, Any]) -> bytes:
    """A JSON object with a `seal`, the SHA-256 of all its other members, so that no altered byte goes unnoticed."""
    plain = json.loads(json.dumps(value))  # as it will be read: keys are strings then, and sort as such
    return (json.dumps({**plain, "seal": _seal(plain)}, indent=1, sort_keys=True) + "\n").encode()


def read_sealed(path: Path, fix: str, limit: int = JSON_LIMIT) -> dict[str, Any]:
    """Read what `sealed` made, without its seal.

    Raises:
        CorruptFile: As `read_json`, or the seal does not fit.
    """
    value = read_json(path, fix, limit)
    if value.pop("seal", None) != _seal(value):
        raise CorruptFile("altered: its seal does not fit", str(path), fix)
    return value


def _seal(value: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


_held: set[str] = set()
_held_guard = threading.Lock()


def _forget_held() -> None:
    """A forked child holds none of its parent's locks, and no thread of it is inside the guard."""
    global _held_guard
    _held_guard = threading.Lock()
    _held.clear()


os.register_at_fork(after_in_child=_forget_held)


class Lock:
    """A lock on a path, held by at most one thread of one process on this machine.

    The kernel frees it when its holder dies, so none is ever stale; the holder's pid is written inside. A forked child
    does not inherit it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._key = str(Path(os.path.realpath(path.parent)) / path.name)
        self._fd = -1

    def try_acquire(self) -> bool:
        """Take the lock if it is free."""
        with _held_guard:
            if self._key in _held:
                return False
            with disk_errors(self.path):
                fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
                try:
                    fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except OSError as error:
                    os.close(fd)
                    if error.errno in (errno.EACCES, errno.EAGAIN):
                        return False
                    raise
                try:
                    os.ftruncate(fd, 0)
                    os.pwrite(fd, str(os.getpid()).encode(), 0)
                except OSError:
                    os.close(fd)
                    raise
            self._fd = fd
            _held.add(self._key)
            return True

    def holder(self) -> str:
        """Holder of the lock, such as `pid 4711`."""
        with _held_guard:
            # Opening and closing the file here would free a lock of our own: POSIX locks belong to the process.
            if self._key in _held:
                return f"pid {os.getpid()}, this process"
            try:
                text = self.path.read_text()[:32].strip()
            except OSError:
                text = ""
        return f"pid {text}" if text.isdecimal() else "an unknown process"

    def acquire(self, timeout_s: float, doing: str) -> Self:
        """Take the lock, waiting at most `timeout_s`.

        Raises:
            DeadlineExceeded: Someone kept it; names the holder and what `doing` waited for.
        """
        end = time.monotonic() + timeout_s
        while not self.try_acquire():
            if time.monotonic() >= end:
                raise DeadlineExceeded(
                    f"{self.holder()} kept the lock for {timeout_s:g} s while this process was waiting to {doing}",
                    str(self.path),
                    "wait for that process, or end it",
                )
            time.sleep(0.005)
        return self

    def release(self) -> None:
        """Give the lock back; nothing happens if it is not held."""
        with _held_guard:
            if self._fd >= 0:
                os.close(self._fd)
                self._fd = -1
                _held.discard(self._key)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()
