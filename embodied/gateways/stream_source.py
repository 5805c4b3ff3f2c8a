"""Source of one stream in another project's request: a key, and the conversions that the config states."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embodied.errors import ConfigError, SpecMismatch, nearest
from embodied.gateways.resize import MAX_SIDE, resize
from embodied.spec import Stream

LAYOUTS = ("hwc", "chw")
_FIELDS = ("key", "layout", "resize", "text", "default", "columns", "shape")
ANY_IMAGE = 1920 * 1080 * 3
"""Expected bytes of an image that may have any size."""


@dataclass(frozen=True)
class StreamSource:
    """Source of a stream in a request.

    Attributes:
        stream: Our stream.
        path: Their key, one name per nested map.
        where: Place named in errors.
        layout: Layout of their image, `hwc` or `chw`; ours are hwc.
        resize: Whether their image may have any size.
        text: Whether their value is a string, and ours its UTF-8 padded with zeros.
        default: Text to use where the key is missing; None where the key is required.
        columns: Indices of our numbers in their vector; None for all.
        shape: Shape of their value, in their layout; None for any that can be converted.
    """

    stream: Stream
    path: tuple[str, ...]
    where: str
    layout: str = "hwc"
    resize: bool = False
    text: bool = False
    default: str | None = None
    columns: tuple[int, ...] | None = None
    shape: tuple[int, ...] | None = None

    @property
    def image(self) -> bool:
        return _is_image(self.stream)

    @property
    def bytes(self) -> int:
        """Expected bytes of their value."""
        item = np.dtype(self.stream.dtype).itemsize
        return max(ANY_IMAGE if self.resize else 0, math.prod(self.shape or ()) * item, self.stream.size * item)

    @property
    def size_of_vector(self) -> int:
        """Length of their vector, in which `columns` are ours."""
        return self._shape()[0]

    def describe(self) -> dict[str, Any]:
        """Description of a client's value, as plain values."""
        said: dict[str, Any] = {"path": list(self.path), "stream": self.stream.name}
        if self.text:
            return {**said, "dtype": "str", "shape": [], "optional": self.default is not None}
        return {**said, "dtype": self.stream.dtype, "shape": list(self._shape()), "any_size": self.resize}

    def take(self, request: Mapping[str, Any]) -> NDArray[Any]:
        """Value [*stream.shape] from a request; see `Embodiment.observe`."""
        value = self._find(request)
        if self.text:
            return self._text(value)
        if not isinstance(value, np.ndarray | np.generic | float | int):
            raise self._wrong(f"is a {type(value).__name__}", "send a numpy array")
        array = np.asarray(value)
        if array.dtype.kind not in "fiu" or array.dtype.itemsize > 8:
            raise self._wrong(f"has dtype {array.dtype}", f"send {self.stream.dtype}")
        return self._image(array) if self.image else self._numbers(array)

    def put(self, request: dict[str, Any], value: NDArray[Any] | None) -> None:
        """Write our value [*stream.shape] into a request, converted; the default where it is None."""
        *above, last = self.path
        for name in above:
            request = request.setdefault(name, {})
        if value is None:
            request[last] = self.default
        elif self.text:
            request[last] = value.tobytes().rstrip(b"\0").decode("utf-8", "replace")
        elif self.image:
            tall, wide = _size(self._shape(), self.layout)
            image = resize(value, tall, wide)
            request[last] = np.ascontiguousarray(image.transpose(2, 0, 1)) if self.layout == "chw" else image
        elif self.columns is None:
            request[last] = value
        else:
            request.setdefault(last, np.zeros(self._shape(), value.dtype))[list(self.columns)] = value

    def _shape(self) -> tuple[int, ...]:
        """Preferred shape of a client's value."""
        if self.shape is not None:
            return self.shape
        if self.image and self.layout == "chw":
            tall, wide, channels = self.stream.shape
            return channels, tall, wide
        return self.stream.shape if self.columns is None else (max(self.columns) + 1,)

    def _find(self, request: Mapping[str, Any]) -> Any:
        node: Any = request
        for depth, name in enumerate(self.path):
            if not isinstance(node, Mapping):
                raise self._wrong("lies in no map", f"send a map under {'/'.join(self.path[:depth])}")
            if name not in node:
                if self.default is not None:
                    return self.default
                raise self._wrong("is missing", nearest(name, map(str, node)))
            node = node[name]
        return node

    def _text(self, value: Any) -> NDArray[np.uint8]:
        length = self.stream.size
        if isinstance(value, np.ndarray) and value.dtype == np.uint8 and value.shape == (length,):
            return value.copy()
        if not isinstance(value, str):
            raise self._wrong(f"is a {type(value).__name__}", "send a string")
        raw = value.encode("utf-8", "replace")
        if len(raw) > length:
            raise self._wrong(f"has {len(raw)} bytes", f"send a text of at most {length}")
        return np.frombuffer(raw.ljust(length, b"\0"), np.uint8).copy()

    def _image(self, array: NDArray[Any]) -> NDArray[np.uint8]:
        if array.dtype != np.uint8:
            raise self._wrong(f"is an image of {array.dtype}", "send uint8, 0 to 255, as cameras give it")
        image = array.transpose(1, 2, 0) if self.layout == "chw" and array.ndim == 3 else array
        wanted = self.stream.shape
        if image.shape != wanted:
            fits = image.ndim == 3 and image.shape[2] == wanted[2] and min(image.shape) > 0
            if not (self.resize and fits and max(image.shape) <= MAX_SIDE):
                size = f"up to {MAX_SIDE} pixels a side" if self.resize else f"shape {self._shape()}"
                fix = f"send {self.layout} with {wanted[2]} channels, {size}"
                raise self._wrong(f"has shape {array.shape}", fix if self.resize else f"{fix}; or set resize: true")
            image = resize(np.ascontiguousarray(image), *wanted[:2])
        return np.ascontiguousarray(image)

    def _numbers(self, array: NDArray[Any]) -> NDArray[Any]:
        if self.stream.dtype != "float32" and array.dtype.kind == "f":
            raise self._wrong(f"has dtype {array.dtype}", f"send {self.stream.dtype}")
        given = array.reshape(1) if array.ndim == 0 else array
        fits = self.shape is None or given.shape == self.shape
        if self.columns is not None:
            if not fits or given.ndim != 1 or len(given) <= max(self.columns):
                raise self._wrong(f"has shape {array.shape}", f"send shape {self._shape()}")
            given = given[list(self.columns)]
        if not fits or given.shape != self.stream.shape:
            raise self._wrong(f"has shape {array.shape}", f"send shape {self._shape()}")
        if self.stream.dtype != "float32" and given.size:
            range_of = np.iinfo(self.stream.dtype)
            if given.min() < range_of.min or given.max() > range_of.max:
                raise self._wrong(f"holds numbers outside {self.stream.dtype}", f"send {self.stream.dtype}")
        with np.errstate(over="ignore"):  # infinite results are refused below
            taken = given.astype(self.stream.dtype)
        if not np.isfinite(taken).all():
            raise self._wrong("is not finite", "send finite numbers")
        return taken

    def _wrong(self, what: str, fix: str) -> SpecMismatch:
        return SpecMismatch(f"key {'/'.join(self.path)}, for stream {self.stream.name}, {what}", self.where, fix)


def sources_of(
    name: str, entries: Mapping[str, Any] | None, streams: Iterable[Stream], whose: str
) -> tuple[StreamSource, ...]:
    """Sources of streams; without `entries`, each stream's own name is its key and `instruction` is text.

    Raises:
        ConfigError, SpecMismatch: See `Embodiment.from_config`.
    """
    if entries is None:
        entries = {s.name: {"key": s.name, "text": s.name == "instruction" and _is_text(s)} for s in streams}
    made = []
    for stream in streams:
        where = f"embodiment {name}, stream {stream.name}"
        if stream.name not in entries:
            known = f"{nearest(stream.name, entries)} Or name its key"
            raise SpecMismatch(f"{whose} needs stream {stream.name}, which has no key", where, known)
        made.append(_source(stream, entries[stream.name], where))
    return tuple(made)


def check_whole(name: str, sources: Iterable[StreamSource]) -> None:
    """Raise `ConfigError` unless a request made from `sources` has every number and no key twice."""
    taken: dict[tuple[str, ...], set[int]] = {}
    sizes: dict[tuple[str, ...], int] = {}
    for source in sources:
        columns = set(source.columns or ())
        twice = source.path in taken and (not columns or not taken[source.path] or columns & taken[source.path])
        within = any(len(path) != len(source.path) and all(map(str.__eq__, path, source.path)) for path in taken)
        if twice or within:
            raise ConfigError(f"key {'/'.join(source.path)} is made twice", source.where, "name each key once")
        taken.setdefault(source.path, set()).update(columns)
        if columns:
            sizes[source.path] = source.size_of_vector
    for path, size in sizes.items():
        if missing := sorted(set(range(size)) - taken[path]):
            what = f"no stream gives columns {missing[:8]} of key {'/'.join(path)}"
            raise ConfigError(what, f"embodiment {name}", "name a stream for every column")


def _source(stream: Stream, entry: Any, where: str) -> StreamSource:
    if not isinstance(entry, Mapping):
        entry = {"key": entry}
    for key in entry:
        if key not in _FIELDS:
            raise ConfigError(f"unknown field {key}", where, nearest(key, _FIELDS))
    given = entry.get("key")
    path = (given,) if isinstance(given, str) else tuple(given) if isinstance(given, list | tuple) else ()
    if not path or not all(isinstance(part, str) and part for part in path):
        raise ConfigError(f"key {given!r} is no name", where, "give a name, or a list of names for nested maps")
    options = {field: _counts(entry, field, where) for field in ("columns", "shape")}
    for field in ("resize", "text"):
        if type(entry.get(field, False)) is not bool:
            raise ConfigError(f"{field} is {entry[field]!r}", where, "write true or false")
    default, layout = entry.get("default"), str(entry.get("layout", "hwc"))
    if layout not in LAYOUTS:
        raise ConfigError(f"layout {layout}", where, nearest(layout, LAYOUTS))
    made = StreamSource(
        stream, path, where, layout, entry.get("resize", False), entry.get("text", False), default, **options
    )
    _check(made)
    return made


def _counts(entry: Mapping[str, Any], field: str, where: str) -> tuple[int, ...] | None:
    value = entry.get(field)
    if value is None:
        return None
    if not isinstance(value, list | tuple) or not value or not all(type(n) is int and n >= 0 for n in value):
        raise ConfigError(f"{field} is {value!r}", where, "give a list of counts")
    return tuple(value)


def _check(source: StreamSource) -> None:
    """Raise unless the stream can be made from the value that the config describes."""
    stream, key = source.stream, "/".join(source.path)
    kind = f"{stream.dtype} {list(stream.shape)}"

    def no(what: str, fix: str) -> SpecMismatch:
        return SpecMismatch(f"key {key} {what}, stream {stream.name} is {kind}", source.where, fix)

    if source.text and not _is_text(stream):
        raise no("is text", "a text's stream is uint8 with one axis")
    if (source.resize or source.layout == "chw") and not source.image:
        raise no("is an image", "an image's stream is uint8 [height, width, channels]")
    if source.default is not None and not (
        source.text and isinstance(source.default, str) and len(source.default.encode()) <= stream.size
    ):
        raise no(f"has the default {source.default!r}", "only a text that fits can be one")
    if source.columns is not None and (source.image or source.text or (len(source.columns),) != stream.shape):
        raise no(f"gives {len(source.columns)} columns", "name one column per number of the stream")
    if source.shape is None:
        return
    if source.image:
        tall, wide = _size(source.shape, source.layout) if len(source.shape) == 3 else (0, 0)
        channels = source.shape[0 if source.layout == "chw" else -1]
        fits = 0 < tall <= MAX_SIDE and 0 < wide <= MAX_SIDE and channels == stream.shape[2]
        if not fits or not (source.resize or (tall, wide) == stream.shape[:2]):
            raise no(f"is sent as {source.layout} {list(source.shape)}", "set resize: true, or another layout")
    elif source.columns is not None:
        if len(source.shape) != 1 or max(source.columns) >= source.shape[0]:
            raise no(f"is sent as {list(source.shape)}, of which columns {list(source.columns)} are taken", "fit them")
    elif source.text or source.shape != stream.shape:
        raise no(f"is sent as {list(source.shape)}", "use a policy made for this embodiment, or name columns")


def _size(shape: tuple[int, ...], layout: str) -> tuple[int, int]:
    return (shape[1], shape[2]) if layout == "chw" else (shape[0], shape[1])


def _is_image(stream: Stream) -> bool:
    return stream.dtype == "uint8" and len(stream.shape) == 3


def _is_text(stream: Stream) -> bool:
    return stream.dtype == "uint8" and len(stream.shape) == 1
