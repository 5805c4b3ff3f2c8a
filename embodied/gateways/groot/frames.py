"""Arrays and texts of a GR00T observation: checked, and reduced to the last frame of each row."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embodied.errors import SpecMismatch, nearest
from embodied.gateways.resize import MAX_SIDE, resize
from embodied.spec import Stream

LANGUAGE = "annotation.human.coarse_action"
LANGUAGES = (LANGUAGE, "task")

LastFrames = tuple[NDArray[Any], bool]
"""Last frames [B, ...] of an array, and whether it had a row axis."""


def flatten(observation: Mapping[str, Any]) -> tuple[dict[str, Any], bool]:
    """Observation under keys such as `video.front`, and whether it was nested in maps of modalities."""
    flat: dict[str, Any] = {}
    nested = False
    for key, value in observation.items():
        if key in ("video", "state", "language") and isinstance(value, Mapping):
            nested = True
            prefix = "" if key == "language" else f"{key}."
            flat.update({f"{prefix}{inner}": item for inner, item in value.items()})
        else:
            flat[key] = value
    return flat, nested


@dataclass(frozen=True)
class GrootFrames:
    """Arrays of one observation, by key.

    Attributes:
        flat: Keys such as `video.front` to values as sent.
        where: Place named in errors.
        most: Most rows accepted.
    """

    flat: Mapping[str, Any]
    where: str
    most: int

    def images(self, key: str, stream: Stream, any_size: bool) -> LastFrames:
        """Images [B, *stream.shape] of a camera, sent as uint8 (B, T, H, W, C), (T, H, W, C) or (H, W, C).

        Raises:
            SpecMismatch: It is missing, or of another shape or dtype.
        """
        array = self._array(key)
        tall, wide, channels = stream.shape
        size = "height, width" if any_size else f"{tall}, {wide}"
        fix = f"send uint8 (rows, frames, {size}, {channels})"
        if array.dtype != np.uint8:
            raise SpecMismatch(f"{key} is {array.dtype}", self.where, fix)
        last, batched = self._last(array, 3, key, fix)
        if last.shape[1:] != stream.shape:
            sides = last.shape[1:3]
            if not (any_size and last.shape[3] == channels and min(sides) > 0 and max(sides) <= MAX_SIDE):
                raise SpecMismatch(f"{key} has shape {array.shape}", self.where, fix)
            last = np.stack([resize(np.ascontiguousarray(image), tall, wide) for image in last])
        return np.ascontiguousarray(last), batched

    def numbers(self, key: str, stream: Stream, size: int) -> LastFrames:
        """Numbers [B, size] of a vector, in the stream's dtype, sent as (B, T, size), (T, size) or (size,).

        Raises:
            SpecMismatch: It is missing, of another shape, or of a dtype whose conversion would lose precision.
        """
        array = self._array(key)
        fix = f"send {stream.dtype} (rows, frames, {size})"
        if array.dtype.kind not in ("fiu" if stream.dtype == "float32" else "iu"):
            raise SpecMismatch(f"{key} is {array.dtype}", self.where, fix)
        last, batched = self._last(array, 1, key, fix)
        if last.shape[1] != size:
            raise SpecMismatch(f"{key} has shape {array.shape}", self.where, fix)
        if stream.dtype != "float32" and size:
            range_of = np.iinfo(stream.dtype)
            if last.min() < range_of.min or last.max() > range_of.max:
                raise SpecMismatch(f"{key} holds numbers outside {stream.dtype}", self.where, fix)
        with np.errstate(over="ignore"):  # infinite results are refused below
            taken = last.astype(stream.dtype)
        if not np.isfinite(taken).all():
            row = f" in row {int(np.flatnonzero(~np.isfinite(taken).all(axis=1))[0])}" if len(taken) > 1 else ""
            raise SpecMismatch(f"{key} is not finite{row}", self.where, "send finite numbers")
        return taken, batched

    def texts(self, key: str, stream: Stream, rows: int) -> NDArray[np.uint8]:
        """UTF-8 texts [rows, N], padded with zeros, sent as one text, one per row, or lists of frames of texts.

        Args:
            key: First key to try, before the keys of GR00T's own environments and any annotation.

        Raises:
            SpecMismatch: There is none, or one is no text or too long.
        """
        annotations = [name for name in self.flat if name.startswith("annotation.")]
        found = next((name for name in (key, *LANGUAGES, *annotations) if name in self.flat), None)
        if found is None:
            raise SpecMismatch(f"the observation lacks {key}", self.where, "send one text per row")
        value = self.flat[found]
        given = value.tolist() if isinstance(value, np.ndarray) and value.dtype.kind == "U" else value
        given = [given] if isinstance(given, str) else given
        if not isinstance(given, list) or len(given) not in (1, rows):
            raise SpecMismatch(f"{found} holds no text for each of {rows} rows", self.where, "send one text per row")
        packed = np.zeros((rows, stream.size), np.uint8)
        for row in range(rows):
            text = given[row if len(given) == rows else 0]
            while isinstance(text, list) and text:
                text = text[-1]
            if not isinstance(text, str):
                what = f"{found} holds a {type(text).__name__} in row {row}"
                raise SpecMismatch(what, self.where, "send one text per row")
            raw = text.encode("utf-8", "replace")
            if len(raw) > stream.size:
                raise SpecMismatch(f"{found} has {len(raw)} bytes", self.where, f"send at most {stream.size}")
            packed[row, : len(raw)] = np.frombuffer(raw, np.uint8)
        return packed

    def _array(self, key: str) -> NDArray[Any]:
        if key not in self.flat:
            raise SpecMismatch(f"the observation lacks {key}", self.where, nearest(key, self.flat))
        array = self.flat[key]
        if not isinstance(array, np.ndarray):
            raise SpecMismatch(f"{key} is no array", self.where, "send it as the bytes of numpy.save")
        return array

    def _last(self, array: NDArray[Any], axes: int, key: str, fix: str) -> LastFrames:
        """Last frames of an array whose values have `axes` axes."""
        extra = array.ndim - axes
        if extra not in (0, 1, 2) or 0 in array.shape[:extra]:
            raise SpecMismatch(f"{key} has shape {array.shape}", self.where, fix)
        if extra == 2 and len(array) > self.most:
            raise SpecMismatch(f"{key} has {len(array)} rows", self.where, f"send at most {self.most}")
        return (array[:, -1] if extra == 2 else array[-1][None] if extra else array[None]), extra == 2
