"""Settings of domain randomisation: ranges of the randomised values, checked."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Self

from embodied.errors import ConfigError, nearest
from embodied.spec import Stream

MAX_LATENCY = 20
Range = tuple[float, float]
Steps = tuple[int, int]

Extent = float | Range
"""The largest change either way, or the least and the largest."""

_FACTORS = {"friction": (0.01, 10.0), "mass": (0.1, 10.0), "gains": (0.1, 10.0), "light": (0.0, 10.0)}
_SIZES = {"colour": 1.0, "light_dir": math.pi / 2, "camera_pos": 1.0, "camera_rot": 1.0}


@dataclass(frozen=True)
class Ranges:
    """Ranges of values drawn uniformly for each episode; a default leaves a value unchanged.

    Attributes:
        friction: Factor of the friction of all geoms, sliding, torsional and rolling.
        mass: Factor of the mass and inertia of each body.
        gains: Factors of each actuator's stiffness (or strength) and damping. Damping is raised no further than the
            joint's armature bears at the model's timestep.
        colour: Largest change of each geom's red, green and blue (0 to 1). Here and for the other changes, a pair gives
            the least and the largest size.
        light: Factor of each light's brightness.
        light_dir: Largest turn of each light's direction about each axis, rad.
        camera_pos: Largest offset of each camera along each of its own axes, m.
        camera_rot: Largest turn of each camera about each of its own axes, rad.
        sensor_noise: Standard deviation of Gaussian noise by stream, in the stream's unit; or one share of each
            reading, for all one-dimensional float streams.
        action_latency: Lowest and highest delay of actions, control steps. Until the first arrives, the controls of the
            start are held.
        observation_latency: Lowest and highest delay of all streams, control steps, or such a pair by stream, the
            others being on time; until then the first observation is seen.
    """

    friction: Range | None = None
    mass: Range | None = None
    gains: Range | None = None
    colour: Extent = 0.0
    light: Range | None = None
    light_dir: Extent = 0.0
    camera_pos: Extent = 0.0
    camera_rot: Extent = 0.0
    sensor_noise: float | Mapping[str, float] = 0.0
    action_latency: Steps = (0, 0)
    observation_latency: Steps | Mapping[str, Steps] = (0, 0)

    @classmethod
    def read(cls, settings: Mapping[str, Any] | None) -> Self:
        """Settings of a config, such as `{friction: [0.7, 1.3], action_latency: [0, 2]}`; None for nothing.

        Raises:
            ConfigError: An unknown key, or a value that is no range or out of bounds.
        """
        if settings is not None and not isinstance(settings, Mapping):
            fix = "give a mapping such as {friction: [0.7, 1.3]}, or null"
            raise ConfigError(f"randomise cannot be {settings!r}", "randomise", fix)
        known = [field.name for field in fields(cls)]
        values: dict[str, Any] = {}
        for key, value in (settings or {}).items():
            if key not in known:
                raise ConfigError(f"nothing called {key!r} is randomised", f"randomise.{key}", nearest(key, known))
            if value is not None:
                values[key] = _READERS[key](key, value)
        return cls(**values)

    @property
    def any(self) -> bool:
        """Whether anything is randomised."""
        return self != type(self)()

    @property
    def late_names(self) -> tuple[str, ...]:
        """Names, sorted, of the streams with an observation latency of their own."""
        return tuple(sorted(self.observation_latency)) if isinstance(self.observation_latency, Mapping) else ()

    def check_streams(self, streams: Sequence[Stream]) -> None:
        """Raise `ConfigError` unless sensor noise names float streams of these, and latency any of these."""
        for name in self.late_names:
            if name not in {stream.name for stream in streams}:
                fix = nearest(name, [stream.name for stream in streams])
                raise ConfigError(f"no stream is called {name!r}", f"randomise.observation_latency.{name}", fix)
        if isinstance(self.sensor_noise, Mapping):
            by_name = {stream.name: stream for stream in streams if stream.dtype == "float32"}
            for name in self.sensor_noise:
                if name not in by_name:
                    where = f"randomise.sensor_noise.{name}"
                    raise ConfigError(f"no float stream is called {name!r}", where, nearest(name, by_name))


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _factor(key: str, value: Any) -> Range:
    low, high = _FACTORS[key]
    if not _pair(value) or not low <= value[0] <= value[1] <= high:
        fix = f"give the lowest and highest factor, {low:g} to {high:g}, such as [0.8, 1.2]"
        raise ConfigError(f"{key} cannot be {value!r}", f"randomise.{key}", fix)
    return float(value[0]), float(value[1])


def _size(key: str, value: Any) -> Extent:
    ends = value if _pair(value) else [0.0, value]
    if not _number(ends[1]) or not 0 <= ends[0] <= ends[1] <= _SIZES[key]:
        fix = f"give a number from 0 to {_SIZES[key]:.4g}, or the least and the largest change"
        raise ConfigError(f"{key} cannot be {value!r}", f"randomise.{key}", fix)
    return (float(ends[0]), float(ends[1])) if ends[0] else float(ends[1])


def _latencies(key: str, value: Any) -> Steps | dict[str, Steps]:
    if not isinstance(value, Mapping):
        return _latency(key, value)
    return {str(name): _latency(f"{key}.{name}", steps) for name, steps in value.items()}


def _latency(key: str, value: Any) -> Steps:
    if not _pair(value) or not all(isinstance(n, int) for n in value) or not 0 <= value[0] <= value[1] <= MAX_LATENCY:
        fix = f"give the fewest and most control steps, 0 to {MAX_LATENCY}, such as [0, 2]"
        raise ConfigError(f"{key} cannot be {value!r}", f"randomise.{key}", fix)
    return value[0], value[1]


def _noise(key: str, value: Any) -> float | dict[str, float]:
    given = value.values() if isinstance(value, Mapping) else [value]
    if not all(_number(n) and 0 <= n <= 1e3 for n in given):
        fix = "give one share, or standard deviations by stream, such as {joint_pos: 0.005}"
        raise ConfigError(f"{key} cannot be {value!r}", f"randomise.{key}", fix)
    return {str(name): float(n) for name, n in value.items()} if isinstance(value, Mapping) else float(value)


def _pair(value: Any) -> bool:
    return isinstance(value, list | tuple) and len(value) == 2 and all(_number(n) for n in value)


_READERS = {
    **dict.fromkeys(_FACTORS, _factor),
    **dict.fromkeys(_SIZES, _size),
    "action_latency": _latency,
    "observation_latency": _latencies,
    "sensor_noise": _noise,
}
