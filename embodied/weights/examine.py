"""One pass over an array's bytes: their hash, and whether its numbers are good."""

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np
import xxhash
from numpy.typing import NDArray

_BLOCK = 2**21  # bytes: hashed and looked through while they are in the cache
_THREADS, _WORTH = 2, 2**25  # from so many bytes on, arrays are looked through in two threads
_HALF = np.uint16(0x7C00)  # exponent of a float16 that is infinite or no number

T = TypeVar("T")
R = TypeVar("R")


def each(task: Callable[[T], R], items: Iterable[T], arrays: Iterable[NDArray[Any]]) -> list[R]:
    """`task` of every item, in two threads where there is much to do; raises what the first of them raises."""
    if sum(array.nbytes for array in arrays) < _WORTH:
        return [task(item) for item in items]
    with ThreadPoolExecutor(_THREADS) as pool:
        return list(pool.map(task, items))


def examine(array: NDArray[Any], into: NDArray[Any] | None = None) -> tuple[str, str]:
    """What is wrong with the numbers, or nothing, and their hash, in one pass; of the copy where there is an `into`."""
    data = little_endian(array).reshape(-1).view(np.uint8)
    copy = None if into is None else into.reshape(-1).view(np.uint8)
    dtype, digest = array.dtype.newbyteorder("<"), xxhash.xxh3_128()
    for start in range(0, data.size, _BLOCK):
        block = data[start : start + _BLOCK]
        if copy is not None:
            np.copyto(copy[start : start + _BLOCK], block)
            block = copy[start : start + _BLOCK]
        digest.update(block.data)
        flaw = _flaw(block, dtype)
        if flaw:
            return flaw, ""
    return "", digest.hexdigest()


def fingerprints(tensors: Mapping[str, NDArray[Any]]) -> dict[str, tuple[str, str]]:
    """Name to dtype and hash, as in a manifest; the hash is empty where a number is not finite."""
    hashes = each(lambda array: examine(array)[1], tensors.values(), tensors.values())
    return {name: (array.dtype.name, hash) for (name, array), hash in zip(tensors.items(), hashes, strict=True)}


def little_endian(array: NDArray[Any]) -> NDArray[Any]:
    """The array itself, or a copy in C order and little-endian; unlike `ascontiguousarray`, 0-d stays 0-d."""
    return np.asarray(array, dtype=array.dtype.newbyteorder("<"), order="C")


def _flaw(block: NDArray[np.uint8], dtype: np.dtype[Any]) -> str:
    if dtype.kind == "b":
        return "bytes that are no bool" if block.max() > 1 else ""
    if dtype.kind != "f":
        return ""
    if dtype.itemsize == 2:  # numpy looks at these one by one
        good = bool(((block.view("<u2") & _HALF) != _HALF).all())
    else:
        good = bool(np.isfinite(block.view(dtype)).all())
    return "" if good else "numbers that are not finite"
