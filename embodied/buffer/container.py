"""The envelope of an episode file: HDF5 behind a user block that holds checksums and a light index.

HDF5 skips a user block whose size is a power of two from 512, so any HDF5 reader opens the file. The block lets us
tell a whole file from a truncated or altered one, and list its episodes, without trusting HDF5 with damaged bytes.
"""

import os
import struct
from pathlib import Path

import xxhash

from embodied.errors import CorruptFile
from embodied.files import open_file, write_bytes

MAGIC = b"EMB-EP1\n"
INDEX_LIMIT = 64 * 2**20
CUT_LIMIT = 2**31
FIX = "delete it, or copy it again from where it came"

_FIELDS = struct.Struct("<8sQQQ16sQ")  # magic, block bytes, body bytes, index bytes, body xxh3-128, index xxh3-64
_HEADER = _FIELDS.size + 8  # and the xxh3-64 of the fields
_READ = 4 * 2**20


class TruncatedFile(CorruptFile):
    """A file whose block is whole and whose body is cut."""


def write_sealed(path: Path, index: bytes, body: bytes) -> None:
    """Write `body`, an HDF5 image, with its index, whole or not at all.

    Raises:
        InfrastructureError: The disk is full or read-only; nothing is left under `path` that was not there before.
    """
    write_bytes(path, _block(index, body), body)


def sealed_size(index: bytes, body: bytes) -> int:
    """Bytes of the file that `write_sealed` makes."""
    return _block_size(len(index)) + len(body)


def _block_size(index_bytes: int) -> int:
    return max(512, 1 << (_HEADER + index_bytes - 1).bit_length())


def _block(index: bytes, body: bytes) -> bytes:
    size = _block_size(len(index))
    digests = xxhash.xxh3_128_digest(body), xxhash.xxh3_64_intdigest(index)
    fields = _FIELDS.pack(MAGIC, size, len(body), len(index), *digests)
    return (fields + struct.pack("<Q", xxhash.xxh3_64_intdigest(fields)) + index).ljust(size, b"\0")


def read_index(path: Path) -> bytes:
    """The index of a file whose header and size are right; the body is not read.

    Raises:
        CorruptFile: The file is truncated, altered in its block, or no episode file.
        FileNotFoundError: There is no such file.
    """
    return _read_block(path)[1]


def verify(path: Path) -> None:
    """Check every byte of the body against its checksum; raises as `read_index`."""
    block, _, body_bytes, digest = _read_block(path)
    running = xxhash.xxh3_128()
    with open_file(path) as file:
        file.seek(block)
        while data := file.read(_READ):
            running.update(data)
            body_bytes -= len(data)
    if body_bytes or running.digest() != digest:
        raise CorruptFile("altered since it was written: its checksum differs", str(path), FIX)


def _read_block(path: Path) -> tuple[int, bytes, int, bytes]:
    """Block bytes, index, body bytes, body digest."""
    size, block, index, body_bytes, digest = _read_head(path)
    if size != block + body_bytes:
        kind = TruncatedFile if size < block + body_bytes else CorruptFile
        raise kind(f"{size} bytes where {block + body_bytes} were written", str(path), FIX)
    return block, index, body_bytes, digest


def _read_head(path: Path) -> tuple[int, int, bytes, int, bytes]:
    """Bytes of the file, block bytes, index, body bytes, body digest."""
    try:
        with open_file(path) as file:
            size = os.fstat(file.fileno()).st_size
            head = file.read(_HEADER)
            if len(head) < _HEADER or not head.startswith(MAGIC):
                raise CorruptFile("not an episode file, or one cut at its head", str(path), FIX)
            fields = head[: _FIELDS.size]
            if struct.pack("<Q", xxhash.xxh3_64_intdigest(fields)) != head[_FIELDS.size :]:
                raise CorruptFile("altered since it was written: its header differs", str(path), FIX)
            _, block, body_bytes, index_bytes, digest, index_digest = _FIELDS.unpack(fields)
            if index_bytes > min(INDEX_LIMIT, block - _HEADER):
                raise CorruptFile(f"an index of {index_bytes} bytes in a block of {block}", str(path), FIX)
            index = file.read(index_bytes)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise CorruptFile(f"cannot be read: {error.strerror}", str(path), FIX) from None
    if len(index) != index_bytes or xxhash.xxh3_64_intdigest(index) != index_digest:
        raise CorruptFile("altered since it was written: its index differs", str(path), FIX)
    return size, block, index, body_bytes, digest


def read_cut(path: Path) -> tuple[bytes, bytes, int]:
    """The index of a truncated file, what is left of its body, and the bytes that the body had.

    Raises:
        CorruptFile: Its block is not whole, or the body had more than `CUT_LIMIT` bytes.
        FileNotFoundError: There is no such file.
    """
    _, block, index, body_bytes, _ = _read_head(path)
    if body_bytes > CUT_LIMIT:
        raise CorruptFile(f"truncated, and {body_bytes} bytes are too many to be read in part", str(path), FIX)
    with open_file(path) as file:
        file.seek(block)
        return index, file.read(body_bytes), body_bytes
