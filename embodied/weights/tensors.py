"""Named arrays in a safetensors file. safetensors is in the extra `serve`, so it is imported when a file is touched."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from embodied.errors import CorruptFile, UserError
from embodied.files import write_new
from embodied.weights.examine import little_endian

HEADER_LIMIT = 100 * 2**20


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
        CorruptFile: Missing, larger than allowed (checked before anything is allocated), truncated or malformed.
        UserError: safetensors is not installed.
    """
    _need()
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    try:
        size = path.stat().st_size
        if size > limit + HEADER_LIMIT:
            raise CorruptFile(f"{size} bytes where {limit} bytes of tensors are expected", str(path), fix)
        return load_file(path)
    except OSError as error:
        raise CorruptFile(f"cannot be read: {error.strerror or error}", str(path), fix) from None
    except (SafetensorError, KeyError, TypeError, ValueError) as error:
        raise CorruptFile(f"no whole safetensors file: {str(error)[:200]}", str(path), fix) from None


def _need() -> None:
    try:
        import safetensors  # noqa: F401
    except ImportError:
        raise UserError("safetensors is not installed", "weights", "pip install -e '.[serve]' in the clone") from None
