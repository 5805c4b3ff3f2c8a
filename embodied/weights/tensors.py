"""Named arrays in a safetensors file. safetensors is in the extra `serve`, so it is imported when a file is touched."""

from collections.abc import Mapping
from pathlib import Path
from stat import S_ISDIR, S_ISREG
from typing import Any

from numpy.typing import NDArray

from embodied.errors import CorruptFile, UserError
from embodied.files import write_new
from embodied.weights.examine import little_endian

_PLAIN_HEADER = 2 * 2**20
_NARROW = ("bfloat16", "float8")


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

    write_new(path, [save({name: little_endian(array) for name, array in tensors.items()})])


def read_tensors(path: Path, limit: int, fix: str) -> dict[str, NDArray[Any]]:
    """Owned, writable arrays of a safetensors file whose tensors take at most `limit` bytes.

    Raises:
        CorruptFile: Missing, no regular file, larger than allowed (the header too; checked before anything is
            allocated), truncated, malformed, or of numbers that numpy has not, such as bfloat16.
        UserError: safetensors is not installed.
    """
    _need()
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    try:
        _check_size(path, limit, fix)
        return load_file(path)
    except OSError as error:
        raise CorruptFile(f"cannot be read: {error.strerror or error}", str(path), fix) from None
    except (SafetensorError, KeyError, TypeError, ValueError, AttributeError) as error:
        if found := next((dtype for dtype in _NARROW if dtype in str(error)), None):
            what = f"holds {found} numbers, which are not float32"
            raise CorruptFile(what, str(path), "convert its tensors to float32 and save it again") from None
        raise CorruptFile(f"no whole safetensors file: {str(error)[:200]}", str(path), fix) from None


def _check_size(path: Path, limit: int, fix: str) -> None:
    """Look at the file's kind, size and header's size, which are its first eight bytes."""
    stat = path.stat()
    if not S_ISREG(stat.st_mode):  # to open a pipe is to wait for its writer
        what = "is a folder" if S_ISDIR(stat.st_mode) else "is no regular file"
        raise CorruptFile(f"{what}, not a safetensors file", str(path), fix)
    longest = header_limit(limit)
    if stat.st_size > limit + longest + 8:
        raise CorruptFile(f"{stat.st_size} bytes where {limit} bytes of tensors are expected", str(path), fix)
    with path.open("rb") as file:
        header = int.from_bytes(file.read(8), "little")
    if longest < header < stat.st_size:
        what = f"a header of {header} bytes where {limit} bytes of tensors are expected, which need {longest} at most"
        raise CorruptFile(what, str(path), fix)


def _need() -> None:
    try:
        import safetensors  # noqa: F401
    except ImportError:
        raise UserError("safetensors is not installed", "weights", "pip install -e '.[serve]' in the clone") from None
