"""A version's content on its way: all arrays as one string of bytes, cut into chunks. No sockets.

The string is the arrays' little-endian C-order bytes in sorted order of their names, without gaps.
"""

from bisect import bisect_right
from collections.abc import Mapping
from itertools import accumulate
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from embodied.errors import InfrastructureError, MessageError
from embodied.weights.examine import little_endian
from embodied.weights.manifest import Tensor

CHUNK_BYTES = 2**20
_ALIGN = 64
RANGES = 1024
"""Ranges of missing chunks told at once; the rest is told when these have come."""


class BeginAgain(InfrastructureError):
    """The receiver does not hold what the sender thinks it does: another `begin` tells what is missing."""

    code = "begin_again"


def chunk_hash(data: NDArray[np.uint8]) -> str:
    """xxh3-64 hex digest of contiguous bytes."""
    return xxhash.xxh3_64_hexdigest(data.data)


def chunk_count(nbytes: int, chunk_bytes: int) -> int:
    return -(-nbytes // chunk_bytes)


def empty(tensors: Mapping[str, Tensor]) -> dict[str, NDArray[Any]]:
    """Arrays of a manifest's names, shapes and dtypes, to be filled; aligned, in one piece of memory."""
    starts = list(accumulate((-(-tensor.nbytes // _ALIGN) * _ALIGN for tensor in tensors.values()), initial=0))
    memory = np.empty(starts[-1], np.uint8)
    return {
        name: memory[start : start + tensor.nbytes].view(tensor.dtype).reshape(tensor.shape)
        for (name, tensor), start in zip(tensors.items(), starts, strict=False)
    }


def views(content: NDArray[np.uint8], tensors: Mapping[str, Tensor]) -> dict[str, NDArray[Any]]:
    """A manifest's arrays as views of their content, uint8 [bytes of all tensors]; they may be unaligned."""
    found, start = {}, 0
    for name, tensor in sorted(tensors.items()):
        dtype = np.dtype(tensor.dtype).newbyteorder("<")
        found[name] = content[start : start + tensor.nbytes].view(dtype).reshape(tensor.shape)
        start += tensor.nbytes
    return found


class Content:
    """Arrays as one string of bytes.

    Args:
        arrays: Any; they are read and written where they are if contiguous.

    Attributes:
        nbytes: Of the string.
    """

    def __init__(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        flat = [little_endian(array).reshape(-1).view(np.uint8) for _, array in sorted(arrays.items())]
        self._flat = [array for array in flat if array.size]
        ends = list(accumulate((array.size for array in self._flat), initial=0))
        self._starts, self.nbytes = ends[:-1], ends[-1]

    def read(self, start: int, stop: int) -> NDArray[np.uint8]:
        """Bytes [start, stop): a view where they lie in one array, else a copy."""
        parts = self._parts(start, stop)
        return parts[0] if len(parts) == 1 else np.concatenate([np.empty(0, np.uint8), *parts])

    def write(self, start: int, data: NDArray[np.uint8]) -> None:
        """Set the bytes from `start` on."""
        for part in self._parts(start, start + data.size):
            part[:] = data[: part.size]
            data = data[part.size :]

    def _parts(self, start: int, stop: int) -> list[NDArray[np.uint8]]:
        parts: list[NDArray[np.uint8]] = []
        at = bisect_right(self._starts, start) - 1
        while start < stop:
            begin, array = self._starts[at], self._flat[at]
            parts.append(array[start - begin : stop - begin])
            start, at = begin + array.size, at + 1
        return parts


class Inbox:
    """Arrays that are filled chunk by chunk, in any order.

    Args:
        arrays: To be filled, owned and contiguous.
        chunk_bytes: Length of every chunk but the last.
    """

    def __init__(self, arrays: Mapping[str, NDArray[Any]], chunk_bytes: int) -> None:
        self.arrays, self.chunk_bytes = arrays, chunk_bytes
        self._content = Content(arrays)
        self._got = np.zeros(chunk_count(self._content.nbytes, chunk_bytes), np.bool_)

    @property
    def chunks(self) -> int:
        return len(self._got)

    @property
    def received(self) -> int:
        """Chunks that have arrived."""
        return int(self._got.sum())

    @property
    def complete(self) -> bool:
        return bool(self._got.all())

    def missing(self) -> list[tuple[int, int]]:
        """The first `RANGES` ranges [first, end) of chunks that have not arrived."""
        edges = np.flatnonzero(np.diff(np.concatenate([[True], self._got, [True]]).astype(np.int8)))
        return [(int(first), int(end)) for first, end in edges.reshape(-1, 2)[:RANGES]]

    def put(self, index: object, digest: object, data: NDArray[np.uint8]) -> None:
        """Keep a chunk; one that has arrived already is left as it is.

        Args:
            index: Of the chunk.
            digest: Its `chunk_hash`, as the sender says.
            data: uint8 [bytes].

        Raises:
            MessageError: No such chunk, or its length or hash differs; nothing is kept.
        """
        if type(index) is not int or not 0 <= index < self.chunks:
            raise MessageError(f"chunk {str(index)[:20]} of {self.chunks}", "push", "send the chunks that are missing")
        start = index * self.chunk_bytes
        wanted = min(self.chunk_bytes, self._content.nbytes - start)
        if data.shape != (wanted,):
            raise MessageError(f"chunk {index} has shape {data.shape}, not ({wanted},)", "push", "send whole chunks")
        if self._got[index]:
            return
        if chunk_hash(data) != digest:
            raise MessageError(f"chunk {index} arrived damaged", "push", "send it again")
        self._content.write(start, data)
        self._got[index] = True
