"""One message: a msgpack header frame, then one raw little-endian frame per array.

The header holds `v, kind, id, session, policy, deadline_ms, arrays [[name, dtype, shape]], body`. What arrives is
checked against `Limits` before anything is allocated for it, and whatever is wrong with it is a `MessageError`.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import msgpack
import numpy as np
from numpy.typing import NDArray

from embodied.errors import MessageError

PROTOCOL = 1
KINDS = frozenset([
    "hello", "act", "reset", "step", "outcome", "segment", "push", "credit", "point", "ack", "status", "heartbeat",
    "error", "bye",
])  # fmt: skip
DTYPES = {name: np.dtype(name).newbyteorder("<") for name in ("float32", "float64", "uint8", "int32", "int64", "bool")}
_NAMES = {np.dtype(name): name for name in DTYPES}  # `dtype.name` is slow

_NATIVE = {name: np.dtype(name) for name in DTYPES}
_SIZES = {name: kind.itemsize for name, kind in DTYPES.items()}
_FIELDS = (
    ("kind", str), ("id", int), ("session", str), ("policy", str), ("deadline_ms", int), ("arrays", list),
    ("body", dict),
)  # fmt: skip
_KNOWN, _KNOWN_ARRAYS, _KNOWN_BYTES = 256, 64, 4096  # announcements found right that are remembered, and how large

Buffer = bytes | memoryview


@dataclass(frozen=True)
class Limits:
    """What a receiver takes; a sender with the same limits finds out before it sends.

    ZeroMQ itself bounds one frame (`MAXMSGSIZE`, set to `frame_bytes`) and the number of queued messages, but not the
    number of frames of one message, so a listener is open to this machine or to peers with keys only.

    Attributes:
        header_bytes: Length of the header frame.
        frame_bytes: Length of one array.
        total_bytes: Length of all arrays of a message.
        arrays: Number of arrays.
        ndim: Axes of one array.
        items: Entries of one list or map in the header.
        depth: Nesting of the body. A hostile header makes msgpack reserve at most 1024 * `items` * 8 bytes before
            this is looked at.
        text: Bytes of one string or byte string in the header.
        name: Characters of a name: array, session, policy.
    """

    header_bytes: int = 1 << 22
    frame_bytes: int = 1 << 28
    total_bytes: int = 1 << 30
    arrays: int = 4096
    ndim: int = 8
    items: int = 4096
    depth: int = 16
    text: int = 1 << 16
    name: int = 512


LIMITS = Limits()


@dataclass
class Message:
    """What two stations say to each other.

    Attributes:
        kind: One of `KINDS`.
        id: Number of the request, 0 to 2^63 - 1; an answer repeats it. 0 for what expects no answer.
        session: The client's name for itself.
        policy: Name of the policy concerned, or empty.
        deadline_ms: How long after sending the answer is of use; 0 for no limit. A duration, since clocks differ.
        body: Plain values: None, bool, int, float, str, bytes, and lists and string-keyed dictionaries of them.
        arrays: Name to array of a dtype in `DTYPES`.
    """

    kind: str
    id: int = 0
    session: str = ""
    policy: str = ""
    deadline_ms: int = 0
    body: dict[str, Any] = field(default_factory=dict)
    arrays: dict[str, NDArray[Any]] = field(default_factory=dict)


@dataclass
class Header:
    """A checked header: a message whose arrays are only announced, as (name, dtype, shape)."""

    message: Message
    arrays: list[tuple[str, str, tuple[int, ...]]]


_known: dict[tuple[bytes, Limits], list[tuple[str, str, tuple[int, ...]]]] = {}


def encode(message: Message, limits: Limits = LIMITS) -> list[Buffer]:
    """The frames of a message. Array frames are views of contiguous arrays, which must not change until sent.

    Raises:
        MessageError: The message is outside `limits`, of an unknown kind, or holds what msgpack cannot carry.
    """
    frames: list[Buffer] = []
    entries: list[tuple[str, str, tuple[int, ...]]] = []
    for name, value in message.arrays.items():
        dtype = _NAMES.get(value.dtype) or value.dtype.name
        if dtype not in DTYPES:
            raise MessageError(f"array {name} has dtype {dtype}", _where(message), f"send one of {', '.join(DTYPES)}")
        array = np.asarray(value, DTYPES[dtype], order="C")
        entries.append((name, dtype, array.shape))
        frames.append(array.reshape(-1).view(np.uint8).data)
    fields = {
        "v": PROTOCOL,
        "kind": message.kind,
        "id": message.id,
        "session": message.session,
        "policy": message.policy,
        "deadline_ms": message.deadline_ms,
        "arrays": entries,
        "body": message.body,
    }
    _check_fields(fields, limits)
    _check_written(tuple(entries), limits)
    try:
        header: bytes = msgpack.packb(fields)
    except (TypeError, ValueError, OverflowError) as error:
        raise MessageError(f"cannot be packed: {error}", _where(message), "send plain values only") from None
    if len(header) > limits.header_bytes:
        raise MessageError(f"header of {len(header)} bytes", _where(message), f"at most {limits.header_bytes}")
    return [header, *frames]


def decode(frames: Sequence[Buffer], limits: Limits = LIMITS) -> Message:
    """The message that frames hold. Its arrays are owned, writable, contiguous copies.

    Raises:
        MessageError: Anything is malformed or outside `limits`.
    """
    if not frames:
        raise MessageError("a message without frames", "header", "send a header frame first")
    return decode_arrays(decode_header(frames[0], limits), frames[1:])


def decode_header(frame: Buffer, limits: Limits = LIMITS) -> Header:
    """Check everything that a header says, the sizes of its arrays included; see `decode`."""
    size = memoryview(frame).nbytes
    if size > limits.header_bytes:
        raise MessageError(f"header of {size} bytes", "header", f"at most {limits.header_bytes}")
    try:
        fields = msgpack.unpackb(
            frame,
            strict_map_key=True,
            max_str_len=limits.text,
            max_bin_len=limits.text,
            max_array_len=limits.items,
            max_map_len=limits.items,
            max_ext_len=0,
            ext_hook=_no_extensions,
        )
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise MessageError(f"header is not msgpack within limits: {error}", "header", "send a header map") from None
    if not isinstance(fields, dict) or fields.get("v") != PROTOCOL:
        spoken = fields.get("v") if isinstance(fields, dict) else None
        raise MessageError(
            f"peer speaks protocol {str(spoken)[:20]}, this side {PROTOCOL}",
            "header",
            "run the same version on both sides",
        )
    _check_fields(fields, limits)
    message = Message(
        fields["kind"], fields["id"], fields["session"], fields["policy"], fields["deadline_ms"], fields["body"]
    )
    return Header(message, _check_read(fields["arrays"], limits))


def decode_arrays(header: Header, frames: Sequence[Buffer], view_bytes: int | None = None) -> Message:
    """Fill a checked header's arrays from its frames; see `decode`.

    Args:
        header: Of the message.
        frames: Its arrays.
        view_bytes: Arrays of this size and more are read-only views of their frames where they are aligned, for a
            receiver that copies them anyway. None copies all.
    """
    if len(frames) != len(header.arrays):
        raise MessageError(
            f"{len(frames)} array frames for {len(header.arrays)} announced arrays",
            _where(header.message),
            "send one per array",
        )
    for (name, dtype, shape), frame in zip(header.arrays, frames, strict=True):
        wanted, given = math.prod(shape) * _SIZES[dtype], memoryview(frame).nbytes
        if wanted != given:
            raise MessageError(
                f"array {name} has {given} bytes, {dtype} {shape} needs {wanted}",
                _where(header.message),
                "send whole arrays",
            )
    arrays = {}
    for (name, dtype, shape), frame in zip(header.arrays, frames, strict=True):
        view = np.frombuffer(frame, DTYPES[dtype])
        if dtype == "bool" and view.size and view.view(np.uint8).max() > 1:
            raise MessageError(
                f"array {name} holds bytes that are no bool", _where(header.message), "send 0 and 1 only"
            )
        if view_bytes is not None and view.nbytes >= view_bytes and view.flags.aligned and DTYPES[dtype].isnative:
            view.flags.writeable = False
        else:
            view = view.astype(_NATIVE[dtype])
        arrays[name] = view.reshape(shape)
    header.message.arrays = arrays
    return header.message


def _where(message: Message) -> str:
    return f"{message.kind} message {message.id}"


def _check_fields(fields: Mapping[str, Any], limits: Limits) -> None:
    """Check a header's fields but for the announced arrays, on both sides alike."""
    for name, kind in _FIELDS:
        if type(fields.get(name)) is not kind:
            raise MessageError(f"header field {name} is no {kind.__name__}", "header", "send every field with its type")
    if fields["kind"] not in KINDS:
        raise MessageError(
            f"unknown message kind {fields['kind'][:20]!r}", "header", f"known: {', '.join(sorted(KINDS))}"
        )
    for name in ("id", "deadline_ms"):
        if not 0 <= fields[name] < 1 << 63:
            raise MessageError(f"header field {name} is out of range", "header", "send 0 to 2^63 - 1")
    for name in ("session", "policy"):
        if len(fields[name]) > limits.name:
            raise MessageError(f"header field {name} is too long", "header", f"at most {limits.name} characters")
    _check_body(fields["body"], limits)


def _check_read(entries: list[Any], limits: Limits) -> list[tuple[str, str, tuple[int, ...]]]:
    """Check the announced arrays of a header that came in. A client announces the same ones again and again."""
    if len(entries) > _KNOWN_ARRAYS:
        return _check_entries(entries, limits)
    try:
        packed: bytes = msgpack.packb(entries)  # unlike the values, bytes tell 1 from 1.0 and True
    except (TypeError, ValueError, OverflowError):
        return _check_entries(entries, limits)
    if len(packed) > _KNOWN_BYTES:
        return _check_entries(entries, limits)
    known = _known.get((packed, limits))
    if known is None:
        known = _check_entries(entries, limits)
        if len(_known) >= _KNOWN:
            _known.clear()
        _known[packed, limits] = known
    return known


@lru_cache(maxsize=256)
def _check_written(entries: tuple[tuple[str, str, tuple[int, ...]], ...], limits: Limits) -> None:
    """Check the announced arrays of a header that goes out."""
    _check_entries([[name, dtype, list(shape)] for name, dtype, shape in entries], limits)


def _check_entries(entries: list[Any], limits: Limits) -> list[tuple[str, str, tuple[int, ...]]]:
    if len(entries) > limits.arrays:
        raise MessageError(f"{len(entries)} arrays in one message", "header", f"at most {limits.arrays}")
    checked: list[tuple[str, str, tuple[int, ...]]] = []
    names, total = set(), 0
    for entry in entries:
        if not (isinstance(entry, list) and len(entry) == 3):
            raise MessageError("an array is not announced as [name, dtype, shape]", "header", "send all three")
        name, dtype, shape = entry
        if type(name) is not str or not 0 < len(name) <= limits.name or name in names:
            raise MessageError("an array's name is missing, too long or used twice", "header", "name each array once")
        if type(dtype) is not str or dtype not in DTYPES:
            raise MessageError(f"array {name} has an unknown dtype", "header", f"send one of {', '.join(DTYPES)}")
        if type(shape) is not list or len(shape) > limits.ndim:
            raise MessageError(f"array {name} has no shape of up to {limits.ndim} axes", "header", "send a list")
        size = DTYPES[dtype].itemsize
        for n in shape:
            if type(n) is not int or n < 0:
                raise MessageError(f"array {name} has a size that is no count", "header", "send integers from 0")
            size *= n or 1  # numpy refuses a shape whose other axes overflow, even beside a zero
        total += size
        if size > limits.frame_bytes:
            raise MessageError(
                f"array {name} of {size} bytes", "header", f"at most {limits.frame_bytes} bytes per array"
            )
        if total > limits.total_bytes:
            raise MessageError(f"arrays of {total} bytes in all", "header", f"at most {limits.total_bytes} per message")
        names.add(name)
        checked.append((name, dtype, tuple(shape)))
    return checked


def _no_extensions(code: int, data: bytes) -> None:
    raise ValueError(f"extension type {code}")


def _check_body(body: dict[str, Any], limits: Limits) -> None:
    if not body:
        return
    level: list[Any] = [body]
    for _ in range(limits.depth):
        below: list[Any] = []
        for node in level:
            if type(node) is dict and not all(type(key) is str for key in node):
                raise MessageError("the body holds a key that is no string", "header", "use string keys")
            if type(node) in (dict, list, tuple) and len(node) > limits.items:
                raise MessageError(
                    f"the body holds {len(node)} items in one place", "header", f"at most {limits.items}"
                )
            values = node.values() if type(node) is dict else node
            below.extend(value for value in values if type(value) in (dict, list, tuple))
        if not below:
            return
        level = below
    raise MessageError("the body is nested too deeply", "header", f"at most {limits.depth} levels")
