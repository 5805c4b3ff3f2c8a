"""Sources of a version's bytes: its file in a registry, or a copy of the weights that a host serves."""

import json
import os
import threading
from bisect import bisect_right
from collections.abc import Callable, Mapping
from itertools import accumulate
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from embodied.errors import Busy, CorruptFile, EmbodiedError, WeightsRefused
from embodied.files import open_file
from embodied.weights.manifest import Manifest
from embodied.weights.tensors import header_limit
from embodied.weights.transfer import RangeReader, views

_FIX = "publish the version again, or roll back"


class Source(RangeReader, Protocol):
    """Reads ranges of one version's content."""

    manifest: Manifest
    signature: str


class FileSource:
    """A safetensors file of a registry, kept open, so that a version being fetched stays readable when it is deleted.

    Args:
        path: Of the file.
        manifest, signature: Of the version.

    Raises:
        CorruptFile: It is missing, or does not hold the manifest's tensors.
    """

    def __init__(self, path: Path, manifest: Manifest, signature: str) -> None:
        self.manifest, self.signature, self._path = manifest, signature, path
        try:
            self._file = open_file(path)
        except OSError as error:
            raise CorruptFile(f"cannot be read: {error.strerror}", str(path), _FIX) from None
        self._places = self._read_header()
        self._ends = list(accumulate(count for _, count in self._places))

    def read(self, offset: int, size: int) -> NDArray[np.uint8]:
        data, filled = np.empty(size, np.uint8), 0
        which = bisect_right(self._ends, offset)
        while filled < size:
            place, length = self._places[which]
            end = self._ends[which]
            count = min(offset + size, end) - (offset + filled)
            self._fill(data[filled : filled + count], place + length - (end - offset - filled))
            filled, which = filled + count, which + 1
        return data

    def _fill(self, data: NDArray[np.uint8], place: int) -> None:
        left = data.data
        while left:
            count = os.preadv(self._file.fileno(), [left], place)
            if count <= 0:
                raise CorruptFile("shorter than its header says", str(self._path), _FIX)
            left, place = left[count:], place + count

    def _read_header(self) -> list[tuple[int, int]]:
        """Offset in the file and size of every tensor's bytes, in the content's order."""
        prefix = np.zeros(8, np.uint8)
        self._fill(prefix, 0)
        length = int.from_bytes(prefix.tobytes(), "little")
        if length > min(header_limit(self.manifest.nbytes), os.fstat(self._file.fileno()).st_size):
            raise CorruptFile("its header is longer than the file, or than its tensors need", str(self._path), _FIX)
        text = np.zeros(length, np.uint8)
        self._fill(text, 8)
        try:
            header: Mapping[str, Any] = json.loads(text.tobytes())
            places = []
            for name, tensor in sorted(self.manifest.tensors.items()):
                start, end = header[name]["data_offsets"]
                if type(start) is not int or start < 0 or end - start != tensor.nbytes:
                    raise ValueError(name)
                places.append((8 + length + start, tensor.nbytes))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise CorruptFile("it does not hold the tensors of its manifest", str(self._path), _FIX) from None
        return places


class CopySource:
    """A flat copy of a policy's tensors, made and checked in a thread of its own while the policy answers requests.

    Args:
        manifest: Of the version that the tensors should be.
        tensors: Called in that thread; what it returns may have been switched meanwhile, and is refused then.
    """

    def __init__(self, manifest: Manifest, tensors: Callable[[], Mapping[str, NDArray[Any]]]) -> None:
        self.manifest, self.signature = manifest, ""
        self._tensors = tensors
        self._content: NDArray[np.uint8] | None = None
        self._error: EmbodiedError | None = None
        threading.Thread(target=self._copy, name="offer", daemon=True).start()

    def read(self, offset: int, size: int) -> NDArray[np.uint8]:
        if self._error is not None:
            raise self._error
        if self._content is None:
            raise Busy(f"version {self.manifest.label} is being copied", "policy server", "ask again")
        return self._content[offset : offset + size]

    def _copy(self) -> None:
        try:
            content = np.empty(self.manifest.nbytes, np.uint8)
            self.manifest.verify(self._tensors(), into=views(content, self.manifest.tensors))
            self._content = content
        except Exception as error:
            self._error = WeightsRefused(
                f"version {self.manifest.label} is served no more: {error}",
                "policy server",
                "ask for the version active",
            )
