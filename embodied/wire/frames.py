"""Frames over a ZeroMQ socket, without pyzmq's enums and options, which take longer than the frames."""

from collections.abc import Sequence

import zmq

from embodied.wire.message import Buffer

_LAST = int(zmq.NOBLOCK)
_MORE = int(zmq.NOBLOCK | zmq.SNDMORE)


def send(sock: "zmq.Socket[bytes]", frames: Sequence[Buffer]) -> None:
    """Send one message without waiting, copied; raises `zmq.Again` where it cannot be queued."""
    for frame in frames[:-1]:
        sock.send(frame, _MORE)
    sock.send(frames[-1], _LAST)


def receive(sock: "zmq.Socket[bytes]", flags: int = _LAST) -> list[zmq.Frame]:
    """Frames of the next message; raises `zmq.Again` if there is none, with `flags` 0 after the socket's timeout."""
    frame = sock.recv(flags, copy=False)
    frames = [frame]
    while frame.more:
        frame = sock.recv(_LAST, copy=False)
        frames.append(frame)
    return frames
