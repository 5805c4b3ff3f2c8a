"""Memory shared with other processes of the same user on this machine: a version's content, or pictures.

The sender owns an anonymous file in memory, whose name is its process, its descriptor and a random token. The kernel
frees it when both processes have closed it, however they end. It can neither shrink nor grow, so that
reading it never fails; it can be written, so that what was read must be verified after it has been copied.
"""

import mmap
import os
import re
import secrets
import stat
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from embodied.weights.examine import each
from embodied.weights.manifest import Manifest
from embodied.weights.transfer import views

_NAME = re.compile(r"([1-9][0-9]{0,9})-([0-9]{1,6})-([0-9a-f]{32})")
_PREFIX = "embodied-weights-"


class SharedBlock:
    """The sender's side: one block that is written anew for every version, so that its pages stay warm.

    It is to be closed, or freed with its process. Not thread-safe.
    """

    def __init__(self) -> None:
        self._fd, self._name = -1, ""
        self._bytes = np.zeros(0, np.uint8)

    def hold(self, manifest: Manifest, tensors: Mapping[str, NDArray[Any]]) -> str:
        """Copy a manifest's tensors into the block; returns its name, or nothing where there is no memory to share."""
        if self._bytes.size != manifest.nbytes or not self._name:
            self.close()
            if not self._make(manifest.nbytes):
                return ""
        copies = views(self._bytes, manifest.tensors)
        each(lambda name: np.copyto(copies[name], tensors[name], casting="no"), copies, copies.values())
        return self._name

    def room(self, nbytes: int) -> str:
        """Make sure of so many bytes, whatever is in them; the block's name, or nothing where there is none."""
        if self._bytes.size < nbytes or not self._name:
            self.close()
            self._make(nbytes)
        return self._name

    @property
    def bytes(self) -> NDArray[np.uint8]:
        """All of it."""
        return self._bytes

    def close(self) -> None:
        """Close the block; a process that still reads it keeps it."""
        self._bytes, self._name = np.zeros(0, np.uint8), ""
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _make(self, nbytes: int) -> bool:
        if sys.platform != "linux" or not nbytes:
            return False
        import fcntl

        token = secrets.token_hex(16)
        try:
            self._fd = os.memfd_create(_PREFIX + token, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
            os.posix_fallocate(self._fd, 0, nbytes)
            seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
            fcntl.fcntl(self._fd, fcntl.F_ADD_SEALS, seals)
            self._bytes = np.frombuffer(mmap.mmap(self._fd, nbytes), np.uint8)
        except (OSError, ValueError):
            self.close()
            return False
        self._name = f"{os.getpid()}-{self._fd}-{token}"
        return True


def open_block(name: object, nbytes: int) -> NDArray[np.uint8] | None:
    """The bytes [nbytes] of the block a sender named, read-only; its owner may change them at any time.

    None if there is no such block here: it is another machine's or another user's, gone, of another length, or no
    block at all.
    """
    found = _NAME.fullmatch(name) if isinstance(name, str) else None
    if found is None or sys.platform != "linux" or not nbytes:
        return None
    path, target = Path(f"/proc/{found[1]}/fd/{found[2]}"), f"/memfd:{_PREFIX}{found[3]} (deleted)"
    fd = -1
    try:
        if str(path.readlink()) != target:
            return None
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        if not _is_block(fd, target, nbytes):
            return None
        return np.frombuffer(mmap.mmap(fd, nbytes, prot=mmap.PROT_READ), np.uint8)
    except (OSError, ValueError):
        return None
    finally:
        if fd >= 0:
            with suppress(OSError):
                os.close(fd)


def _is_block(fd: int, target: str, nbytes: int) -> bool:
    import fcntl

    is_ours = str(Path(f"/proc/self/fd/{fd}").readlink()) == target
    found, fixed = os.fstat(fd), fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
    if not is_ours or not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid() or found.st_size != nbytes:
        return False
    return fcntl.fcntl(fd, fcntl.F_GET_SEALS) & fixed == fixed
