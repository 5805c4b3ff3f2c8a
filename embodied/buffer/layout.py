"""Layout of an episode in HDF5: names of groups and datasets, fields of tables, and their checks.

`docs/episode-format.md` describes the layout for readers in other projects. An agent has few datasets, since creating
one costs as much as writing a short episode: values per step and values per decision are one compound dataset each.
"""

import re
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from embodied.data import Rule
from embodied.episode import Episode, Track
from embodied.errors import DataError

FORMAT = "embodied-episodes-2"
FORMAT_1 = "embodied-episodes-1"


class Field(NamedTuple):
    """Field of the compound `steps` or `decisions`.

    Attributes:
        attribute: Of `Track`.
        axes: Of one row, letters of `sizes`; a field with an axis of size 0 is left out of the file.
        optional: Whether a track may lack it.
    """

    attribute: str
    dtype: np.dtype
    axes: str = ""
    optional: bool = False


_INT, _FLOAT, _BYTE, _BOOL = (np.dtype(kind) for kind in ("i4", "f4", "u1", "?"))
STEP_FIELDS = {
    "decision": Field("decision", _INT),
    "k": Field("k", _INT),
    "reward": Field("rewards", _FLOAT),
    "reward_status": Field("reward_status", _BYTE),
    "terminated": Field("terminated", _BOOL),
    "truncated": Field("truncated", _BOOL),
    "source": Field("source", _BYTE),
    "trainable": Field("trainable", _BOOL),
    "segment": Field("segment", _INT),
    "time": Field("time", np.dtype("f8"), optional=True),
    "applied": Field("applied", np.dtype("f8"), "U"),
    "state_hash": Field("state_hash", np.dtype("u8"), optional=True),
}
DECISION_FIELDS = {
    "step": Field("step", _INT),
    "value": Field("values", _FLOAT),
    "version": Field("versions", np.dtype("i8")),
    "executed": Field("executed", _BOOL, "K"),
    "actions": Field("actions", _FLOAT, "KD"),
    "log_probs": Field("log_probs", _FLOAT, "KD"),
}
RESERVED = ("initial_state", "drawn")
JPEG_SHAPE = "jpeg_shape"

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}(/[A-Za-z0-9][A-Za-z0-9._-]{0,127}){0,3}\Z")
_NAME = re.compile(r"[^/\0]{1,128}\Z")


def flat_name(id: str) -> str:
    """Name of an episode's HDF5 group and of its file: its id with `~` for each slash, which no id holds otherwise."""
    return id.replace("/", "~")


def check_id(id: str) -> None:
    """Raise `DataError` unless an episode can be stored under this id."""
    if not _ID.match(id) or len(id) > 200:
        fix = "join up to four names of letters, digits, '-', '_' and '.' by slashes, 200 characters at most"
        raise DataError(f"episode id {id!r} is no name", "id", fix)


def check_agent(id: str, agent: str) -> None:
    """Raise `DataError` unless a track can be stored under this agent's name."""
    if not _NAME.match(agent) or agent in RESERVED:
        raise DataError(f"agent name {agent!r} cannot be stored", f"episode {id}", f"avoid slashes and {RESERVED}")


def check(episode: Episode) -> None:
    """Raise `DataError` unless names and array lengths of an episode can be stored and read back."""
    check_id(episode.id)
    for agent, track in episode.agents.items():
        check_agent(episode.id, agent)
        where = f"episode {episode.id}, agent {agent}"
        if wrong := _unequal(track):
            raise DataError(
                f"arrays of unequal length: {', '.join(wrong)}", where, "give one entry per step or decision"
            )
        for name in track.observations:
            if not _NAME.match(name):
                raise DataError(f"stream name {name!r} cannot be stored", where, "name it without slashes")
    for name, value in episode.drawn.items():
        if not _NAME.match(name) or np.asarray(value).dtype.kind not in "biuf":
            raise DataError(f"drawn value {name!r} cannot be stored", f"episode {episode.id}", "draw named numbers")


def _unequal(track: Track) -> list[str]:
    """Names of a track's arrays whose shape does not fit its steps and decisions."""
    steps, decisions = len(track.rewards), len(track.step)
    sizes = {"U": track.applied.shape[-1], "K": track.executed.shape[-1], "D": track.actions.shape[-1]}
    wrong = [] if sizes["K"] else ["executed"]
    shapes: dict[str, tuple[int, ...]] = dict.fromkeys(("action_requested", "action_executed"), (steps, sizes["D"]))
    shapes["action_rule"] = (steps,)
    for length, fields in ((steps, STEP_FIELDS), (decisions, DECISION_FIELDS)):
        shapes |= {field.attribute: (length, *(sizes[axis] for axis in field.axes)) for field in fields.values()}
    shapes["time"] = (steps + 1,)
    for name, shape in shapes.items():
        value = getattr(track, name)
        if value is not None and value.shape != shape:
            wrong.append(name)
    wrong += [f"observations/{name}" for name, value in track.observations.items() if len(value) != steps + 1]
    wrong += [f"jpeg/{name}" for name, files in track.jpeg.items() if len(files) != steps + 1]
    return wrong + [f"times/{name}" for name, value in track.times.items() if value.shape != (steps + 1,)]


def pack_fields(track: Track, fields: dict[str, Field], length: int) -> NDArray[Any]:
    """A compound array of `length` rows; fields whose rows are empty are left out, since HDF5 has no empty arrays."""
    arrays = {name: getattr(track, field.attribute) for name, field in fields.items()}
    arrays = {name: value for name, value in arrays.items() if value is not None and 0 not in value.shape[1:]}
    table = np.zeros(length, [(name, fields[name].dtype, value.shape[1:]) for name, value in arrays.items()])
    for name, value in arrays.items():
        table[name] = value[:length]
    return table


def unpack_fields(table: NDArray[Any], fields: dict[str, Field]) -> dict[str, NDArray[Any]]:
    """The arrays of `pack_fields` by attribute.

    Raises:
        ValueError, KeyError, TypeError: The table is not one-dimensional, lacks a field, or holds another type.
    """
    if table.ndim != 1:
        raise ValueError(f"a table of shape {table.shape}")
    names = table.dtype.names or ()
    columns: dict[str, NDArray[Any]] = {}
    for name, field in fields.items():
        if name in names:
            column = np.ascontiguousarray(table[name])
        elif field.optional:
            continue
        elif field.axes[-1:] in ("U", "D"):
            middle = table.dtype["executed"].shape if field.axes == "KD" else ()
            column = np.zeros((len(table), *middle, 0), field.dtype)
        else:
            raise KeyError(f"field {name}")
        if column.dtype != field.dtype or column.ndim != 1 + len(field.axes):
            raise TypeError(f"field {name} is {column.dtype} {column.shape}")
        columns[field.attribute] = column
    return columns


def change_table(size: int) -> np.dtype:
    """Type of one row of `changed_actions`, for actions of `size` numbers."""
    return np.dtype([("step", "i4"), ("requested", "f4", (size,)), ("executed", "f4", (size,)), ("rule", "u1")])


def pack_changes(track: Track) -> NDArray[Any] | None:
    """Rows of the steps whose action was not the decision's, or was changed by a rule; None where there are none."""
    if track.action_requested is None and track.action_executed is None and track.action_rule is None:
        return None
    rule = np.zeros(len(track), np.uint8) if track.action_rule is None else track.action_rule
    changed = np.logical_or(*track.changed_steps) | (rule != Rule.NONE)
    if not changed.any() or not track.actions.shape[2]:
        return None
    requested = track.requested
    executed = requested if track.action_executed is None else track.action_executed
    table = np.zeros(int(changed.sum()), change_table(track.actions.shape[2]))
    table["step"], table["rule"] = np.flatnonzero(changed), rule[changed]
    table["requested"], table["executed"] = requested[changed], executed[changed]
    return table


def unpack_changes(track: Track, table: NDArray[Any]) -> None:
    """Set the action arrays of a track from the rows of `pack_changes`.

    Raises:
        ValueError: The table does not fit the track.
    """
    size = track.actions.shape[2]
    if table.ndim != 1 or not size or table.dtype != change_table(size):
        raise ValueError(f"changed_actions of {table.dtype} {table.shape}")
    steps = table["step"]
    if len(steps) and not (steps[0] >= 0 and (np.diff(steps) > 0).all() and steps[-1] < len(track)):
        raise ValueError("changed_actions points outside")
    requested, rule = track.decided, np.zeros(len(track), np.uint8)
    requested[steps], rule[steps] = table["requested"], table["rule"]
    executed = requested.copy()
    executed[steps] = table["executed"]
    track.set_actions(requested, executed, rule)
