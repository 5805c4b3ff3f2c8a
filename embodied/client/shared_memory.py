"""Pictures are handed to a server on this machine in memory both see, instead of through a socket."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embodied.weights.shared import SharedBlock
from embodied.wire import shared_memory as lent
from embodied.wire.message import SMALL

_TURNS = 2  # whoever gave up an answer asks again without touching what the server may still look at


class Lender:
    """One client's memory; for requests of which one is under way at a time."""

    def __init__(self) -> None:
        self._block = SharedBlock()
        self._turn = 0

    def lend(self, arrays: Mapping[str, NDArray[Any]]) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        """What to add to the body, and the arrays that are still to be sent; see `embodied.wire.shared_memory`."""
        large = {
            name: array
            for name, array in arrays.items()
            if array.dtype == np.uint8 and array.nbytes > SMALL and name.startswith("stream/")
        }
        if not large:
            return {}, dict(arrays)
        size = sum(lent.aligned(array.nbytes) for array in large.values())
        name = self._block.room(_TURNS * size)
        if not name:
            return {}, dict(arrays)
        self._turn = (self._turn + 1) % _TURNS
        first = start = self._turn * size
        for array in large.values():
            self._block.bytes[start : start + array.nbytes].reshape(array.shape)[...] = array
            start += lent.aligned(array.nbytes)
        said = {"block": name, "block_bytes": self._block.bytes.size, "at": first, "lent": lent.write(large)}
        return said, {name: array for name, array in arrays.items() if name not in large}

    def close(self) -> None:
        self._block.close()
