"""A worker process: a socket around a `WorkerCore`. It calls, so that only the pool's side needs an open address."""

import signal
import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import zmq

from embodied.errors import ConfigError
from embodied.wire import addresses
from embodied.wire.message import LIMITS
from simulators.worker.core import WorkerCore
from simulators.worker.suite import load_suite

_LOOK_S = 0.1  # period of checks for a request to stop and for a lost connection
_QUEUE = 1000
# The sockets detect a lost machine themselves; deadlines detect a process that hangs.
ALIVE_MS, DEAD_MS = 5000, 60000


def run_worker(
    env: str,
    address: str,
    options: dict[str, Any],
    pixels: int = 0,
    credentials: Path | None = None,
    idle_s: float = 600.0,
    announce: Callable[[str], object] = print,
) -> None:
    """Run environments for the pools that listen at `address`, one after the other, until SIGINT, SIGTERM, or
    `idle_s` without a pool.

    Raises:
        ConfigError: As `load_suite`, or `idle_s` is not positive.
        UserError: The address is malformed, without its folder, or beyond this machine without credentials.
    """
    if not 0 < idle_s <= 7 * 86400:
        raise ConfigError(f"--idle {idle_s:g}", "embodied sim-worker", "choose seconds, at most a week")
    addresses.check_call(address, credentials)
    core = WorkerCore(load_suite(env, options, pixels), env, options, pixels)
    stop = threading.Event()

    def caught(number: int, frame: FrameType | None) -> None:
        stop.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, caught)
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    try:
        sock = context.socket(zmq.DEALER)
        sock.routing_id = uuid.uuid4().hex.encode()
        sock.sndhwm = sock.rcvhwm = _QUEUE
        sock.maxmsgsize = max(LIMITS.frame_bytes, LIMITS.header_bytes)
        sock.immediate = True  # so that a socket that can send has a pool
        sock.reconnect_ivl, sock.reconnect_ivl_max = 50, 1000
        sock.heartbeat_ivl, sock.heartbeat_timeout = ALIVE_MS, DEAD_MS
        addresses.connect(sock, address, credentials)
        announce(f"{env} waits for a pool at {address}")
        _serve(sock, core, stop, idle_s)
        if sock.poll(0, zmq.POLLOUT):
            sock.send_multipart(core.farewell(), zmq.NOBLOCK)
    finally:
        core.drop_all()
        context.destroy()


def _serve(sock: "zmq.Socket[bytes]", core: WorkerCore, stop: threading.Event, idle_s: float) -> None:
    while not stop.is_set() and core.alone_s < idle_s:
        if sock.poll(int(_LOOK_S * 1000), zmq.POLLIN):
            core.handle([frame.buffer for frame in sock.recv_multipart(zmq.NOBLOCK, copy=False)])
        connected = bool(sock.poll(0, zmq.POLLOUT))
        limit = time.monotonic() + _LOOK_S
        for frames in core.tick(connected):
            # A pool that has just gone receives nothing, and its successor has no use for its messages.
            if sock.poll(max(int((limit - time.monotonic()) * 1000), 0), zmq.POLLOUT):
                sock.send_multipart(frames, zmq.NOBLOCK, copy=False)
