"""Episodes from episode files, verified before HDF5 sees a byte of them."""

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

import h5py

from embodied.buffer.container import FIX, read_index, verify
from embodied.buffer.decode import decode
from embodied.buffer.layout import FORMAT, FORMAT_1
from embodied.buffer.summary import EpisodeSummary, unpack_index
from embodied.episode import Episode
from embodied.errors import CorruptFile

Stamp = tuple[int, int, int]


def stamp(path: Path) -> Stamp:
    """Size, time of change and inode: while they stay, a verified file need not be verified again."""
    status = path.stat()
    return status.st_size, status.st_mtime_ns, status.st_ino


def read_summaries(path: Path) -> list[EpisodeSummary]:
    """Summaries of the episodes in a file, without reading their arrays.

    Raises:
        CorruptFile: The file is truncated or its head altered.
        FileNotFoundError: There is no such file.
    """
    return unpack_index(read_index(path), path)


def read_episodes(path: Path, ids: Iterable[str], verified: bool = False) -> Iterator[Episode]:
    """Episodes of one file in the order of `ids`.

    Args:
        verified: The file's bytes were checked before and have not changed since.

    Raises:
        CorruptFile: The file is truncated or altered, or is not laid out as documented.
        FileNotFoundError: There is no such file.
        UserError: JPEG pictures need a package that is not installed.
    """
    if not verified:
        verify(path)
    try:
        file = h5py.File(path, "r", locking=False)
    except FileNotFoundError:
        raise
    except (OSError, RuntimeError) as error:
        raise CorruptFile(f"HDF5 cannot open it: {error}", str(path), FIX) from None
    with file:
        limit = os.fstat(file.id.get_vfd_handle()).st_size
        format = file.attrs.get("format")
        if format not in (FORMAT, FORMAT_1):
            what = f"its format is neither {FORMAT} nor {FORMAT_1}"
            raise CorruptFile(what, str(path), "read it with the version that wrote it")
        for id in ids:
            try:
                root = file["episodes"].id
                episode = decode(root, id, limit, format)
            except (ValueError, ArithmeticError, KeyError, TypeError, OSError, RuntimeError, AttributeError) as error:
                raise CorruptFile(f"episode {id} is not laid out as documented: {error}", str(path), FIX) from None
            yield episode
