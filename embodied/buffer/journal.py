"""An append-only journal of frames: what was appended survives `kill -9`, and a torn end is found by its checksum.

    file    = magic (8 bytes) frame*
    frame   = length (uint32) checksum (uint64, xxh3-64 of the payload) payload
    payload = head bytes (uint32) head (msgpack: kind, meta, table of arrays) raw arrays

Integers are little-endian. Frames reach the kernel before `append` returns, not the disk: a power cut may take the
last ones, a killed process takes none.
"""

import fcntl
import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgpack
import xxhash
from numpy.typing import NDArray

from embodied.buffer.packing import pack_arrays, unpack_arrays
from embodied.errors import CorruptFile, DataError
from embodied.files import disk_errors, fsync_dir, open_file

MAGIC = b"EMB-JN1\n"
FRAME_LIMIT = 256 * 2**20
FIX = "delete it, or keep it aside for a look"

_FRAME = struct.Struct("<IQ")
_SIZE = struct.Struct("<I")


@dataclass(frozen=True)
class Frame:
    """One record: its kind, plain values, and arrays."""

    kind: str
    meta: dict[str, Any]
    arrays: dict[str, NDArray[Any]]


class JournalWriter:
    """Appends frames to a new file, locked while it lives so that `recover` leaves it alone.

    Raises:
        FileExistsError: There is such a file.
        InfrastructureError: No disk space.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        with disk_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
            try:
                fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                self._end = 0
                self._write(MAGIC)
                fsync_dir(path.parent)
            except OSError:
                self.close()
                raise

    def append(self, kind: str, meta: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> None:
        """Add one frame.

        Raises:
            InfrastructureError: No disk space; the journal ends with the frame before.
            DataError: The frame is beyond `FRAME_LIMIT`.
        """
        table, data = pack_arrays(arrays)
        head = msgpack.packb([kind, dict(meta), table])
        payload = b"".join((_SIZE.pack(len(head)), head, data))
        if len(payload) > FRAME_LIMIT:
            raise DataError(f"a frame of {len(payload)} bytes", str(self.path), f"record at most {FRAME_LIMIT} a step")
        with disk_errors(self.path):
            self._write(_FRAME.pack(len(payload), xxhash.xxh3_64_intdigest(payload)) + payload)

    def _write(self, data: bytes) -> None:
        left = memoryview(data)
        try:
            while left:
                left = left[os.write(self._fd, left) :]
        except OSError:
            os.ftruncate(self._fd, self._end)
            os.lseek(self._fd, self._end, os.SEEK_SET)
            raise
        self._end += len(data)

    def close(self) -> None:
        """Close the file, which stays on disk."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def is_recorded(path: Path) -> bool:
    """Whether a living process is writing this journal."""
    fd = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def read_journal(path: Path) -> list[Frame]:
    """The whole frames from the begin of a journal; a torn end is left out.

    Raises:
        CorruptFile: It is no journal, or a frame with a right checksum cannot be read.
    """
    frames: list[Frame] = []
    with open_file(path) as file:
        left = os.fstat(file.fileno()).st_size - len(MAGIC)
        magic = file.read(len(MAGIC))
        if magic != MAGIC[: len(magic)]:
            raise CorruptFile("not a journal", str(path), FIX)
        while left >= _FRAME.size:
            head = file.read(_FRAME.size)
            left -= _FRAME.size
            if len(head) != _FRAME.size:
                break
            size, checksum = _FRAME.unpack(head)
            if size > min(left, FRAME_LIMIT):
                break
            payload = file.read(size)
            left -= size
            if len(payload) != size or xxhash.xxh3_64_intdigest(payload) != checksum:
                break
            frames.append(_frame(payload, path))
    return frames


def _frame(payload: bytes, path: Path) -> Frame:
    try:
        [size] = _SIZE.unpack_from(payload)
        kind, meta, table = msgpack.unpackb(payload[_SIZE.size : _SIZE.size + size])
        return Frame(str(kind), dict(meta), unpack_arrays(table, memoryview(payload)[_SIZE.size + size :]))
    except (ValueError, TypeError, struct.error, msgpack.UnpackException, DataError) as error:
        raise CorruptFile(f"a frame cannot be read: {error}", str(path), FIX) from None
