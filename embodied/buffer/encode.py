"""Episodes as an HDF5 image."""

import json
import zlib
from collections.abc import Sequence
from typing import Any

import h5py
import numpy as np
from h5py import h5a, h5d, h5g, h5p, h5s, h5t
from numpy.typing import NDArray

from embodied.buffer.layout import (
    DECISION_FIELDS,
    FORMAT,
    JPEG_SHAPE,
    STEP_FIELDS,
    check,
    flat_name,
    pack_changes,
    pack_fields,
)
from embodied.buffer.pictures import jpeg_shape
from embodied.episode import Episode, Track

GZIP_LEVEL = 1
GZIP_PAYS = 0.8
"""Share of its size below which a compressed picture is worth the time."""

_SCALAR = h5s.create(h5s.SCALAR)
_TEXT_IN_FILE = h5t.py_create(h5py.string_dtype(), logical=True)
TEXT_IN_MEMORY = h5t.py_create(h5py.string_dtype())
FILE = h5py.vlen_dtype(np.uint8)
_TYPES: dict[np.dtype, h5t.TypeID] = {}


def encode(episodes: Sequence[Episode]) -> bytes:
    """The HDF5 image of episodes, made in memory so that a full disk never leaves a half-made file.

    Raises:
        DataError: An episode cannot be stored as it stands; names it and the field.
    """
    with h5py.File("image", "w", driver="core", backing_store=False, block_size=2**20, libver=("v110", "v110")) as file:
        file.attrs["format"] = FORMAT
        root = h5g.create(file.id, b"episodes")
        groups = []  # all before the first episode, so that a truncated file still finds its whole episodes
        for episode in episodes:
            check(episode)
            groups.append(h5g.create(root, flat_name(episode.id).encode()))
        file.flush()  # gives their links a place
        specs: dict[int, str] = {}  # episodes of one environment share their spec
        for group, episode in zip(groups, episodes, strict=True):
            if id(episode.spec) not in specs:
                specs[id(episode.spec)] = json.dumps(episode.spec)
            _write_episode(group, episode, specs[id(episode.spec)])
        del root, groups, group
        file.flush()
        return file.id.get_file_image()


def handle(dtype: np.dtype) -> h5t.TypeID:
    """The HDF5 type of a numpy type, made once."""
    if dtype not in _TYPES:
        _TYPES[dtype] = h5t.py_create(dtype, logical=True)
    return _TYPES[dtype]


def _text(target: h5g.GroupID, name: str, value: str) -> None:
    attribute = h5a.create(target, name.encode(), _TEXT_IN_FILE, _SCALAR)
    attribute.write(np.array(value, dtype=h5py.string_dtype()), TEXT_IN_MEMORY)


def _number(target: h5g.GroupID, name: str, value: Any) -> None:
    space = h5s.create_simple(value.shape) if value.shape else _SCALAR
    h5a.create(target, name.encode(), handle(value.dtype), space).write(value)


def _dataset(group: h5g.GroupID, name: str, value: NDArray[Any], picture: bool = False) -> h5d.DatasetID:
    value = np.asarray(value, order="C")
    space = h5s.create_simple(value.shape) if value.shape else _SCALAR
    layout = None
    if picture and value.size:
        layout = h5p.create(h5p.DATASET_CREATE)
        layout.set_chunk((1, *value.shape[1:]))
        if _compressible(value[len(value) // 2]):
            if value.itemsize > 1:
                layout.set_shuffle()
            layout.set_deflate(GZIP_LEVEL)
    kind = handle(value.dtype)
    dataset = h5d.create(group, name.encode(), kind, space, layout)
    dataset.write(h5s.ALL, h5s.ALL, value, kind)
    return dataset


def _compressible(picture: NDArray[Any]) -> bool:
    """Whether compression pays: rendered pictures shrink to a tenth, those of a noisy camera hardly."""
    shuffled = picture.reshape(-1).view(np.uint8).reshape(-1, picture.itemsize).T  # first bytes first, as in the file
    return len(zlib.compress(shuffled.tobytes(), GZIP_LEVEL)) < GZIP_PAYS * picture.nbytes


def _jpeg(group: h5g.GroupID, name: str, files: list[bytes]) -> None:
    """Write JPEG files as they are, one array of bytes each, with the shape of the decoded picture."""
    dataset = h5py.Group(group).create_dataset(name, (len(files),), FILE)
    for n, file in enumerate(files):
        dataset[n] = np.frombuffer(file, np.uint8)
    _number(dataset.id, JPEG_SHAPE, np.array(jpeg_shape(files[0], name), np.int64))


def _write_episode(group: h5g.GroupID, episode: Episode, spec: str) -> None:
    for name in ("task", "mode", "reward_version"):
        _text(group, name, getattr(episode, name))
    _text(group, "spec", spec)
    _text(group, "segments", json.dumps(episode.segments))
    _number(group, "seed", np.array(episode.seed, np.int64))
    _dataset(group, "initial_state", np.asarray(episode.initial_state, np.float64))
    if episode.drawn:
        drawn = h5g.create(group, b"drawn")
        for name, value in episode.drawn.items():
            _dataset(drawn, name, np.asarray(value))
    for agent, track in episode.agents.items():
        _write_track(h5g.create(group, agent.encode()), track)


def _write_track(group: h5g.GroupID, track: Track) -> None:
    _text(group, "policy", track.policy)
    _text(group, "outcome", track.outcome.name.lower())
    streams = h5g.create(group, b"obs")
    for name, value in track.observations.items():
        if name not in track.jpeg:
            _dataset(streams, name, value, picture=value.ndim >= 3)
    for name, files in track.jpeg.items():
        _jpeg(streams, name, files)
    if track.times:
        times = h5g.create(group, b"times")
        for name, value in track.times.items():
            _dataset(times, name, np.asarray(value, np.float64))
    _dataset(group, "steps", pack_fields(track, STEP_FIELDS, len(track.rewards)))
    _dataset(group, "decisions", pack_fields(track, DECISION_FIELDS, len(track.step)))
    if track.time is not None and not np.isnan(track.time[-1]):
        _number(group, "final_time", np.array(track.time[-1], np.float64))
    if (changes := pack_changes(track)) is not None:
        _dataset(group, "changed_actions", changes)
