"""Sensor noise, and latencies of streams and actions."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embodied import noise
from embodied.errors import ConfigError
from embodied.spec import EnvSpec, Stream
from simulators.randomise.draw import SENSORS
from simulators.randomise.ranges import Ranges

MAX_BYTES = 2**33
Ids = NDArray[Any]
Streams = Sequence[Stream]


class SensorNoise:
    """Gaussian noise on one agent's float streams, keyed by (episode seed, agent, step).

    Args:
        sensor_noise: As in `Ranges`.
        streams: Streams of the agent's observations.
        agent: Index of the agent in `EnvSpec.agents`.
    """

    def __init__(self, sensor_noise: float | Mapping[str, float], streams: Streams, agent: int = 0) -> None:
        self._agent = agent
        self._share = not isinstance(sensor_noise, Mapping)
        if isinstance(sensor_noise, Mapping):
            self._sizes = {s.name: sensor_noise[s.name] for s in streams if sensor_noise.get(s.name)}
        else:
            plain = [s.name for s in streams if s.dtype == "float32" and len(s.shape) == 1 and sensor_noise]
            self._sizes = dict.fromkeys(plain, sensor_noise)
        self._count = {s.name: s.size for s in streams if s.name in self._sizes}

    def add(self, streams: dict[str, NDArray[Any]], seeds: NDArray[np.int64], step: NDArray[np.int32]) -> None:
        """Write noise onto `streams` [M, ...] of episodes `seeds` [M] at steps `step` [M]."""
        if not self._count:
            return
        keys = np.zeros((len(seeds), 5), np.int64)
        keys[:, 0], keys[:, 2], keys[:, 4] = seeds, self._agent, step
        draws, at = noise.normal(keys, sum(self._count.values()), SENSORS), 0
        for name, count in self._count.items():
            values = streams[name]
            error = draws[:, at : at + count].reshape(values.shape) * np.float32(self._sizes[name])
            values += error * values if self._share else error
            at += count


class Late:
    """Delay line of values of B environments.

    Args:
        shapes: Name to shape and dtype of one environment's value.
        count: B.
        most: The largest latency in steps.
        where: Name of the setting, for errors.
        column: Column of the drawn latencies that applies to the values; None where there is one latency.

    Attributes:
        kept: Name to [B, most + 1, ...], the last values of each environment, at step modulo (most + 1).
        column: As given.
    """

    def __init__(
        self,
        shapes: Mapping[str, tuple[tuple[int, ...], str]],
        count: int,
        most: int,
        where: str,
        column: int | None = None,
    ) -> None:
        self._slots, self.column = most + 1, column
        size = sum(int(np.prod(shape)) * np.dtype(kind).itemsize for shape, kind in shapes.values())
        if size * count * self._slots > MAX_BYTES:
            what = f"{count} environments keep {self._slots} times {size} bytes"
            raise ConfigError(what, where, "choose fewer environments, fewer pixels or a smaller latency")
        self.kept = {name: np.zeros((count, self._slots, *shape), kind) for name, (shape, kind) in shapes.items()}

    def pass_on(
        self, values: Mapping[str, NDArray[Any]], ids: Ids, step: NDArray[np.int32], latency: NDArray[np.int32]
    ) -> dict[str, NDArray[Any]]:
        """Take the values [M, ...] of environments `ids` [M] at their steps `step` [M].

        Returns:
            Those of `latency` [M] steps before, the first where there were none yet.
        """
        now, then = step % self._slots, np.maximum(step - latency, 0) % self._slots
        late = {}
        for name, value in values.items():
            self.kept[name][ids, now] = value
            late[name] = self.kept[name][ids, then]
        return late


def late_streams(ranges: Ranges, streams: Streams, count: int) -> list[Late]:
    """Delay lines of one agent's observations and their capture times.

    They are one for all streams and `/time`, or one for each stream with a latency of its own and `/time/<stream>`;
    none without observation latency.
    """
    where, latency = "randomise.observation_latency", ranges.observation_latency
    shapes: dict[str, tuple[tuple[int, ...], str]] = {s.name: (s.shape, s.dtype) for s in streams}
    if isinstance(latency, Mapping):
        return [
            Late({name: shapes[name], f"/time/{name}": ((), "float64")}, count, latency[name][1], where, column)
            for column, name in enumerate(ranges.late_names)
            if name in shapes
        ]
    return [Late(shapes | {"/time": ((), "float64")}, count, latency[1], where)] if latency[1] else []


def late_actions(ranges: Ranges, spec: EnvSpec, count: int) -> Late | None:
    """Delay line of the actions of every agent, or None without action latency."""
    if not ranges.action_latency[1]:
        return None
    shapes = {name: ((agent.action_dim,), "float32") for name, agent in spec.agents.items()}
    return Late(shapes, count, ranges.action_latency[1], "randomise.action_latency")
