"""Episodes from episode files, verified before HDF5 sees a byte of them."""

import io
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

import h5py
import numpy as np

from embodied.buffer.container import FIX, TruncatedFile, read_cut, read_index, verify
from embodied.buffer.decode import decode
from embodied.buffer.layout import FORMAT, FORMAT_1
from embodied.buffer.summary import EpisodeSummary, unpack_index
from embodied.episode import Episode, Track
from embodied.errors import CorruptFile

_FAULTS = (ValueError, ArithmeticError, KeyError, TypeError, OSError, RuntimeError, AttributeError)

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
            except _FAULTS as error:
                raise CorruptFile(f"episode {id} is not laid out as documented: {error}", str(path), FIX) from None
            yield episode


def readable(path: Path) -> tuple[list[EpisodeSummary], CorruptFile | None]:
    """Summaries of the episodes that can be read, and the damage of the file.

    A truncated file gives the episodes that lie before the cut. Only its head has a checksum then.

    Raises:
        FileNotFoundError: There is no such file.
    """
    try:
        return read_summaries(path), None
    except TruncatedFile as error:
        damage = error
    except CorruptFile as error:
        return [], error
    try:
        listed = unpack_index(read_cut(path)[0], path)
        whole = {episode.id for episode in read_whole(path, [summary.id for summary in listed])}
    except CorruptFile as error:
        return [], error
    what = f"truncated: {damage.what}; {len(whole)} of {len(listed)} episodes are whole"
    return [summary for summary in listed if summary.id in whole], CorruptFile(what, damage.where, damage.fix)


def listed_ids(path: Path) -> list[str]:
    """Ids in the index of a file, whether its body is whole or not; none where the index cannot be read."""
    try:
        return [summary.id for summary in unpack_index(read_cut(path)[0], path)]
    except (CorruptFile, FileNotFoundError):
        return []


def read_whole(path: Path, ids: Iterable[str]) -> Iterator[Episode]:
    """Those episodes of a truncated file that lie before the cut, in the order of `ids`.

    The missing bytes are filled in two ways; an episode that depends on them differs or cannot be read.
    """
    _, body, size = read_cut(path)
    bodies = [body.ljust(size, fill) for fill in (b"\0", b"\xff")]
    for id in ids:
        try:
            one, other = (_from_image(image, id) for image in bodies)
        except _FAULTS:
            continue
        if _same(one, other):
            yield one


def _from_image(image: bytes, id: str) -> Episode:
    with h5py.File(io.BytesIO(image), "r") as file:
        return decode(file["episodes"].id, id, len(image), str(file.attrs["format"]))


def _same(one: object, other: object) -> bool:
    """Whether two values, such as episodes, are equal to the bit in all arrays."""
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        return one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same(value, other[name]) for name, value in one.items())
    if isinstance(one, Episode | Track) and isinstance(other, Episode | Track):
        return _same(vars(one), vars(other))
    return one == other
