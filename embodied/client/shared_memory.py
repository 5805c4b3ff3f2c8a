"""Shared-memory transport, client side: images for a server on this machine travel in memory, not over a socket."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embodied.weights.shared import SharedBlock
from embodied.wire import shared_memory as layout
from embodied.wire.message import SMALL

_TURNS = 2  # blocks in turn: after a missed deadline the server may still read the last one


class SharedMemoryWriter:
    """Shared memory of one client, for one request under way at a time."""

    def __init__(self) -> None:
        self._block = SharedBlock()
        self._turn = 0

    def write(self, arrays: Mapping[str, NDArray[Any]]) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        """Write the large images into memory; returns their announcement for the body, and the arrays still to send.

        See `embodied.wire.shared_memory`.
        """
        large = {
            name: array
            for name, array in arrays.items()
            if array.dtype == np.uint8 and array.nbytes > SMALL and name.startswith("stream/")
        }
        if not large:
            return {}, dict(arrays)
        size = sum(layout.aligned(array.nbytes) for array in large.values())
        name = self._block.room(_TURNS * size)
        if not name:
            return {}, dict(arrays)
        self._turn = (self._turn + 1) % _TURNS
        first = start = self._turn * size
        for array in large.values():
            self._block.bytes[start : start + array.nbytes].reshape(array.shape)[...] = array
            start += layout.aligned(array.nbytes)
        said = {"block": name, "block_bytes": self._block.bytes.size, "at": first, "arrays": layout.write(large)}
        return said, {name: array for name, array in arrays.items() if name not in large}

    def close(self) -> None:
        self._block.close()
