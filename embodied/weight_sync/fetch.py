"""One version that is fetched in ranges, from an upstream server or from a learner that offered it."""

import shutil
from collections import deque
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from embodied.errors import InfrastructureError, MessageError, WeightsRefused
from embodied.spec import PolicySpec, difference
from embodied.weight_sync.partial_download import Download, PartialDownload
from embodied.weights.manifest import Manifest, Version
from embodied.weights.transfer import Content, empty, views
from embodied.wire.codecs import take_array
from embodied.wire.message import Message

Shapes = Mapping[str, tuple[tuple[int, ...], str]]
"""Name of a tensor to its shape and the name of its dtype."""


def check_spec(manifest: Manifest, spec: PolicySpec, fix: str) -> None:
    """Raise `WeightsRefused` unless a version is for this policy and its spec; names the first difference."""
    where = f"version {manifest.label}"
    if manifest.policy != spec.name:
        raise WeightsRefused(f"it belongs to policy {manifest.policy}, not {spec.name}", where, fix)
    found = difference(manifest.spec, spec.to_dict())
    if found:
        field, theirs, ours = found
        raise WeightsRefused(f"its spec has {field} {theirs}, policy {spec.name} here has {ours}", where, fix)


def check_shapes(manifest: Manifest, shapes: Shapes, fix: str) -> None:
    """Raise `WeightsRefused` unless a version has the tensors of the policy here; names the first difference.

    It is called before anything is allocated for the version.
    """
    where = f"policy {manifest.policy}, version {manifest.label}"
    for name in sorted(manifest.tensors.keys() ^ shapes.keys()):
        what = "is unknown to the policy" if name in manifest.tensors else "is missing"
        raise WeightsRefused(f"tensor {name} {what}", where, fix)
    for name, tensor in manifest.tensors.items():
        shape, dtype = shapes[name]
        if (tensor.shape, tensor.dtype) != (shape, dtype):
            what = f"tensor {name} is {tensor.dtype} {list(tensor.shape)}, the policy has {dtype} {list(shape)}"
            raise WeightsRefused(what, where, fix)


def check_new(manifest: Manifest, kept: Iterable[Version]) -> None:
    """Raise `WeightsRefused` if the version's number is that of another content here."""
    for version in kept:
        if version.number == manifest.number and version != manifest.version:
            raise WeightsRefused(
                f"its number is that of {version.label} here, which is another content",
                f"version {manifest.label} upstream",
                "upstream serves another run: give this edge another folder, weights=...",
            )


class Fetch:
    """Ranges to ask for, ranges in flight, and ranges that have arrived, of one version.

    Args:
        manifest: Of the version; it has passed `check_shapes`.
        signature: Over the manifest; empty for none.
        download: Where ranges go.
        now: Seconds, monotonic.
    """

    def __init__(self, manifest: Manifest, signature: str, download: Download, now: float) -> None:
        self.manifest, self.signature, self.download = manifest, signature, download
        self.in_flight: dict[int, int] = {}
        self._todo = deque(download.missing())
        self._began, self._had = now, download.received

    @property
    def label(self) -> str:
        return self.manifest.label

    @property
    def received(self) -> int:
        """Bytes that have arrived."""
        return self.download.received

    @property
    def complete(self) -> bool:
        return self.download.complete

    @property
    def todo(self) -> bool:
        """Tell whether a range is missing that has not been asked for."""
        return bool(self._todo)

    def rate(self, now: float) -> float:
        """Bytes per second since it began here."""
        return (self.received - self._had) / max(now - self._began, 1e-3)

    def next(self, size: int) -> dict[str, Any]:
        """Body of the `fetch` to send next, for at most `size` bytes; `todo` must say there is one."""
        start, end = self._todo.popleft()
        if end - start > size:
            self._todo.appendleft((start + size, end))
        self.in_flight[start] = size = min(size, end - start)
        return {"version": self.label, "offset": start, "size": size}

    def retry(self, offset: int) -> None:
        """Ask again for a range in flight that did not arrive."""
        self._todo.appendleft((offset, offset + self.in_flight.pop(offset)))

    def retry_all(self) -> None:
        """Ask again for every range in flight."""
        for offset in sorted(self.in_flight, reverse=True):
            self.retry(offset)

    def take(self, offset: int, message: Message) -> None:
        """Keep a range in flight that a `range` message brings; one that is refused is asked for again.

        Raises:
            MessageError: It is not that range, or arrived damaged.
            InfrastructureError: No disk space.
        """
        try:
            if message.body.get("offset") != offset:
                raise MessageError(f"no answer to the range at {offset}", f"version {self.label}", "send that range")
            data = take_array(message.arrays, "data", "uint8", (self.in_flight[offset],))
            self.download.write(offset, data, str(message.body.get("hash")))
        except BaseException:
            self.retry(offset)
            raise
        del self.in_flight[offset]


class DiskFetch(Fetch):
    """A version on its way to disk. Ranges that a killed process had received count.

    Args:
        manifest, signature, now: As for `Fetch`.
        folder: For its `PartialDownload`.

    Raises:
        InfrastructureError: There is no room for the version, once as it arrives and once in the registry; nothing of
            it is left on disk.
    """

    download: PartialDownload

    def __init__(self, manifest: Manifest, signature: str, folder: Path, now: float) -> None:
        download = PartialDownload(folder, manifest.label, manifest.hash, manifest.nbytes)
        if shutil.disk_usage(folder).free < manifest.nbytes:
            download.discard()
            raise InfrastructureError(
                f"no disk space for {manifest.nbytes} bytes of version {manifest.label}",
                str(folder),
                "free space; it is tried again later",
            )
        super().__init__(manifest, signature, download, now)

    def tensors(self) -> dict[str, NDArray[Any]]:
        """The version's tensors, read-only and mapped from disk."""
        return views(self.download.content(), self.manifest.tensors)

    def close(self) -> None:
        """Stop for now; ranges that have arrived stay on disk."""
        self.download.close()

    def discard(self) -> None:
        """Remove the ranges from disk."""
        self.download.discard()


class MemoryFetch(Fetch):
    """A version on its way to memory.

    Args:
        manifest, signature, now: As for `Fetch`.
        arrays: Filled with the version; None allocates them. Of the manifest's names, shapes and dtypes.
    """

    def __init__(
        self, manifest: Manifest, signature: str, now: float, arrays: dict[str, NDArray[Any]] | None = None
    ) -> None:
        self.arrays = empty(manifest.tensors) if arrays is None else arrays
        super().__init__(manifest, signature, Download(manifest.label, Content(self.arrays)), now)
