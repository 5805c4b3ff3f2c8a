"""An episode as HDF5: which dataset holds what. `docs/episode-format.md` describes it for readers of other projects.

Per agent there are few datasets, since creating one costs as much as writing a short episode: what is per step and
what is per decision is one compound dataset each.
"""

import json
import math
import re
from collections.abc import Sequence
from typing import Any

import h5py
import numpy as np
from h5py import h5a, h5d, h5g, h5p, h5s, h5t
from numpy.typing import NDArray

from embodied.data import Episode, Outcome, Track
from embodied.errors import DataError

FORMAT = "embodied-episodes-1"
STEP_FIELDS = {
    "decision": "decision",
    "k": "k",
    "reward": "rewards",
    "reward_status": "reward_status",
    "terminated": "terminated",
    "truncated": "truncated",
    "source": "source",
    "trainable": "trainable",
    "segment": "segment",
    "applied": "applied",
    "state_hash": "state_hash",
}
DECISION_FIELDS = {
    "step": "step",
    "value": "values",
    "version": "versions",
    "executed": "executed",
    "actions": "actions",
    "log_probs": "log_probs",
}
DTYPES = {
    "decision": np.int32, "k": np.int32, "reward": np.float32, "reward_status": np.uint8, "terminated": np.bool_,
    "truncated": np.bool_, "source": np.uint8, "trainable": np.bool_, "segment": np.int32, "applied": np.float64,
    "step": np.int32, "value": np.float32, "version": np.int64, "executed": np.bool_, "actions": np.float32,
    "log_probs": np.float32, "state_hash": np.uint64,
}  # fmt: skip
MAY_BE_EMPTY = ("applied", "actions", "log_probs")
MAY_BE_NONE = ("state_hash",)
RESERVED = ("initial_state", "drawn")

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}\Z")
_NAME = re.compile(r"[^/\0]{1,128}\Z")
_SCALAR = h5s.create(h5s.SCALAR)
_TEXT_IN_FILE = h5t.py_create(h5py.string_dtype(), logical=True)
_TEXT_IN_MEMORY = h5t.py_create(h5py.string_dtype())
_TYPES: dict[np.dtype, h5t.TypeID] = {}


def encode(episodes: Sequence[Episode]) -> bytes:
    """The HDF5 image of episodes, made in memory so that a full disk never meets a half-made file.

    Raises:
        DataError: An episode cannot be stored as it stands; names it and the field.
    """
    with h5py.File("image", "w", driver="core", backing_store=False, block_size=2**20, libver=("v110", "v110")) as file:
        file.attrs["format"] = FORMAT
        root = h5g.create(file.id, b"episodes")
        specs: dict[int, str] = {}  # episodes of one env share their spec
        for episode in episodes:
            if id(episode.spec) not in specs:
                specs[id(episode.spec)] = json.dumps(episode.spec)
            _write_episode(root, episode, specs[id(episode.spec)])
        del root
        file.flush()
        return file.id.get_file_image()


def check_names(id: str, agent: str) -> None:
    """Raise `DataError` unless an episode and its agent can be stored under their names."""
    if not _ID.match(id):
        raise DataError(f"episode id {id!r} is no name", "id", "use letters, digits, '-', '_' and '.'")
    if not _NAME.match(agent) or agent in RESERVED:
        raise DataError(f"agent name {agent!r} cannot be stored", f"episode {id}", f"avoid slashes and {RESERVED}")


def check(episode: Episode) -> None:
    """Raise `DataError` unless names and array lengths of an episode can be stored and read back."""
    for agent, track in episode.agents.items():
        check_names(episode.id, agent)
        where = f"episode {episode.id}, agent {agent}"
        steps, decisions = len(track.rewards), len(track.step)
        columns = {a: getattr(track, a) for a in STEP_FIELDS.values()}
        wrong = [a for a, v in columns.items() if len(v if v is not None else track.rewards) != steps]
        wrong += [a for a in DECISION_FIELDS.values() if len(getattr(track, a)) != decisions]
        wrong += [f"observations/{n}" for n, v in track.observations.items() if len(v) != steps + 1]
        if track.executed.ndim != 2 or not track.executed.shape[1]:
            wrong.append("executed")
        if wrong:
            raise DataError(
                f"arrays of unequal length: {', '.join(wrong)}", where, "give one entry per step or decision"
            )
        for name in track.observations:
            if not _NAME.match(name):
                raise DataError(f"stream name {name!r} cannot be stored", where, "name it without slashes")
    for name, value in episode.drawn.items():
        if not _NAME.match(name) or np.asarray(value).dtype.kind not in "biuf":
            raise DataError(f"drawn value {name!r} cannot be stored", f"episode {episode.id}", "draw named numbers")


def _type(dtype: np.dtype) -> h5t.TypeID:
    if dtype not in _TYPES:
        _TYPES[dtype] = h5t.py_create(dtype, logical=True)
    return _TYPES[dtype]


def _text(target: h5g.GroupID, name: str, value: str) -> None:
    attribute = h5a.create(target, name.encode(), _TEXT_IN_FILE, _SCALAR)
    attribute.write(np.array(value, dtype=h5py.string_dtype()), _TEXT_IN_MEMORY)


def _dataset(group: h5g.GroupID, name: str, value: NDArray[Any], per_step: bool = False) -> None:
    value = np.asarray(value, order="C")
    space = h5s.create_simple(value.shape) if value.shape else _SCALAR
    layout = None
    if per_step and value.size:
        layout = h5p.create(h5p.DATASET_CREATE)
        layout.set_chunk((1, *value.shape[1:]))
    kind = _type(value.dtype)
    h5d.create(group, name.encode(), kind, space, layout).write(h5s.ALL, h5s.ALL, value, kind)


def pack(track: Track, columns: dict[str, str], length: int) -> NDArray[Any]:
    """A compound array of `length` rows; fields whose rows are empty are left out, since HDF5 has no empty arrays."""
    given = {name: getattr(track, attribute) for name, attribute in columns.items()}
    arrays: dict[str, NDArray[Any]] = {
        name: np.asarray(value, DTYPES[name]) for name, value in given.items() if value is not None
    }
    arrays = {name: value for name, value in arrays.items() if 0 not in value.shape[1:]}
    table = np.zeros(length, [(name, DTYPES[name], value.shape[1:]) for name, value in arrays.items()])
    for name, value in arrays.items():
        table[name] = value
    return table


def _write_episode(root: h5g.GroupID, episode: Episode, spec: str) -> None:
    check(episode)
    group = h5g.create(root, episode.id.encode())
    for name in ("task", "mode", "policy", "reward_version"):
        _text(group, name, getattr(episode, name))
    _text(group, "outcome", episode.outcome.name.lower())
    _text(group, "spec", spec)
    _text(group, "segments", json.dumps(episode.segments))
    seed = np.array(episode.seed, np.int64)
    h5a.create(group, b"seed", _type(seed.dtype), _SCALAR).write(seed)
    _dataset(group, "initial_state", np.asarray(episode.initial_state, np.float64))
    if episode.drawn:
        drawn = h5g.create(group, b"drawn")
        for name, value in episode.drawn.items():
            _dataset(drawn, name, np.asarray(value))
    for agent, track in episode.agents.items():
        below = h5g.create(group, agent.encode())
        streams = h5g.create(below, b"obs")
        for name, value in track.observations.items():
            _dataset(streams, name, value, per_step=value.dtype == np.uint8 and value.ndim >= 3)
        _dataset(below, "steps", pack(track, STEP_FIELDS, len(track.rewards)))
        _dataset(below, "decisions", pack(track, DECISION_FIELDS, len(track.step)))


def decode(root: h5g.GroupID, id: str, limit: int) -> Episode:
    """The episode `id` of the group `/episodes`.

    Args:
        limit: Bytes that no dataset may exceed, checked before allocation: those of the file, for nothing is packed.

    Raises:
        ValueError, KeyError, TypeError, OSError, RuntimeError: It is not laid out as documented.
    """
    group = h5g.open(root, id.encode())
    texts = {name: _read_text(group, name) for name in ("task", "mode", "policy", "reward_version")}
    segments = [str(name) for name in json.loads(_read_text(group, "segments"))]
    seed = np.zeros((), np.int64)
    h5a.open(group, b"seed").read(seed)
    agents = [name.decode() for name in group if name.decode() not in RESERVED]
    return Episode(
        id=id,
        **texts,
        seed=int(seed),
        outcome=Outcome[_read_text(group, "outcome").upper()],
        spec=dict(json.loads(_read_text(group, "spec"))),
        agents={name: _track(h5g.open(group, name.encode()), name, limit, len(segments)) for name in agents},
        initial_state=_read(group, "initial_state", limit),
        drawn=_read_all(group, "drawn", limit) if b"drawn" in group else {},
        segments=segments,
    )


def _read_text(group: h5g.GroupID, name: str) -> str:
    attribute = h5a.open(group, name.encode())
    if not isinstance(attribute.get_type(), h5t.TypeStringID) or attribute.shape != ():
        raise TypeError(f"attribute {name} is no text")
    value = np.empty((), object)
    attribute.read(value, _TEXT_IN_MEMORY)
    return value[()].decode() if isinstance(value[()], bytes) else str(value[()])


def _read(group: h5g.GroupID, name: str, limit: int) -> NDArray[Any]:
    dataset = h5d.open(group, name.encode())
    shape, dtype = dataset.shape, dataset.dtype
    if math.prod(shape) * dtype.itemsize > limit:
        raise ValueError(f"{name} claims more bytes than its file has")
    if dtype.hasobject:
        raise TypeError(f"{name} holds no numbers")
    value = np.empty(shape, dtype)
    dataset.read(h5s.ALL, h5s.ALL, value, _type(dtype))
    return value


def _read_all(group: h5g.GroupID, name: str, limit: int) -> dict[str, NDArray[Any]]:
    below = h5g.open(group, name.encode())
    return {key.decode(): _read(below, key.decode(), limit) for key in below}


def _track(group: h5g.GroupID, agent: str, limit: int, segments: int) -> Track:
    steps, decisions = _read(group, "steps", limit), _read(group, "decisions", limit)
    if steps.ndim != 1 or decisions.ndim != 1:
        raise ValueError(f"tables of {agent} are not one-dimensional")
    streams = _read_all(group, "obs", limit)
    for name, value in streams.items():
        if not value.ndim or len(value) != len(steps) + 1:
            raise ValueError(f"{agent}/obs/{name} holds {value.shape} for {len(steps)} steps")
    columns: dict[str, Any] = _columns(steps, STEP_FIELDS) | _columns(decisions, DECISION_FIELDS)
    for name, low, high in (("decision", 0, len(decisions)), ("segment", -1, segments), ("step", 0, len(steps))):
        values = columns[name]
        if len(values) and not (low <= values.min() and values.max() < high):
            raise ValueError(f"{agent}: {name} points outside")
    return Track(observations=streams, **columns)


def _columns(table: NDArray[Any], names: dict[str, str]) -> dict[str, NDArray[Any]]:
    columns: dict[str, NDArray[Any]] = {}
    for name, attribute in names.items():
        if name in (table.dtype.names or ()):
            column = np.ascontiguousarray(table[name])
        elif name in MAY_BE_EMPTY:
            middle = () if name == "applied" else table.dtype["executed"].shape
            column = np.zeros((len(table), *middle, 0), DTYPES[name])
        elif name in MAY_BE_NONE:
            continue
        else:
            raise KeyError(f"field {name}")
        if column.dtype != DTYPES[name]:
            raise TypeError(f"field {name} is {column.dtype}")
        columns[attribute] = column
    return columns
