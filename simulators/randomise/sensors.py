"""Sensor noise, and latencies of streams and actions."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embodied import noise
from embodied.errors import ConfigError
from embodied.spec import Streams
from simulators.randomise.draw import SENSORS
from simulators.randomise.ranges import Ranges

MAX_BYTES = 2**33
Ids = NDArray[Any]


class SensorNoise:
    """Gaussian noise on float streams, keyed by (episode seed, step).

    Args:
        sensor_noise: As in `Ranges`.
        streams: Streams of observations.
    """

    def __init__(self, sensor_noise: float | Mapping[str, float], streams: Streams) -> None:
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
        keys[:, 0], keys[:, 4] = seeds, step
        draws, at = noise.normal(keys, sum(self._count.values()), SENSORS), 0
        for name, count in self._count.items():
            values = streams[name]
            error = draws[:, at : at + count].reshape(values.shape) * np.float32(self._sizes[name])
            values += error * values if self._share else error
            at += count


class Late:
    """Delay line of values of B environments.

    Args:
        shapes: Name to shape and dtype of one env's value.
        count: B.
        most: The largest latency in steps.
        where: Name of the setting, for errors.

    Attributes:
        kept: Name to [B, most + 1, ...], the last values of each env, at step modulo (most + 1).
    """

    def __init__(self, shapes: Mapping[str, tuple[tuple[int, ...], str]], count: int, most: int, where: str) -> None:
        self._slots = most + 1
        size = sum(int(np.prod(shape)) * np.dtype(kind).itemsize for shape, kind in shapes.values())
        if size * count * self._slots > MAX_BYTES:
            what = f"{count} environments keep {self._slots} times {size} bytes"
            raise ConfigError(what, where, "choose fewer environments, fewer pixels or a smaller latency")
        self.kept = {name: np.zeros((count, self._slots, *shape), kind) for name, (shape, kind) in shapes.items()}

    def pass_on(
        self, values: Mapping[str, NDArray[Any]], ids: Ids, step: NDArray[np.int32], latency: NDArray[np.int32]
    ) -> dict[str, NDArray[Any]]:
        """Store the values [M, ...] of environments `ids` [M] at steps `step` [M]; returns those of `latency` [M] steps
        before, or the first."""
        now, then = step % self._slots, np.maximum(step - latency, 0) % self._slots
        late = {}
        for name, value in values.items():
            self.kept[name][ids, now] = value
            late[name] = self.kept[name][ids, then]
        return late


def late_streams(ranges: Ranges, streams: Streams, count: int) -> Late | None:
    """Delay line of observations and their times (`/time`), or None without observation latency."""
    if not ranges.observation_latency[1]:
        return None
    shapes: dict[str, tuple[tuple[int, ...], str]] = {s.name: (s.shape, s.dtype) for s in streams}
    shapes["/time"] = (), "float64"
    return Late(shapes, count, ranges.observation_latency[1], "randomise.observation_latency")


def late_actions(ranges: Ranges, action_dim: int, count: int) -> Late | None:
    """Delay line of actions, or None without action latency."""
    if not ranges.action_latency[1]:
        return None
    return Late({"action": ((action_dim,), "float32")}, count, ranges.action_latency[1], "randomise.action_latency")
