"""Named arrays as one run of bytes and a table of what lies where."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embodied.errors import DataError

Table = list[list[Any]]


def pack_arrays(arrays: Mapping[str, NDArray[Any]]) -> tuple[Table, bytes]:
    """A table of [name, dtype, shape], and the bytes of the arrays one after the other."""
    table = [[name, value.dtype.str, list(value.shape)] for name, value in arrays.items()]
    return table, b"".join(np.ascontiguousarray(value).tobytes() for value in arrays.values())


def unpack_arrays(table: Any, data: bytes | memoryview) -> dict[str, NDArray[Any]]:
    """Copies of the arrays that `pack_arrays` packed.

    Raises:
        DataError: The table and the bytes do not fit each other; found before anything is allocated.
    """
    arrays: dict[str, NDArray[Any]] = {}
    position = 0
    try:
        for name, kind, shape in table:
            dtype = np.dtype(str(kind))
            if dtype.kind not in "biuf" or any(not isinstance(n, int) or n < 0 for n in shape):
                raise ValueError(f"array {name} of {kind} {shape}")
            end = position + dtype.itemsize * math.prod(shape)
            if end > len(data):
                raise ValueError(f"array {name} ends at byte {end} of {len(data)}")
            arrays[str(name)] = np.frombuffer(data[position:end], dtype).reshape(shape).copy()
            position = end
        if position != len(data):
            raise ValueError(f"{len(data) - position} bytes too many")
    except (TypeError, ValueError, OverflowError) as error:
        raise DataError(f"packed arrays are damaged: {error}") from None
    return arrays
