"""A version that arrives in ranges, in memory or on disk.

On disk, `<label>.part` holds the content at its final length, `<label>.journal` one JSON line per range with its hash.
A range that still has its hash is not asked for again, whether the process was killed or the machine lost power.
"""

import errno
import json
import mmap
import os
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from embodied.errors import MessageError
from embodied.files import disk_errors, open_file, remove
from embodied.weights.transfer import Content, range_hash

PART, JOURNAL = ".part", ".journal"

_LINE_LIMIT = 4096
_RANGE_LIMIT = 2**24
_NO_FALLOCATE = (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS)


class Download:
    """Ranges of one version's content that have arrived, in memory. One thread at a time.

    Args:
        label: Of the version, such as `12-ab12cd34ef56`; for messages.
        content: Where the bytes go; as long as the version's content.
    """

    def __init__(self, label: str, content: Content) -> None:
        self.label, self.nbytes, self._content = label, content.nbytes, content
        self._starts: list[int] = []
        self._ends: list[int] = []

    @property
    def received(self) -> int:
        """Bytes that have arrived."""
        return sum(self._ends) - sum(self._starts)

    @property
    def complete(self) -> bool:
        return self.received == self.nbytes

    def missing(self) -> list[tuple[int, int]]:
        """Ranges that have not arrived, as [start, end), ascending."""
        edges = zip([0, *self._ends], [*self._starts, self.nbytes], strict=True)
        return [(start, end) for start, end in edges if start < end]

    def write(self, offset: int, data: NDArray[np.uint8], digest: str) -> None:
        """Keep one range. One that has arrived before is written again.

        Args:
            offset: Of its first byte in the content.
            data: uint8 [size].
            digest: Its `range_hash`, as its sender says.

        Raises:
            MessageError: It is beyond the content's end, or its hash differs; nothing is kept.
            InfrastructureError: No disk space.
        """
        end = offset + data.nbytes
        if offset < 0 or end > self.nbytes:
            raise MessageError(f"bytes {offset} to {end} of {self.nbytes}", f"version {self.label}", "ask for others")
        flat = np.ascontiguousarray(data, np.uint8).reshape(-1)
        if range_hash(flat) != digest:
            raise MessageError(f"bytes {offset} to {end} arrived damaged", f"version {self.label}", "ask again")
        self._store(offset, flat, digest)
        self._add(offset, end)

    def _store(self, offset: int, data: NDArray[np.uint8], digest: str) -> None:
        self._content.write(offset, data)

    def _add(self, start: int, end: int) -> None:
        """Join [start, end) with the ranges that it touches."""
        if start == end:
            return
        first, last = bisect_left(self._ends, start), bisect_right(self._starts, end)
        if first < last:
            start, end = min(start, self._starts[first]), max(end, self._ends[last - 1])
        self._starts[first:last] = [start]
        self._ends[first:last] = [end]


class PartialDownload(Download):
    """Ranges that have arrived, in files that outlive the process. One process, one thread at a time.

    Args:
        folder: Made if missing; several versions may share it.
        label: Of the version, such as `12-ab12cd34ef56`; names the files.
        content: Hash of the whole content; files left of another content under this label are replaced.
        nbytes: Length of the content; that much disk is claimed at once, so that a full disk shows at the start.

    Raises:
        InfrastructureError: No disk space, or the folder cannot be written; nothing is left on disk then.
    """

    def __init__(self, folder: Path, label: str, content: str, nbytes: int) -> None:
        super().__init__(label, Content({}))
        self.nbytes = nbytes
        self._part, self._journal = folder / f"{label}{PART}", folder / f"{label}{JOURNAL}"
        self._fd = self._log = -1
        head = json.dumps({"content": content, "bytes": nbytes})
        try:
            with disk_errors(self._part):
                folder.mkdir(parents=True, exist_ok=True)
                known = list(self._kept(head))
                self._fd = os.open(self._part, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
                _claim(self._fd, nbytes)
                flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW
                self._log = os.open(self._journal, flags | (0 if known else os.O_TRUNC), 0o644)
                _write_all(self._log, f"\n{head}\n".encode())
                for start, size, digest in known:
                    if range_hash(np.frombuffer(self._read(start, size), np.uint8)) == digest:
                        self._add(start, start + size)
        except BaseException:
            self.discard()
            raise

    def content(self) -> NDArray[np.uint8]:
        """All bytes [nbytes], mapped from disk and read-only; those that are missing are zeros.

        It stays readable after `discard`.
        """
        if not self.nbytes:
            return np.zeros(0, np.uint8)
        return np.frombuffer(mmap.mmap(self._fd, self.nbytes, prot=mmap.PROT_READ), np.uint8)

    def close(self) -> None:
        """Close the files; they stay on disk, so that the download can be resumed."""
        for fd in (self._fd, self._log):
            if fd >= 0:
                os.close(fd)
        self._fd = self._log = -1

    def discard(self) -> None:
        """Remove the files."""
        self.close()
        remove(self._part)
        remove(self._journal)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _store(self, offset: int, data: NDArray[np.uint8], digest: str) -> None:
        with disk_errors(self._part):
            written = 0
            while written < data.size:
                written += os.pwrite(self._fd, data.data[written:], offset + written)
            _write_all(self._log, (json.dumps([offset, data.nbytes, digest]) + "\n").encode())

    def _read(self, offset: int, size: int) -> bytes:
        parts = []
        while size:
            part = os.pread(self._fd, size, offset)
            if not part:
                break
            parts.append(part)
            offset, size = offset + len(part), size - len(part)
        return b"".join(parts)

    def _kept(self, head: str) -> Iterator[tuple[int, int, str]]:
        """Ranges in the journal of this content; a line torn by a kill is skipped."""
        if not self._part.exists() or not self._journal.exists():
            return
        with open_file(self._journal) as file:
            ours = False
            while line := file.readline(_LINE_LIMIT):
                text = line.decode("utf-8", "replace").strip()
                if text.startswith("{"):
                    ours = text == head
                elif ours and (found := _range(text, self.nbytes)):
                    yield found


def remove_stale(folder: Path, keep: str = "") -> None:
    """Remove the files of versions in `folder` whose label is not `keep`."""
    for path in folder.iterdir() if folder.is_dir() else ():
        if path.suffix in (PART, JOURNAL) and path.stem != keep:
            remove(path)


def _range(text: str, nbytes: int) -> tuple[int, int, str] | None:
    try:
        value: Any = json.loads(text)
    except ValueError:
        return None
    if not isinstance(value, list) or [type(v) for v in value] != [int, int, str]:
        return None
    start, size, digest = value
    fits = start >= 0 and 0 < size <= _RANGE_LIMIT and start + size <= nbytes
    return (start, size, digest) if fits else None


def _claim(fd: int, nbytes: int) -> None:
    if os.fstat(fd).st_size > nbytes:
        os.ftruncate(fd, nbytes)
    if nbytes:
        try:
            os.posix_fallocate(fd, 0, nbytes)
        except OSError as error:
            if error.errno not in _NO_FALLOCATE:
                raise
            os.ftruncate(fd, nbytes)


def _write_all(fd: int, data: bytes) -> None:
    while data:
        data = data[os.write(fd, data) :]
