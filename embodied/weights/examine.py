"""One pass over an array's bytes: their hash, and whether its numbers are good."""

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np
import xxhash
from numpy.typing import NDArray

_BLOCK = 2**21  # bytes: hashed and looked through while they are in the cache
_THREADS, _WORTH = 2, 2**25  # from so many bytes on, arrays are looked through in two threads
_EXPONENT = {"float16": np.uint16(0x7C00), "bfloat16": np.uint16(0x7F80)}  # all ones: infinite, or no number

T = TypeVar("T")
R = TypeVar("R")


def dtype_name(dtype: np.dtype[Any]) -> str:
    """Name of an array's dtype in a manifest. numpy has no bfloat16: arrays of uint16 hold its bits."""
    return "bfloat16" if dtype.name == "uint16" else dtype.name


def numpy_dtype(name: str) -> np.dtype[Any]:
    """Little-endian dtype of arrays whose dtype a manifest names; uint16 for bfloat16."""
    return np.dtype("uint16" if name == "bfloat16" else name).newbyteorder("<")


def each(task: Callable[[T], R], items: Iterable[T], arrays: Iterable[NDArray[Any]]) -> list[R]:
    """`task` of every item, in two threads where there is much to do; raises what the first of them raises."""
    if sum(array.nbytes for array in arrays) < _WORTH:
        return [task(item) for item in items]
    with ThreadPoolExecutor(_THREADS) as pool:
        return list(pool.map(task, items))


def examine(array: NDArray[Any], into: NDArray[Any] | None = None) -> tuple[str, str]:
    """Flaw of the numbers, empty for none, and their hash, in one pass; of the copy where there is an `into`."""
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
    return {name: (dtype_name(array.dtype), hash) for (name, array), hash in zip(tensors.items(), hashes, strict=True)}


def little_endian(array: NDArray[Any]) -> NDArray[Any]:
    """The array itself, or a copy in C order and little-endian; unlike `ascontiguousarray`, 0-d stays 0-d."""
    return np.asarray(array, dtype=array.dtype.newbyteorder("<"), order="C")


def _flaw(block: NDArray[np.uint8], dtype: np.dtype[Any]) -> str:
    if dtype.kind == "b":
        return "bytes that are no bool" if block.max() > 1 else ""
    exponent = _EXPONENT.get(dtype_name(dtype))
    if exponent is not None:  # numpy is slow at float16, and has no bfloat16
        good = bool(((block.view("<u2") & exponent) != exponent).all())
    elif dtype.kind != "f":
        return ""
    else:
        good = bool(np.isfinite(block.view(dtype)).all())
    return "" if good else "numbers that are not finite"
