"""Episodes read from an HDF5 file, of format 2 or 1."""

import json
import math
from typing import Any

import h5py
import numpy as np
from h5py import h5a, h5d, h5g, h5s, h5t
from numpy.typing import NDArray

from embodied.buffer.encode import TEXT_IN_MEMORY, handle
from embodied.buffer.layout import (
    DECISION_FIELDS,
    FORMAT_1,
    JPEG_SHAPE,
    RESERVED,
    STEP_FIELDS,
    flat_name,
    unpack_changes,
    unpack_fields,
)
from embodied.buffer.pictures import decode_jpeg
from embodied.data import Outcome
from embodied.episode import Episode, Track

DEFLATE_RATIO = 1100
"""Bytes that one compressed byte can hold at most; deflate reaches 1032."""
DATASET_BYTES = 2**36


def decode(root: h5g.GroupID, id: str, limit: int, format: str) -> Episode:
    """The episode `id` of the group `/episodes`.

    Args:
        limit: Bytes of the file. No dataset may claim more than its bytes in the file can hold; checked before
            allocation.
        format: The file's attribute `format`.

    Raises:
        ValueError, KeyError, TypeError, OSError, RuntimeError: It is not laid out as documented.
        UserError: It holds JPEG pictures, and the package that reads them is not installed.
    """
    group = h5g.open(root, flat_name(id).encode())
    segments = [str(name) for name in json.loads(_read_text(group, "segments"))]
    seed = np.zeros((), np.int64)
    h5a.open(group, b"seed").read(seed)
    agents = {}
    for name in (name.decode() for name in group if name.decode() not in RESERVED):
        track = _track(h5g.open(group, name.encode()), name, limit, len(segments))
        source = group if format == FORMAT_1 else h5g.open(group, name.encode())
        track.policy, track.outcome = _read_text(source, "policy"), Outcome[_read_text(source, "outcome").upper()]
        agents[name] = track
    spec = dict(json.loads(_read_text(group, "spec")))
    order = [name for name in spec.get("agents", ()) if name in agents]
    return Episode(
        id=id,
        **{name: _read_text(group, name) for name in ("task", "mode", "reward_version")},
        seed=int(seed),
        spec=spec,
        agents={name: agents[name] for name in (*order, *(name for name in agents if name not in order))},
        initial_state=_read(group, "initial_state", limit),
        drawn=_read_all(group, "drawn", limit) if b"drawn" in group else {},
        segments=segments,
    )


def _read_text(group: h5g.GroupID, name: str) -> str:
    attribute = h5a.open(group, name.encode())
    if not isinstance(attribute.get_type(), h5t.TypeStringID) or attribute.shape != ():
        raise TypeError(f"attribute {name} is no text")
    value = np.empty((), object)
    attribute.read(value, TEXT_IN_MEMORY)
    return value[()].decode() if isinstance(value[()], bytes) else str(value[()])


def _read(group: h5g.GroupID, name: str, limit: int) -> NDArray[Any]:
    return _values(h5d.open(group, name.encode()), name, limit)


def _values(dataset: h5d.DatasetID, name: str, limit: int) -> NDArray[Any]:
    shape, dtype = dataset.shape, dataset.dtype
    if dataset.get_create_plist().get_nfilters():
        limit = min(DATASET_BYTES, DEFLATE_RATIO * min(dataset.get_storage_size(), limit))
    if math.prod(shape) * dtype.itemsize > limit:
        raise ValueError(f"{name} claims more bytes than its file has")
    if dtype.hasobject:
        raise TypeError(f"{name} holds no numbers")
    value = np.empty(shape, dtype)
    dataset.read(h5s.ALL, h5s.ALL, value, handle(dtype))
    return value


def _read_all(group: h5g.GroupID, name: str, limit: int) -> dict[str, NDArray[Any]]:
    below = h5g.open(group, name.encode())
    return {key.decode(): _read(below, key.decode(), limit) for key in below}


def _read_jpeg(dataset: h5d.DatasetID, name: str, limit: int) -> list[bytes]:
    if len(dataset.shape) != 1 or not dataset.shape[0] or 16 * dataset.shape[0] > limit:
        raise ValueError(f"{name} is no list of files")
    return [np.asarray(file, np.uint8).tobytes() for file in h5py.Dataset(dataset)]


def _track(group: h5g.GroupID, agent: str, limit: int, segments: int) -> Track:
    steps, decisions = _read(group, "steps", limit), _read(group, "decisions", limit)
    names = decisions.dtype.names or ()
    decisions.dtype.names = tuple("step" if name == "seq" else name for name in names)  # `seq` in format 1
    columns: dict[str, Any] = unpack_fields(steps, STEP_FIELDS) | unpack_fields(decisions, DECISION_FIELDS)
    streams, jpeg = dict[str, NDArray[Any]](), dict[str, list[bytes]]()
    below = h5g.open(group, b"obs")
    for name in (key.decode() for key in below):
        dataset = h5d.open(below, name.encode())
        if h5a.exists(dataset, JPEG_SHAPE.encode()):
            jpeg[name] = _read_jpeg(dataset, name, limit)
            streams[name] = decode_jpeg(jpeg[name], name)
        else:
            streams[name] = _values(dataset, name, limit)
    times = _read_all(group, "times", limit) if b"times" in group else {}
    for name, value in (streams | {f"times of {key}": value for key, value in times.items()}).items():
        if not value.ndim or len(value) != len(steps) + 1:
            raise ValueError(f"{agent}: {name} holds {value.shape} for {len(steps)} steps")
    for name, low, high in (("decision", -1, len(decisions)), ("segment", -1, segments), ("step", 0, len(steps))):
        values = columns[name]
        if len(values) and not (low <= values.min() and values.max() < high):
            raise ValueError(f"{agent}: {name} points outside")
    if "time" in columns:
        final = np.full((), np.nan)
        if h5a.exists(group, b"final_time"):
            h5a.open(group, b"final_time").read(final)
        columns["time"] = np.append(columns["time"], final)
    track = Track(observations=streams, times=times, jpeg=jpeg, **columns)
    if len(steps) and not (track.k.min() >= -1 and track.k.max() < track.actions.shape[1]):
        raise ValueError(f"{agent}: k points outside")
    if b"changed_actions" in group:
        unpack_changes(track, _read(group, "changed_actions", limit))
    return track
