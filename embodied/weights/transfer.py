"""A version's content as ranges of bytes. No sockets.

The content is the arrays' little-endian C-order bytes in sorted order of their names, without gaps.
"""

from bisect import bisect_right
from collections.abc import Mapping
from itertools import accumulate
from typing import Any, Protocol

import numpy as np
import xxhash
from numpy.typing import NDArray

from embodied.errors import MessageError
from embodied.weights.examine import little_endian, numpy_dtype
from embodied.weights.manifest import Manifest, Tensor

RANGE_BYTES = 2**20
"""Bytes of one range at most."""
_ALIGN = 64


def range_hash(data: NDArray[np.uint8]) -> str:
    """xxh3-64 hex digest of contiguous bytes."""
    return xxhash.xxh3_64_hexdigest(data.data)


def empty(tensors: Mapping[str, Tensor]) -> dict[str, NDArray[Any]]:
    """Arrays of a manifest's names, shapes and dtypes, to be filled; aligned, in one piece of memory."""
    starts = list(accumulate((-(-tensor.nbytes // _ALIGN) * _ALIGN for tensor in tensors.values()), initial=0))
    memory = np.empty(starts[-1], np.uint8)
    return {
        name: memory[start : start + tensor.nbytes].view(numpy_dtype(tensor.dtype)).reshape(tensor.shape)
        for (name, tensor), start in zip(tensors.items(), starts, strict=False)
    }


def views(content: NDArray[np.uint8], tensors: Mapping[str, Tensor]) -> dict[str, NDArray[Any]]:
    """A manifest's arrays as views of their content, uint8 [bytes of all tensors]; they may be unaligned."""
    found, start = {}, 0
    for name, tensor in sorted(tensors.items()):
        found[name] = content[start : start + tensor.nbytes].view(numpy_dtype(tensor.dtype)).reshape(tensor.shape)
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

    def read(self, offset: int, size: int) -> NDArray[np.uint8]:
        """Bytes [size] from `offset` on: a view where they lie in one array, else a copy."""
        parts = self._parts(offset, offset + size)
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


class RangeReader(Protocol):
    """Reads ranges of one version's content: a file, a copy, or the arrays of a learner."""

    def read(self, offset: int, size: int) -> NDArray[np.uint8]:
        """Bytes [size] from `offset` on, which lie within the content.

        Raises:
            Busy: They are not ready yet.
            EmbodiedError: They cannot be read.
        """
        ...


def read_range(
    source: RangeReader, manifest: Manifest, body: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """Body and arrays of the `range` message that answers a `fetch`.

    Args:
        source: Of the manifest's content.
        body: Of the `fetch`: `version`, `offset`, `size`.

    Raises:
        MessageError: It names no range of 1 to `RANGE_BYTES` bytes within the content.
        EmbodiedError: As `RangeReader.read`.
    """
    offset, size, nbytes = body.get("offset"), body.get("size"), manifest.nbytes
    whole = type(offset) is int and type(size) is int
    if not (whole and offset >= 0 and 0 < size <= min(RANGE_BYTES, nbytes - offset)):  # type: ignore[operator]
        given = f"offset {str(offset)[:20]}, size {str(size)[:20]} of {nbytes} bytes"
        raise MessageError(f"no range: {given}", "fetch", f"ask for 1 to {RANGE_BYTES} bytes within the content")
    assert isinstance(offset, int) and isinstance(size, int)
    data = source.read(offset, size)
    return {"version": manifest.label, "offset": offset, "hash": range_hash(data)}, {"data": data}
