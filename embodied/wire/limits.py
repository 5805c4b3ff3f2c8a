"""Limits on the size of messages."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """Limits that a receiver enforces; a sender checks the same ones before it sends.

    ZeroMQ itself bounds one frame (`MAXMSGSIZE`, set to `frame_bytes`) and the number of queued messages, but not the
    number of frames of one message, so only this machine and peers with credentials can reach a listener.

    Attributes:
        header_bytes: Length of the header frame.
        frame_bytes: Length of one frame; a longer array is split over several.
        total_bytes: Length of all arrays of a message, checked before any of them is allocated.
        arrays: Number of arrays.
        ndim: Axes of one array.
        items: Entries of one list or map in the header.
        depth: Nesting of the body. A hostile header makes msgpack reserve at most 1024 * `items` * 8 bytes before
            the depth is checked.
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
