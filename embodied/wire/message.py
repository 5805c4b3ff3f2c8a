"""Messages: a header frame, a frame of all small arrays, and the frames of each large array.

Arrays are raw, little-endian and in C order. Arrays of up to 4 KiB share the second frame, in the header's order, each
starting at a multiple of eight bytes; the frame is absent where there is no such array. A larger array has one frame,
or several in order where it is longer than `Limits.frame_bytes`. A received message is checked against `Limits` before
anything is allocated for it, and every fault is a `MessageError`.
"""

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from embodied.errors import MessageError
from embodied.wire import header as headers
from embodied.wire.header import DTYPES, KINDS, PROTOCOL, Entry
from embodied.wire.limits import LIMITS, Limits

__all__ = ["DTYPES", "KINDS", "LIMITS", "PROTOCOL", "SMALL", "Buffer", "Header", "Limits", "Message", "decode",
           "decode_arrays", "decode_header", "encode"]  # fmt: skip

SMALL = 4096
"""Bytes of an array up to which it shares a frame with others."""

_NAMES = {kind.str: name for name, kind in DTYPES.items()}  # `dtype.name` is slow
_PADS = [bytes(count) for count in range(8)]

Buffer = bytes | memoryview


@dataclass
class Message:
    """One message between two processes.

    Attributes:
        kind: One of `KINDS`.
        id: Number of the request, 0 to 2^63 - 1; an answer repeats it. 0 for a message that expects no answer.
        session: The client's name for itself.
        policy: Name of the policy concerned, or empty.
        deadline_ms: How long after sending the answer is of use; 0 for no limit. A duration, since clocks differ.
        body: Plain values: None, bool, int, float, str, bytes, and lists and string-keyed dictionaries of them.
        arrays: Name to array of a dtype in `DTYPES`; uint16 arrays hold the bits of bfloat16.
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
    arrays: tuple[Entry, ...]


def encode(message: Message, limits: Limits = LIMITS) -> list[Buffer]:
    """The frames of a message. Frames of large arrays are views of contiguous arrays, which must not change until sent.

    Raises:
        MessageError: The message is outside `limits`, of an unknown kind, or holds what msgpack cannot carry.
    """
    large: list[Buffer] = []
    small: list[bytes] = []
    entries: list[Entry] = []
    for name, value in message.arrays.items():
        dtype = _NAMES.get(value.dtype.str)
        if dtype is None:
            value = np.asarray(value, value.dtype.newbyteorder("<"))
            dtype = _NAMES.get(value.dtype.str, value.dtype.name)
        if dtype not in DTYPES:
            raise MessageError(f"array {name} has dtype {dtype}", _where(message), f"send one of {', '.join(DTYPES)}")
        entries.append((name, dtype, value.shape))
        if (size := value.nbytes) <= SMALL:
            small.append(value.tobytes())
            if size & 7:
                small.append(_PADS[-size & 7])
        else:
            data = np.ascontiguousarray(value).data.cast("B")
            if size <= limits.frame_bytes:
                large.append(data)
            else:
                large.extend(data[at : at + limits.frame_bytes] for at in range(0, size, limits.frame_bytes))
    header = headers.pack(
        headers.Header(
            message.kind, message.id, message.deadline_ms, message.session, message.policy, tuple(entries), message.body
        ),
        limits,
    )
    return [header, b"".join(small), *large] if small else [header, *large]


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
    kind, id, deadline_ms, session, policy, arrays, body = headers.unpack(frame, limits)
    return Header(Message(kind, id, session, policy, deadline_ms, body), arrays)


def decode_arrays(header: Header, frames: Sequence[Buffer], view_bytes: int | None = None) -> Message:
    """Fill a checked header's arrays from its frames; see `decode`.

    Args:
        header: Of the message.
        frames: Its arrays.
        view_bytes: Arrays of this size and more, and above `SMALL`, are views of their frames where they are aligned,
            for a receiver that has the frames to itself. None copies all.
    """
    arrays = dict[str, NDArray[Any]]()
    layout, where, at = _layout(header.arrays), _where(header.message), 0
    if layout.small:
        if not frames:
            raise _frame_count(0, layout, where)
        if (given := memoryview(frames[0]).nbytes) != layout.together:
            raise MessageError(f"small arrays of {given} bytes, not {layout.together}", where, "send whole arrays")
        shared, at = bytearray(frames[0]), 1
        for name, dtype, shape, start in layout.small:
            arrays[name] = np.ndarray(shape, dtype, shared, start)
    for name, dtype, shape, size in layout.large:
        parts, given = list[Buffer](), 0
        while given < size and at < len(frames):
            parts.append(frames[at])
            at += 1
            if not (length := memoryview(parts[-1]).nbytes):
                break
            given += length
        if given != size:
            raise MessageError(
                f"array {name} has {given} bytes, {dtype.name} {shape} needs {size}", where, "send whole arrays"
            )
        if len(parts) > 1:
            arrays[name] = np.ndarray(shape, dtype, bytearray().join(parts))
            continue
        array = np.ndarray(shape, dtype, parts[0])
        if view_bytes is None or size < view_bytes or not array.flags.aligned:
            array = array.copy()
        arrays[name] = array
    if at != len(frames):
        raise _frame_count(len(frames), layout, where)
    for name in layout.bools:
        if arrays[name].size and arrays[name].view(np.uint8).max() > 1:
            raise MessageError(f"array {name} holds bytes that are no bool", where, "send 0 and 1 only")
    if sys.byteorder != "little":
        arrays = {name: array.astype(array.dtype.newbyteorder("=")) for name, array in arrays.items()}
    header.message.arrays = arrays
    return header.message


class _Layout(NamedTuple):
    """Layout of arrays: small ones with their places in the shared frame, large ones with their sizes."""

    small: list[tuple[str, np.dtype[Any], tuple[int, ...], int]]
    large: list[tuple[str, np.dtype[Any], tuple[int, ...], int]]
    bools: list[str]
    together: int


@lru_cache(maxsize=1024)
def _layout(entries: tuple[Entry, ...]) -> _Layout:
    layout, end = _Layout([], [], [name for name, dtype, _ in entries if dtype == "bool"], 0), 0
    for name, dtype, shape in entries:
        size = math.prod(shape) * DTYPES[dtype].itemsize
        if size > SMALL:
            layout.large.append((name, DTYPES[dtype], shape, size))
        else:
            layout.small.append((name, DTYPES[dtype], shape, end))
            end += size + -size % 8
    return layout._replace(together=end)


def _frame_count(given: int, layout: _Layout, where: str) -> MessageError:
    announced = len(layout.large) + bool(layout.small)
    return MessageError(
        f"{given} array frames where {announced} are announced",
        where,
        "send the small arrays in one, and one for each large one",
    )


def _where(message: Message) -> str:
    return f"{message.kind} message {message.id}"
