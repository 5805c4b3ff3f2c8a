"""Named arrays in a safetensors file. safetensors is in the extra `serve`, so it is imported when a file is touched."""

import json
from collections.abc import Mapping
from pathlib import Path
from stat import S_ISDIR, S_ISREG
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embodied.errors import CorruptFile, UserError
from embodied.files import open_file, write_new
from embodied.weights.examine import little_endian

_PLAIN_HEADER = 2 * 2**20
_DTYPES = {
    "BOOL": "bool", "U8": "u1", "I8": "i1", "I16": "<i2", "U32": "<u4", "I32": "<i4", "U64": "<u8", "I64": "<i8",
    "F16": "<f2", "BF16": "<u2", "F32": "<f4", "F64": "<f8",
}  # fmt: skip


def header_limit(tensors: int) -> int:
    """Bytes that the header of a file of so many bytes of tensors may have, a hundred or two per tensor: what a header
    lists is slow to read, and names need not stand for any data."""
    return _PLAIN_HEADER + tensors // 2048


def write_tensors(path: Path, tensors: Mapping[str, NDArray[Any]]) -> None:
    """Write a new safetensors file and fsync it, for use inside `embodied.files.atomic_dir`.

    Raises:
        InfrastructureError: No disk space.
        UserError: safetensors is not installed.
    """
    _need()
    from safetensors.numpy import save

    data = save({name: little_endian(array) for name, array in tensors.items()})
    halves = any(array.dtype == np.uint16 for array in tensors.values())
    write_new(path, _named_bfloat16(data) if halves else [data])


def read_tensors(path: Path, limit: int, fix: str) -> dict[str, NDArray[Any]]:
    """Owned, writable arrays of a safetensors file whose tensors take at most `limit` bytes.

    bfloat16 numbers, which numpy lacks, are read as uint16 arrays of their bits.

    Raises:
        CorruptFile: Missing, no regular file, larger than allowed (the header too; checked before anything is
            allocated), truncated, malformed, or of numbers of 8 bits.
        UserError: safetensors is not installed.
    """
    _need()
    from safetensors import SafetensorError, deserialize
    from safetensors.numpy import load_file

    try:
        _check_size(path, limit, fix)
        if "BF16" in _dtypes(path):
            return {name: _array(entry) for name, entry in deserialize(path.read_bytes())}
        return load_file(path)
    except OSError as error:
        raise CorruptFile(f"cannot be read: {error.strerror or error}", str(path), fix) from None
    except (SafetensorError, KeyError, TypeError, ValueError, AttributeError) as error:
        if "float8" in str(error):
            what = "holds float8 numbers, which are not float32"
            raise CorruptFile(what, str(path), "convert its tensors to float32 and save it again") from None
        raise CorruptFile(f"no whole safetensors file: {str(error)[:200]}", str(path), fix) from None


def _named_bfloat16(data: bytes) -> list[bytes | memoryview]:
    """A safetensors file whose uint16 tensors are named as what their bits are."""
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    for entry in header.values():
        if entry.get("dtype") == "U16":
            entry["dtype"] = "BF16"
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return [len(text).to_bytes(8, "little"), text, memoryview(data)[8 + length :]]


def _dtypes(path: Path) -> set[str]:
    """Names of the dtypes in a header whose length has been checked; none where it is malformed."""
    size = path.stat().st_size
    with open_file(path) as file:
        try:
            header = json.loads(file.read(min(int.from_bytes(file.read(8), "little"), size)))
            return {str(entry.get("dtype")) for entry in header.values()}
        except (ValueError, AttributeError, RecursionError):
            return set()


def _array(entry: Mapping[str, Any]) -> NDArray[Any]:
    return np.frombuffer(entry["data"], _DTYPES[entry["dtype"]]).reshape(entry["shape"])


def _check_size(path: Path, limit: int, fix: str) -> None:
    """Look at the file's kind, size and header's size, which are its first eight bytes."""
    stat = path.stat()
    if not S_ISREG(stat.st_mode):  # to open a pipe is to wait for its writer
        what = "is a folder" if S_ISDIR(stat.st_mode) else "is no regular file"
        raise CorruptFile(f"{what}, not a safetensors file", str(path), fix)
    longest = header_limit(limit)
    if stat.st_size > limit + longest + 8:
        raise CorruptFile(f"{stat.st_size} bytes where {limit} bytes of tensors are expected", str(path), fix)
    with open_file(path) as file:
        header = int.from_bytes(file.read(8), "little")
    if longest < header < stat.st_size:
        what = f"a header of {header} bytes where {limit} bytes of tensors are expected, which need {longest} at most"
        raise CorruptFile(what, str(path), fix)


def _need() -> None:
    try:
        import safetensors  # noqa: F401
    except ImportError:
        raise UserError("safetensors is not installed", "weights", "pip install -e '.[serve]' in the clone") from None
