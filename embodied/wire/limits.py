"""How much a receiver takes from the wire."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """What a receiver takes; a sender with the same limits finds out before it sends.

    ZeroMQ itself bounds one frame (`MAXMSGSIZE`, set to `frame_bytes`) and the number of queued messages, but not the
    number of frames of one message, so a listener is open to this machine or to peers with keys only.

    Attributes:
        header_bytes: Length of the header frame.
        frame_bytes: Length of one array, and of one frame.
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
