"""Messages of openpi: msgpack with numpy arrays as maps whose keys are bytes, in both directions, without pickle.

An array is `{b"__ndarray__": True, b"data": bytes, b"dtype": str, b"shape": [...]}`, a numpy number or string
`{b"__npgeneric__": True, b"data": value, b"dtype": str}`. A received message is checked against `Limits`.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgpack
import numpy as np

from embodied.errors import MessageError

ARRAY, SCALAR = b"__ndarray__", b"__npgeneric__"
_DTYPE = re.compile(r"[<>=|]?(\?|b1|[iu][1248]|f[248])")
_TEXT = re.compile(r"[<>=|]?[US][0-9]{1,5}")
_WHERE = "openpi message"


@dataclass(frozen=True)
class Limits:
    """Limits that a receiver enforces; sizes in bytes.

    Attributes:
        total: Length of a message.
        items: Entries of one map or list.
        depth: Maps and lists within one another.
        text: Length of one string.
        ndim: Axes of one array.
    """

    total: int = 1 << 26
    items: int = 1024
    depth: int = 8
    text: int = 1 << 16
    ndim: int = 8


LIMITS = Limits()


def encode(message: Mapping[str, Any]) -> bytes:
    """Pack a message of plain values, numpy arrays and numpy numbers, maps and lists of them.

    Raises:
        MessageError: The message holds another type.
    """
    try:
        return msgpack.packb(message, default=_wrap)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise MessageError(f"cannot be packed: {error}", _WHERE, "send plain values and numpy arrays") from None


def decode(data: bytes, limits: Limits = LIMITS) -> dict[str, Any]:
    """Unpack a message; its arrays are read-only views of `data`, its keys strings.

    Raises:
        MessageError: `data` is malformed, or outside `limits`.
    """
    if len(data) > limits.total:
        raise MessageError(f"a message of {len(data)} bytes", _WHERE, f"at most {limits.total}")
    try:
        message = msgpack.unpackb(
            data,
            strict_map_key=True,
            max_str_len=limits.text,
            max_bin_len=limits.total,
            max_array_len=limits.items,
            max_map_len=limits.items,
            max_ext_len=0,
            ext_hook=_no_extension,
            object_hook=_unwrap(limits),
        )
    except MessageError:
        raise
    except (ValueError, TypeError, RecursionError, msgpack.UnpackException) as error:
        what = f"not msgpack within limits: {str(error) or type(error).__name__}"
        raise MessageError(what, _WHERE, "send one binary msgpack map, as openpi's client does") from None
    if not isinstance(message, dict):
        raise MessageError(f"a {type(message).__name__}, not a map", _WHERE, "send a map of keys to values")
    _check(message, limits)
    return message


def _wrap(value: Any) -> dict[bytes, Any]:
    if isinstance(value, np.ndarray | np.generic):
        if not _DTYPE.fullmatch(value.dtype.str) and not (isinstance(value, np.generic) and value.dtype.kind in "US"):
            raise TypeError(f"dtype {value.dtype}")
        if isinstance(value, np.ndarray):
            shape = list(value.shape)
            return {ARRAY: True, b"data": value.tobytes(), b"dtype": value.dtype.str, b"shape": shape}
        return {SCALAR: True, b"data": value.item(), b"dtype": value.dtype.str}
    raise TypeError(f"a {type(value).__name__}")


def _unwrap(limits: Limits) -> Any:
    def hook(node: dict[Any, Any]) -> Any:
        if ARRAY in node:
            return _array(node, limits)
        if SCALAR in node:
            return _scalar(node)
        if any(type(key) is not str for key in node):
            raise MessageError("a map with a key that is no string", _WHERE, "use string keys")
        return node

    return hook


def _array(node: Mapping[Any, Any], limits: Limits) -> Any:
    data, dtype, shape = (node.get(key) for key in (b"data", b"dtype", b"shape"))
    if type(dtype) is not str or not _DTYPE.fullmatch(dtype):
        raise MessageError(f"an array of dtype {str(dtype)[:20]!r}", _WHERE, "send numbers: bool, int, uint or float")
    if type(data) is not bytes or type(shape) is not list or len(shape) > limits.ndim:
        raise MessageError(f"an array without data or a shape of up to {limits.ndim} axes", _WHERE, "send both")
    kind = np.dtype(dtype)
    size = kind.itemsize
    for n in shape:
        if type(n) is not int or n < 0:
            raise MessageError("an array's shape holds what is no count", _WHERE, "send integers from 0")
        size *= n or 1  # numpy refuses a shape whose other axes overflow, even beside a zero
    if size > limits.total or math.prod(shape) * kind.itemsize != len(data):
        raise MessageError(f"an array of {dtype} {shape} with {len(data)} bytes", _WHERE, "send whole arrays")
    array = np.frombuffer(data, kind).reshape(shape)
    if kind.kind == "b" and array.size and array.view(np.uint8).max() > 1:
        raise MessageError("an array of bool holds other bytes than 0 and 1", _WHERE, "send 0 and 1 only")
    return array


def _scalar(node: Mapping[Any, Any]) -> Any:
    """Numpy number; a numpy string becomes a plain one."""
    data, dtype = node.get(b"data"), node.get(b"dtype")
    if type(dtype) is str and _TEXT.fullmatch(dtype) and type(data) is str:
        return data
    if type(dtype) is not str or not _DTYPE.fullmatch(dtype) or type(data) not in (bool, int, float):
        raise MessageError(f"a number of dtype {str(dtype)[:20]!r}", _WHERE, "send bool, int, uint, float or str")
    try:
        with np.errstate(over="ignore"):
            return np.dtype(dtype).type(data)
    except (OverflowError, ValueError):
        raise MessageError(f"a number that is no {dtype}", _WHERE, "send one that fits its dtype") from None


def _no_extension(code: int, data: bytes) -> None:
    raise ValueError(f"extension type {code}")


def _check(message: dict[str, Any], limits: Limits) -> None:
    """Check the nesting; msgpack has bounded the other sizes."""
    level: list[Any] = [message]
    for _ in range(limits.depth):
        below = [v for node in level for v in (node.values() if type(node) is dict else node)]
        level = [value for value in below if type(value) in (dict, list)]
        if not level:
            return
    raise MessageError("maps nested too deeply", _WHERE, f"at most {limits.depth} levels")
