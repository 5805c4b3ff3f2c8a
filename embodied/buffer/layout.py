"""Layout of an episode in HDF5: names of groups and datasets, fields of tables, and their checks.

`docs/episode-format.md` describes the layout for readers in other projects. An agent has few datasets, since creating
one costs as much as writing a short episode: values per step and values per decision are one compound dataset each.
"""

import re
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embodied.data import Rule
from embodied.episode import Episode, Track
from embodied.errors import DataError

FORMAT = "embodied-episodes-2"
FORMAT_1 = "embodied-episodes-1"
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
    "time": "time",
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
CHANGE_FIELDS = ("step", "requested", "executed", "rule")
DTYPES = {
    "decision": np.int32, "k": np.int32, "reward": np.float32, "reward_status": np.uint8, "terminated": np.bool_,
    "truncated": np.bool_, "source": np.uint8, "trainable": np.bool_, "segment": np.int32, "applied": np.float64,
    "step": np.int32, "value": np.float32, "version": np.int64, "executed": np.bool_, "actions": np.float32,
    "log_probs": np.float32, "state_hash": np.uint64, "time": np.float64,
}  # fmt: skip
MAY_BE_EMPTY = ("applied", "actions", "log_probs")
MAY_BE_NONE = ("state_hash", "time")
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
    """Names of a track's arrays whose length or shape does not fit its steps and decisions."""
    steps, decisions = len(track.rewards), len(track.step)
    wrong = [a for a in STEP_FIELDS.values() if a not in MAY_BE_NONE and len(getattr(track, a)) != steps]
    wrong += [a for a in DECISION_FIELDS.values() if len(getattr(track, a)) != decisions]
    wrong += [f"observations/{name}" for name, value in track.observations.items() if len(value) != steps + 1]
    wrong += [f"jpeg/{name}" for name, files in track.jpeg.items() if len(files) != steps + 1]
    wrong += [f"times/{name}" for name, value in track.times.items() if value.shape != (steps + 1,)]
    optional: dict[str, tuple[NDArray[Any] | None, tuple[int, ...]]] = {
        "state_hash": (track.state_hash, (steps,)),
        "time": (track.time, (steps + 1,)),
        "action_requested": (track.action_requested, (steps, track.actions.shape[-1])),
        "action_executed": (track.action_executed, (steps, track.actions.shape[-1])),
        "action_rule": (track.action_rule, (steps,)),
    }
    wrong += [name for name, (value, shape) in optional.items() if value is not None and value.shape != shape]
    if track.executed.ndim != 2 or not track.executed.shape[1]:
        wrong.append("executed")
    return wrong


def change_table(size: int) -> np.dtype:
    """Type of one row of `changed_actions`, for actions of `size` numbers."""
    return np.dtype([("step", "i4"), ("requested", "f4", (size,)), ("executed", "f4", (size,)), ("rule", "u1")])


def changed_steps(track: Track) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """[L] whether the requested action is not the decision's, and [L] whether the executed one is not as requested."""
    none = np.zeros(len(track), bool)
    requested, executed = track.action_requested, track.action_executed
    return (
        none if requested is None else ~_equal(requested, track.decided),
        none if executed is None else ~_equal(executed, track.requested),
    )


def drop_equal_actions(track: Track) -> None:
    """Set to None a track's requested actions, executed actions and rules where no step has another than usual."""
    requested, executed = changed_steps(track)
    if not executed.any():
        track.action_executed = None
    if not requested.any():
        track.action_requested = None
    if track.action_rule is not None and not track.action_rule.any():
        track.action_rule = None


def pack_changes(track: Track) -> NDArray[Any] | None:
    """Rows of the steps whose action was not the decision's, or was changed by a rule; None where there are none."""
    if track.action_requested is None and track.action_executed is None and track.action_rule is None:
        return None
    rule = np.zeros(len(track), np.uint8) if track.action_rule is None else track.action_rule
    changed = np.logical_or(*changed_steps(track)) | (rule != Rule.NONE)
    if not changed.any() or not track.actions.shape[2]:
        return None
    executed = track.requested if track.action_executed is None else track.action_executed
    table = np.zeros(int(changed.sum()), change_table(track.actions.shape[2]))
    table["step"] = np.flatnonzero(changed)
    table["requested"], table["executed"] = track.requested[changed], executed[changed]
    table["rule"] = rule[changed]
    return table


def unpack_changes(track: Track, table: NDArray[Any]) -> None:
    """Set the action arrays of a track from the rows of `pack_changes`.

    Raises:
        ValueError: The table does not fit the track.
    """
    size = track.actions.shape[2]
    if table.ndim != 1 or not size or table.dtype != change_table(size):
        raise ValueError(f"changed_actions of {table.dtype} {table.shape}")
    steps, decided = table["step"], track.decided
    if len(steps) and not (steps[0] >= 0 and (np.diff(steps) > 0).all() and steps[-1] < len(track)):
        raise ValueError("changed_actions points outside")
    if not _equal(table["requested"], decided[steps]).all():
        track.action_requested = decided.copy()
        track.action_requested[steps] = table["requested"]
    if not _equal(table["executed"], table["requested"]).all():
        track.action_executed = track.requested.copy()
        track.action_executed[steps] = table["executed"]
    if table["rule"].any():
        track.action_rule = np.zeros(len(track), np.uint8)
        track.action_rule[steps] = table["rule"]


def _equal(one: NDArray[Any], other: NDArray[Any]) -> NDArray[np.bool_]:
    """[L] whether rows are equal, NaN being equal to NaN."""
    return ((one == other) | (np.isnan(one) & np.isnan(other))).all(axis=1)
