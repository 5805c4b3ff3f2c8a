"""Stacking of requests' rows into a batch, and splitting of its answer."""

from collections.abc import Sequence
from dataclasses import fields
from sys import getrefcount
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embodied.data import ActionChunk, Observation, Rows
from embodied.serving.batcher import Request

_ROWS = tuple(f.name for f in fields(Rows))
_SPARE = 2  # arrays of one size that are kept for reuse


class Stacker:
    """Stacks a batch's rows in arrays reused once nothing else holds them: new memory costs ten times a copy."""

    def __init__(self) -> None:
        self._spare: dict[tuple[str, int], list[NDArray[Any]]] = {}

    def __call__(self, batch: Sequence[Request]) -> tuple[Observation, NDArray[np.int64]]:
        """All rows of a batch in order, [B, ...] per stream, and noise keys [B, 5]; writable, and the caller's."""
        if len(batch) == 1 and batch[0].noise_keys.flags.writeable:  # no other message has its arrays
            alone = batch[0].observation
            streams = {
                name: array if array.flags.writeable else self._copied(name, array)
                for name, array in alone.streams.items()
            }
            return Observation(alone.rows, streams, alone.time, alone.times), batch[0].noise_keys
        seen = [request.observation for request in batch]
        count = sum(len(o.rows) for o in seen)
        streams = {}
        for name, first in seen[0].streams.items():
            streams[name] = self._array(name, count, first)
            start = 0
            for o in seen:
                part = o.streams[name]
                streams[name][start : start + len(part)] = part
                start += len(part)
        rows = Rows(*(np.concatenate([getattr(o.rows, name) for o in seen]) for name in _ROWS))
        keys = np.concatenate([request.noise_keys for request in batch])
        timed = dict.fromkeys(name for o in seen for name in o.times)
        times = {name: np.concatenate([o.times.get(name, o.time) for o in seen]) for name in timed}
        return Observation(rows, streams, np.concatenate([o.time for o in seen]), times), keys

    def _copied(self, name: str, array: NDArray[Any]) -> NDArray[Any]:
        copy = self._array(name, len(array), array)
        copy[...] = array
        return copy

    def _array(self, name: str, count: int, like: NDArray[Any]) -> NDArray[Any]:
        """Array of `count` rows, a part of one whose length is a power of two."""
        room = 1 << (count - 1).bit_length() if count else 1
        spare = self._spare.setdefault((name, room), [])
        for place, held in enumerate(_holders(spare)):
            array = spare[place]
            if held == _UNHELD and array.dtype == like.dtype and array.shape[1:] == like.shape[1:]:
                return array[:count]
        made = np.empty((room, *like.shape[1:]), like.dtype)
        if len(spare) < _SPARE:
            spare.append(made)
        return made[:count]


def _holders(arrays: list[Any]) -> list[int]:
    counts = []
    for array in arrays:
        counts.append(getrefcount(array))
    return counts


_UNHELD = _holders([object()])[0]


def split(chunk: ActionChunk, batch: Sequence[Request]) -> list[ActionChunk]:
    """Each request's part of a batch's answer: views, to be sent before the policy acts again."""
    if len(batch) == 1:
        return [chunk]
    parts, start = [], 0
    for request in batch:
        part = slice(start, start + request.rows)
        rows = Rows(*(getattr(chunk.rows, name)[part] for name in _ROWS))
        parts.append(
            ActionChunk(
                rows,
                chunk.actions[part],
                chunk.log_probs[part],
                chunk.values[part],
                chunk.versions[part],
                chunk.policy,
                chunk.valid_s,
                {name: array[part] for name, array in chunk.stored.items()},
            )
        )
        start += request.rows
    return parts
