"""Header of a message: a msgpack map, checked alike by sender and receiver.

The fields are `v, kind, id, deadline_ms, session, policy, arrays [[name, dtype, shape]], body`, in this order: the
head, which differs between two requests of a client, precedes the tail, which repeats. A tail that passed its checks is
cached by its bytes, and is not packed, parsed or checked again.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import msgpack
import numpy as np

from embodied.errors import MessageError
from embodied.wire.limits import LIMITS, Limits

PROTOCOL = 3
KINDS = frozenset([
    "hello", "act", "reset", "step", "outcome", "segment", "load", "offer", "fetch", "range", "set_active",
    "probe", "ack", "status", "heartbeat", "error", "bye",
])  # fmt: skip
DTYPES = {
    **{
        name: np.dtype(name).newbyteorder("<")
        for name in ("float32", "float64", "uint8", "int32", "int64", "uint64", "bool")
    },
    "bfloat16": np.dtype("<u2"),
}
"""Name on the wire to numpy's dtype. numpy has no bfloat16: its bits travel and arrive as uint16, and no array of the
wire holds integers of 16 bits."""

Entry = tuple[str, str, tuple[int, ...]]
"""Announcement of an array: name, dtype, shape."""

_HEAD = (("kind", str), ("id", int), ("deadline_ms", int))
_TAIL = (("session", str), ("policy", str), ("arrays", list), ("body", dict))
_REPEATED = ("act", "step")  # kinds whose tails are cached
_KNOWN, _KNOWN_BYTES = 1024, 4096
_MAP_OF_4, _MAP_OF_8 = b"\x84", b"\x88"
_MARK = b"\xa7session"
_HEAD_BYTES = 80  # of a head at most: 11 for each number, the rest fixed
_PLAIN = (str, int, float, bool, type(None))


class Header(NamedTuple):
    """A checked header."""

    kind: str
    id: int
    deadline_ms: int
    session: str
    policy: str
    arrays: tuple[Entry, ...]
    body: dict[str, Any]


class _Tail(NamedTuple):
    session: str
    policy: str
    arrays: tuple[Entry, ...]
    body: dict[str, Any]


_read: dict[bytes, _Tail] = {}
_written: dict[tuple[Any, ...], bytes] = {}


def pack(header: Header, limits: Limits = LIMITS) -> bytes:
    """The bytes of a header.

    Raises:
        MessageError: It is outside `limits`, of an unknown kind, or holds what msgpack cannot carry.
    """
    kind, id, deadline_ms, session, policy, arrays, body = header
    _check_head({"kind": kind, "id": id, "deadline_ms": deadline_ms})
    key = None
    if kind in _REPEATED and limits is LIMITS and _is_plain(body):
        # With the types, since 1, 1.0 and True are equal and packed differently.
        key = (session, policy, arrays, tuple(body.items()), tuple(map(type, body.values())))
    tail = _written.get(key) if key else None
    try:
        if tail is None:
            fields = {"session": session, "policy": policy, "arrays": arrays, "body": body}
            _check_tail(fields | {"arrays": [[name, dtype, list(shape)] for name, dtype, shape in arrays]}, limits)
            tail = msgpack.packb(fields)[1:]
            if key:
                _remember(_written, key, tail)
        head: bytes = msgpack.packb({"v": PROTOCOL, "kind": kind, "id": id, "deadline_ms": deadline_ms})[1:]
    except (TypeError, ValueError, OverflowError) as error:
        raise MessageError(f"cannot be packed: {error}", f"{kind} message {id}", "send plain values only") from None
    packed = _MAP_OF_8 + head + tail
    if len(packed) > limits.header_bytes:
        raise MessageError(f"header of {len(packed)} bytes", f"{kind} message {id}", f"at most {limits.header_bytes}")
    return packed


def unpack(frame: bytes | memoryview, limits: Limits = LIMITS) -> Header:
    """Check everything that a header says, the sizes of its arrays included.

    Raises:
        MessageError: It is malformed or outside `limits`.
    """
    size = memoryview(frame).nbytes
    if size > limits.header_bytes:
        raise MessageError(f"header of {size} bytes", "header", f"at most {limits.header_bytes}")
    packed, at = b"", -1
    if size <= _KNOWN_BYTES and limits is LIMITS:
        packed = bytes(frame)
        at = packed.find(_MARK, 0, _HEAD_BYTES)
        if at > 0 and packed[:1] == _MAP_OF_8 and (tail := _read.get(packed[at:])) is not None:
            head = _fields(_MAP_OF_4 + packed[1:at], limits)
            if len(head) == 4 and head.get("v") == PROTOCOL:
                _check_head(head)
                return Header(
                    head["kind"], head["id"], head["deadline_ms"], tail.session, tail.policy, tail.arrays,
                    dict(tail.body),
                )  # fmt: skip
    fields = _fields(frame, limits)
    if fields.get("v") != PROTOCOL:
        raise MessageError(
            f"peer speaks protocol {str(fields.get('v'))[:20]}, this side {PROTOCOL}",
            "header",
            "run the same version on both sides",
        )
    _check_head(fields)
    arrays = _check_tail(fields, limits)
    tail = _Tail(fields["session"], fields["policy"], arrays, fields["body"])
    header = Header(fields["kind"], fields["id"], fields["deadline_ms"], *tail)
    if at > 0 and header.kind in _REPEATED and _is_plain(tail.body) and pack(header, limits) == packed:
        # Only a header that is written as we write it: its two parts are then maps of four fields each.
        _remember(_read, packed[at:], tail._replace(body=dict(tail.body)))
    return header


def _fields(frame: bytes | memoryview, limits: Limits) -> dict[str, Any]:
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
    return fields if isinstance(fields, dict) else {}


def _remember(known: dict[Any, Any], key: Any, value: Any) -> None:
    if len(known) >= _KNOWN:
        known.clear()
    known[key] = value


def _is_plain(body: dict[str, Any]) -> bool:
    return len(body) <= 8 and all(type(value) in _PLAIN for value in body.values())


def _check_head(fields: Mapping[str, Any]) -> None:
    for name, kind in _HEAD:
        if type(fields.get(name)) is not kind:
            raise _untyped(name, kind)
    if fields["kind"] not in KINDS:
        raise MessageError(
            f"unknown message kind {fields['kind'][:20]!r}", "header", f"known: {', '.join(sorted(KINDS))}"
        )
    for name in ("id", "deadline_ms"):
        if not 0 <= fields[name] < 1 << 63:
            raise MessageError(f"header field {name} is out of range", "header", "send 0 to 2^63 - 1")


def _check_tail(fields: Mapping[str, Any], limits: Limits) -> tuple[Entry, ...]:
    """Check the fields of a tail; returns the announced arrays."""
    for name, kind in _TAIL:
        if type(fields.get(name)) is not kind:
            raise _untyped(name, kind)
    for name in ("session", "policy"):
        if len(fields[name]) > limits.name:
            raise MessageError(f"header field {name} is too long", "header", f"at most {limits.name} characters")
    _check_body(fields["body"], limits)
    return tuple(_check_entries(fields["arrays"], limits))


def _untyped(name: str, kind: type) -> MessageError:
    return MessageError(f"header field {name} is no {kind.__name__}", "header", "send every field with its type")


def _check_entries(entries: list[Any], limits: Limits) -> list[Entry]:
    if len(entries) > limits.arrays:
        raise MessageError(f"{len(entries)} arrays in one message", "header", f"at most {limits.arrays}")
    checked: list[Entry] = []
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
