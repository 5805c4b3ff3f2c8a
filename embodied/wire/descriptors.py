"""File descriptors of this process: the limit, and one kept back for the moment when there are no more."""

import os
import resource
import socket
from contextlib import suppress

_ENOUGH = 1 << 16


def raise_limit() -> None:
    """Raise the soft limit of this process, and of those it starts, to the hard one, or to 65,536."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _ENOUGH if hard == resource.RLIM_INFINITY else min(hard, _ENOUGH)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(ValueError, OSError):  # some systems allow fewer than the hard limit says
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


class Spare:
    """One descriptor kept back, so that a listener can still answer a connection when all others are in use."""

    def __init__(self) -> None:
        self._file = os.open(os.devnull, os.O_RDONLY)

    def accept(self, listener: socket.socket) -> socket.socket | None:
        """Accept a connection with the spare descriptor; None if there is none. The next call needs `restore` first."""
        self.close()
        try:
            return listener.accept()[0]
        except OSError:
            self.restore()
            return None

    def restore(self) -> bool:
        """Keep a descriptor back again; whether there is one."""
        if self._file < 0:
            with suppress(OSError):
                self._file = os.open(os.devnull, os.O_RDONLY)
        return self._file >= 0

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
