"""Codecs between the contracts of `embodied.data`, errors, and messages; received ones are checked."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embodied.data import ActionChunk, Observation, Rows
from embodied.errors import EmbodiedError, InfrastructureError, MessageError, nearest
from embodied.spec import Streams
from embodied.wire import jpeg

Arrays = dict[str, NDArray[Any]]

_INT32_ROWS = ("env", "agent", "step")
_TEXT = 2000
_STORED = "stored/"
TIMES = "times/"
_FORMS = 256

_forms: set[tuple[Any, ...]] = set()
"""Names, dtypes and shapes of action chunks that passed their checks."""


def take_array(
    arrays: Mapping[str, NDArray[Any]], name: str, dtype: str, shape: tuple[int | None, ...]
) -> NDArray[Any]:
    """One array of a message; `None` in `shape` matches any size.

    Raises:
        MessageError: It is missing, or of another dtype or shape.
    """
    array = arrays.get(name)
    if array is None:
        raise MessageError(f"array {name} is missing", name, "send it")
    fits = array.shape == shape or (
        array.ndim == len(shape) and all(want in (None, have) for want, have in zip(shape, array.shape, strict=True))
    )
    if array.dtype != dtype or not fits:
        raise MessageError(f"array {name} is {array.dtype} {array.shape}", name, f"send {dtype} {shape}")
    return array


def rows_to_arrays(rows: Rows) -> Arrays:
    """Arrays of rows: `rows` [3, B] int32 (env, agent, step) and `episode` [B] int64."""
    return {"rows": np.array((rows.env, rows.agent, rows.step)), "episode": rows.episode}


def rows_from_arrays(arrays: Mapping[str, NDArray[Any]]) -> Rows:
    """Rows of a message.

    Raises:
        MessageError: A vector is missing, or of another dtype or length.
    """
    env, agent, step = take_array(arrays, "rows", "int32", (len(_INT32_ROWS), None))
    return Rows(env, agent, take_array(arrays, "episode", "int64", (len(env),)), step)


def observation_to_arrays(
    observation: Observation, pictures: Mapping[str, tuple[NDArray[np.uint8], NDArray[np.int64]]] | None = None
) -> Arrays:
    """Arrays of an observation.

    They are its rows, `time` [B], `stream/<name>` [B, *shape] and `times/<name>` [B], and of a stream in `pictures`
    `jpeg/<name>` and `jpeg_ends/<name>` instead of `stream/<name>`.

    Args:
        observation: B rows.
        pictures: Stream name to the result of `embodied.wire.jpeg.encode`, which is sent in place of the stream.
    """
    arrays = {**rows_to_arrays(observation.rows), "time": observation.time}
    for name, array in observation.streams.items():
        if pictures and name in pictures:
            arrays[f"jpeg/{name}"], arrays[f"jpeg_ends/{name}"] = pictures[name]
        else:
            arrays[f"stream/{name}"] = array
    for name, array in observation.times.items():
        arrays[f"{TIMES}{name}"] = array
    return arrays


def observation_from_arrays(arrays: Mapping[str, NDArray[Any]], pictures: Streams = ()) -> Observation:
    """Observation of a message. `VersionedPolicy.check` finds out whether its streams fit a policy.

    Args:
        arrays: As `observation_to_arrays` makes them.
        pictures: Streams that may arrive as JPEG, with the shape that each picture must have.

    Raises:
        MessageError: Rows, time or a stream are missing or differ in their number of rows, a time is of no stream, or
            a picture cannot be decoded to its stream's shape.
    """
    rows = rows_from_arrays(arrays)
    time = take_array(arrays, "time", "float64", (len(rows),))
    streams = {}
    for name, array in arrays.items():
        if name.startswith("stream/"):
            if array.shape[:1] != (len(rows),):
                raise MessageError(
                    f"{name} has shape {array.shape} for {len(rows)} rows", name, "send one value per row"
                )
            streams[name.removeprefix("stream/")] = array
        elif name.startswith("jpeg/"):
            stream = name.removeprefix("jpeg/")
            taken = {stream.name: stream for stream in pictures if stream.dtype == "uint8"}
            if stream not in taken or stream in streams:
                raise MessageError(f"{stream} is not taken as JPEG", name, nearest(stream, taken))
            ends = take_array(arrays, f"jpeg_ends/{stream}", "int64", (len(rows),))
            streams[stream] = jpeg.decode(take_array(arrays, name, "uint8", (None,)), ends, taken[stream].shape, stream)
    times = {}
    for name in arrays:
        if name.startswith(TIMES):
            if (stream := name.removeprefix(TIMES)) not in streams:
                raise MessageError(f"{name} is of no stream sent", name, nearest(stream, streams))
            times[stream] = take_array(arrays, name, "float64", (len(rows),))
    return Observation(rows, streams, time, times)


def chunk_to_message(chunk: ActionChunk) -> tuple[dict[str, Any], Arrays]:
    """Body and arrays of an action chunk."""
    body = {"policy": chunk.policy, "valid_s": float(chunk.valid_s)}
    arrays = {name: getattr(chunk, name) for name in ("actions", "log_probs", "values", "versions")}
    stored = {f"{_STORED}{name}": array for name, array in chunk.stored.items()}
    return body, {**rows_to_arrays(chunk.rows), **arrays, **stored}


def chunk_from_message(body: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> ActionChunk:
    """Action chunk of a message.

    Raises:
        MessageError: A field is missing, or its type, dtype, shape or number of rows is wrong.
    """
    policy, valid_s = body.get("policy"), body.get("valid_s")
    if not isinstance(policy, str) or not isinstance(valid_s, float) or math.isnan(valid_s):
        raise MessageError("an action chunk without policy or valid_s", "act", "run the same version on both sides")
    form = tuple((name, array.dtype.str, array.shape) for name, array in arrays.items())
    if form not in _forms:
        _check_chunk(arrays)
        if len(_forms) >= _FORMS:
            _forms.clear()
        _forms.add(form)
    envs, agent, step = arrays["rows"]
    return ActionChunk(
        Rows(envs, agent, arrays["episode"], step),
        arrays["actions"],
        arrays["log_probs"],
        arrays["values"],
        arrays["versions"],
        policy,
        valid_s,
        {name.removeprefix(_STORED): array for name, array in arrays.items() if name.startswith(_STORED)},
    )


def _check_chunk(arrays: Mapping[str, NDArray[Any]]) -> None:
    rows = rows_from_arrays(arrays)
    actions = take_array(arrays, "actions", "float32", (len(rows), None, None))
    take_array(arrays, "log_probs", "float32", actions.shape)
    take_array(arrays, "values", "float32", (len(rows),))
    take_array(arrays, "versions", "int64", (len(rows),))
    for name, array in arrays.items():
        if name.startswith(_STORED) and array.shape[:1] != (len(rows),):
            raise MessageError(f"{name} has shape {array.shape} for {len(rows)} rows", name, "send one value per row")


def error_from_body(body: Mapping[str, Any]) -> EmbodiedError:
    """Error of an `error` message, of the class that its code names."""
    code, what, where, fix = (str(body.get(name, ""))[:_TEXT] for name in ("code", "what", "where", "fix"))
    return _by_code().get(code, InfrastructureError)(what, where, fix)


def _by_code() -> dict[str, type[EmbodiedError]]:
    found: dict[str, type[EmbodiedError]] = {}
    waiting: list[type[EmbodiedError]] = [EmbodiedError]
    while waiting:
        kind = waiting.pop()
        found.setdefault(kind.code, kind)
        waiting.extend(kind.__subclasses__())
    return found
