"""Watchdog over connections whose threads may hang in a send."""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

_LOOK_S = 0.25


class SendWatchdog:
    """Shuts down sockets whose owner stays in a `within` for too long. One thread serves all."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._limits: dict[int, tuple[float, socket.socket]] = {}
        self._next = 0
        self._stop = threading.Event()

    def start(self) -> None:
        threading.Thread(target=self._run, name="watch", daemon=True).start()

    def close(self) -> None:
        self._stop.set()

    @contextmanager
    def within(self, sock: socket.socket, seconds: float) -> Iterator[None]:
        """Shut the socket down if the block takes longer than `seconds`."""
        with self._lock:
            key = self._next = self._next + 1
            self._limits[key] = (time.monotonic() + seconds, sock)
        try:
            yield
        finally:
            with self._lock:
                del self._limits[key]

    def _run(self) -> None:
        while not self._stop.wait(_LOOK_S):
            now = time.monotonic()
            with self._lock:
                late = [sock for limit, sock in self._limits.values() if limit < now]
            for sock in late:
                cut_off(sock)


def cut_off(sock: socket.socket) -> None:
    """End a connection at once; calls of other threads on it return."""
    with suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)
