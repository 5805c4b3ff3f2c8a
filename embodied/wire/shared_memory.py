"""Announcement of a message's images in memory shared with a server on this machine.

The fields of the body are `block`, the memory's name; `block_bytes`, its length; `at`, the offset of the first image;
and `arrays`, the images: `name|shape` of each uint8 array, in order, each starting at a multiple of 64 bytes.
"""

import math
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from numpy.typing import NDArray

from embodied.errors import MessageError
from embodied.wire.header import Entry
from embodied.wire.limits import LIMITS

_ALIGN = 64
_WHERE = "images in shared memory"
_FIX = "run the same version on both sides"


def write(arrays: Mapping[str, NDArray[Any]]) -> str:
    """Announcement of uint8 arrays."""
    return ";".join(f"{name}|{','.join(map(str, array.shape))}" for name, array in arrays.items())


@lru_cache(maxsize=256)
def read(text: str) -> tuple[tuple[Entry, ...], tuple[int, ...], int]:
    """Arrays of an announcement, the offset of each, and the end of the last.

    Raises:
        MessageError: The announcement is malformed, or larger than a message may be.
    """
    entries, starts, end = [], [], 0
    for part in text.split(";"):
        name, bar, sizes = part.partition("|")
        words = sizes.split(",")
        if not bar or not 0 < len(name) <= LIMITS.name or len(words) > LIMITS.ndim:
            raise MessageError("no announcement of arrays", _WHERE, _FIX)
        if not all(word.isascii() and word.isdecimal() and len(word) < 10 for word in words):
            raise MessageError("an array without a shape", _WHERE, _FIX)
        shape = tuple(map(int, words))
        starts.append(end)
        end += aligned(math.prod(shape))
        entries.append((name, "uint8", shape))
        if end > LIMITS.total_bytes:
            raise MessageError(f"arrays of {end} bytes", _WHERE, f"at most {LIMITS.total_bytes} per message")
    if len({name for name, _, _ in entries}) != len(entries):
        raise MessageError("an array's name is used twice", _WHERE, _FIX)
    return tuple(entries), tuple(starts), end


def aligned(size: int) -> int:
    """Smallest multiple of 64 that is not below `size`."""
    return size + -size % _ALIGN
