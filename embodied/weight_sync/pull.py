"""One version on its way from an upstream server to this disk."""

import shutil
from collections import deque
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embodied.errors import InfrastructureError, WeightsRefused
from embodied.spec import PolicySpec, difference
from embodied.weight_sync.partial_download import PartialDownload
from embodied.weights.manifest import Manifest, Version
from embodied.weights.transfer import views

Shapes = Mapping[str, tuple[tuple[int, ...], str]]
"""Name of a tensor to its shape and the name of its dtype."""


def check_fits(manifest: Manifest, spec: PolicySpec, shapes: Shapes) -> None:
    """Whether a version is for this policy, before any of it is asked for or room is made for it.

    Raises:
        WeightsRefused: It is for another policy, spec or network; names the first difference.
    """
    where, fix = f"version {manifest.label} upstream", "restart this edge to take over upstream's policy"
    if manifest.policy != spec.name:
        raise WeightsRefused(f"it is of policy {manifest.policy}, not {spec.name}", where, fix)
    found = difference(manifest.spec, spec.to_dict())
    if found:
        field, theirs, ours = found
        raise WeightsRefused(f"its spec has {field} {theirs}, policy {spec.name} here has {ours}", where, fix)
    for name in sorted(manifest.tensors.keys() ^ shapes.keys()):
        raise WeightsRefused(f"tensor {name} is {'unknown' if name in manifest.tensors else 'missing'}", where, fix)
    for name, tensor in manifest.tensors.items():
        if (tensor.shape, tensor.dtype) != shapes[name]:
            own = f"{shapes[name][1]}{list(shapes[name][0])}"
            raise WeightsRefused(f"tensor {name} is {tensor.dtype}{list(tensor.shape)}, not {own}", where, fix)


def check_new(manifest: Manifest, kept: Iterable[Version]) -> None:
    """Raise `WeightsRefused` if the version's number is that of another content here."""
    for version in kept:
        if version.number == manifest.number and version != manifest.version:
            raise WeightsRefused(
                f"its number is that of {version.label} here, which is another content",
                f"version {manifest.label} upstream",
                "upstream serves another run: give this edge another folder, weights=...",
            )


class Pull:
    """Which ranges are still to be asked for, and what has arrived. What a killed edge had received counts.

    Args:
        manifest: Of the version; it has passed `check_fits`.
        signature: Over the manifest; empty for none.
        folder: For its `PartialDownload`.
        now: Seconds, monotonic.

    Raises:
        InfrastructureError: There is no room for the version, once as it arrives and once in the registry; nothing of
            it is left on disk.
    """

    def __init__(self, manifest: Manifest, signature: str, folder: Path, now: float) -> None:
        self.manifest, self.signature = manifest, signature
        self._spool = PartialDownload(folder, manifest.label, manifest.hash, manifest.nbytes)
        if shutil.disk_usage(folder).free < manifest.nbytes:
            self._spool.discard()
            raise InfrastructureError(
                f"no disk space for {manifest.nbytes} bytes of version {manifest.label}",
                str(folder),
                "free space; it is tried again later",
            )
        self.received, self._todo = self._spool.received, deque(self._spool.missing())
        self._began, self._had = now, self.received

    @property
    def label(self) -> str:
        return self.manifest.label

    @property
    def complete(self) -> bool:
        return self._spool.complete

    @property
    def todo(self) -> bool:
        """Whether a range is missing that has not been asked for."""
        return bool(self._todo)

    def rate(self, now: float) -> float:
        """Bytes per second since it began here."""
        return (self.received - self._had) / max(now - self._began, 1e-3)

    def next(self, size: int) -> tuple[int, int]:
        """Offset and size of the range to ask for next, at most `size` bytes; `todo` must say there is one."""
        start, end = self._todo.popleft()
        if end - start > size:
            self._todo.appendleft((start + size, end))
        return start, min(size, end - start)

    def again(self, offset: int, size: int) -> None:
        """A range that was asked for did not arrive."""
        self._todo.appendleft((offset, offset + size))

    def take(self, offset: int, data: NDArray[np.uint8], digest: str) -> None:
        """Keep a range; raises as `PartialDownload.write`."""
        self._spool.write(offset, data, digest)
        self.received = self._spool.received

    def tensors(self) -> dict[str, NDArray[Any]]:
        """The version's tensors, read-only and mapped from disk."""
        return views(self._spool.content(), self.manifest.tensors)

    def close(self) -> None:
        """Stop for now; what has arrived stays on disk."""
        self._spool.close()

    def discard(self) -> None:
        """Give it up, or the registry has it: remove what is on disk."""
        self._spool.discard()
