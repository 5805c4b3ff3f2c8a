"""Messages of GR00T over ZeroMQ: msgpack maps whose arrays are the bytes of `numpy.save`.

Nothing is unpickled or evaluated: the header of an array is matched against the form that `numpy.save` writes, and its
shape against the bytes received, before the array is made.
"""

import io
import json
import math
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgpack
import numpy as np
from numpy.typing import NDArray

from embodied.errors import MessageError
from embodied.gateways.groot.scan import check_values

Generation = Literal["n1.5", "n1.6"]
GENERATIONS: tuple[Generation, ...] = ("n1.5", "n1.6")

ENDPOINTS = ("ping", "get_action", "reset", "get_modality_config", "kill")
PONG = {"status": "ok", "message": "Server is running"}
UNAUTHORIZED = "Unauthorized: Invalid API token"

_ITEMS = 4096  # entries of one list or map
_DEPTH = 8
_VALUES = 16384  # of one message, keys included
_TEXT = 1 << 16
_NDIM = 8
_HEADER = 1024  # bytes of an array's header
_NPY = re.compile(
    rb"\{\s*'descr':\s*'([<>|=]?(?:b1|[ui][1248]|f[248]|U\d{1,4}))',\s*'fortran_order':\s*(True|False),"
    rb"\s*'shape':\s*\(([\d,\s]{0,200})\),?\s*\}\s*"
)
_SIZES = re.compile(rb"\s*(?:\d{1,15}\s*,\s*)*(?:\d{1,15}\s*,?\s*)?")


@dataclass(frozen=True)
class ModalityConfig:
    """Arrays that a server expects or gives of one modality.

    Attributes:
        delta_indices: Steps relative to the current one.
        modality_keys: Names of the arrays.
    """

    delta_indices: Sequence[int]
    modality_keys: Sequence[str]


@dataclass(frozen=True)
class Request:
    """Request of a client.

    Attributes:
        endpoint: Any text; `get_action` where the client named none.
        data: Data of the request, unchecked.
        token: The client's `api_token`, or empty.
    """

    endpoint: str
    data: Any
    token: str


def pack(value: Any, generation: Generation = "n1.6") -> bytes:
    """Pack a message of plain values, arrays and modality configurations.

    Raises:
        MessageError: It holds another type, such as a numpy scalar or an array of objects.
    """

    def default(item: Any) -> dict[str, Any]:
        if isinstance(item, np.ndarray):
            return {"__ndarray_class__": True, "as_npy": _save(item)}
        if isinstance(item, ModalityConfig):
            fields = {"delta_indices": list(item.delta_indices), "modality_keys": list(item.modality_keys)}
            return {"__ModalityConfig_class__": True, "as_json": json.dumps(fields) if generation == "n1.5" else fields}
        raise TypeError(f"{type(item).__name__} is neither plain nor an array")

    try:
        packed: bytes = msgpack.packb(value, default=default)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise MessageError(f"cannot be packed: {error}", "GR00T message", "send plain values and arrays") from None
    return packed


def unpack(data: bytes | memoryview) -> Any:
    """Unpack a message of `pack`, of either generation; arrays are read-only views of its bytes.

    Raises:
        MessageError: The message is malformed.
    """
    check_values(data, _VALUES, "GR00T message")
    try:
        value = msgpack.unpackb(
            data,
            strict_map_key=True,
            max_str_len=_TEXT,
            max_array_len=_ITEMS,
            max_map_len=_ITEMS,
            max_ext_len=0,
        )
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise _malformed(f"not msgpack within limits: {str(error) or type(error).__name__}") from None
    return _revive(value, _DEPTH)


def request(endpoint: str, data: Any = None, token: str = "") -> dict[str, Any]:
    """Map that a client sends; without `data` where it is None."""
    return {
        "endpoint": endpoint,
        **({} if data is None else {"data": data}),
        **({"api_token": token} if token else {}),
    }


def read_request(data: bytes | memoryview) -> Request:
    """Request in a message.

    Raises:
        MessageError: The message is no request.
    """
    fields = unpack(data)
    if type(fields) is not dict:
        raise _malformed("a request that is no map")
    endpoint, token = fields.get("endpoint", "get_action"), fields.get("api_token", "")
    if type(endpoint) is not str:
        raise _malformed("an endpoint that is no text")
    return Request(endpoint, fields.get("data"), token if type(token) is str else "")


def generation_of(data: Any) -> Generation:
    """Generation of the client that sent this data with `get_action`."""
    return "n1.6" if type(data) is dict and "observation" in data else "n1.5"


def load(data: bytes) -> NDArray[Any]:
    """Array in the bytes of `numpy.save`, as a read-only view.

    Raises:
        MessageError: The bytes are malformed, hold another dtype than numbers, bool or text, or do not fit the shape.
    """
    if data[:6] != b"\x93NUMPY" or len(data) < 12 or data[6] not in (1, 2, 3):
        raise _malformed("an array that numpy.save did not write")
    width = 2 if data[6] == 1 else 4
    start = 8 + width
    length = int.from_bytes(data[8:start], "little")
    if length > _HEADER or start + length > len(data):
        raise _malformed(f"an array whose header has {length} bytes")
    found = _NPY.fullmatch(data, start, start + length)
    if found is None or _SIZES.fullmatch(found[3]) is None:
        raise _malformed("an array of another dtype than numbers, bool or text, or without a shape")
    shape = tuple(int(n) for n in found[3].split(b",") if n.strip())
    dtype = np.dtype(found[1].decode())
    if len(shape) > _NDIM or dtype.itemsize == 0:
        raise _malformed(f"an array of {len(shape)} axes and {dtype.itemsize} bytes per item")
    wanted, given = math.prod(n or 1 for n in shape) * dtype.itemsize, len(data) - start - length
    if wanted > sys.maxsize or math.prod(shape) * dtype.itemsize != given:
        raise _malformed(f"an array of {given} bytes whose shape {shape} needs another number")
    if dtype.kind == "b" and given and np.frombuffer(data, np.uint8, offset=start + length).max() > 1:
        raise _malformed("an array of bytes that are no bool")
    array = np.frombuffer(data, dtype, offset=start + length) if given else np.empty(0, dtype)
    array = array.reshape(shape, order="F" if found[2] == b"True" else "C")
    array.flags.writeable = False
    return array


def _save(array: NDArray[Any]) -> bytes:
    if array.dtype.kind not in "buifU":
        raise TypeError(f"an array of {array.dtype}")
    file = io.BytesIO()
    np.save(file, array, allow_pickle=False)
    return file.getvalue()


def _revive(value: Any, depth: int) -> Any:
    if type(value) not in (dict, list):
        return value
    if depth == 0:
        raise _malformed(f"nested more than {_DEPTH} deep")
    if type(value) is list:
        return [_revive(item, depth - 1) for item in value]
    if any(type(key) is not str for key in value):
        raise _malformed("a key that is no text")
    if "__ndarray_class__" in value:
        saved = value.get("as_npy")
        if type(saved) is not bytes:
            raise _malformed("an array without as_npy")
        return load(saved)
    if "__ModalityConfig_class__" in value:
        return _modality(value.get("as_json"))
    return {key: _revive(item, depth - 1) for key, item in value.items()}


def _modality(fields: Any) -> ModalityConfig:
    if type(fields) is str:
        try:
            fields = json.loads(fields)
        except (ValueError, RecursionError):
            raise _malformed("a modality configuration that is no JSON") from None
    indices, keys = (fields.get(name) if type(fields) is dict else None for name in ("delta_indices", "modality_keys"))
    if type(indices) is not list or type(keys) is not list:
        raise _malformed("a modality configuration without delta_indices and modality_keys")
    if any(type(n) is not int for n in indices) or any(type(key) is not str for key in keys):
        raise _malformed("a modality configuration whose indices are no integers or keys no text")
    return ModalityConfig(indices, keys)


def _malformed(what: str) -> MessageError:
    return MessageError(what, "GR00T message", "send msgpack maps with arrays of numpy.save")
