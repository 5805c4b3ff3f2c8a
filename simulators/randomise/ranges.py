"""Settings of domain randomisation: ranges of the randomised values, checked."""

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Self

from annotated_types import Interval
from pydantic import AfterValidator

from embodied.errors import ConfigError, nearest
from embodied.settings import configured, settings
from embodied.spec import Stream

MAX_LATENCY = 20
Range = tuple[float, float]
Steps = tuple[int, int]
Extent = float | Range
"""The largest change either way, or the least and the largest."""


def _in_order(low: float, high: float) -> AfterValidator:
    """Check of a pair: ascending, and within `low` to `high`."""

    def check(pair: tuple[Any, Any]) -> tuple[Any, Any]:
        if not low <= pair[0] <= pair[1] <= high:
            raise ValueError
        return pair

    return AfterValidator(check)


def _sized(most: float) -> AfterValidator:
    """Check of an extent: up to `most`; a least change of 0 is left out."""

    def check(extent: Extent) -> Extent:
        least, largest = extent if isinstance(extent, tuple) else (0.0, extent)
        if not 0 <= least <= largest <= most:
            raise ValueError
        return extent if least else largest

    return AfterValidator(check)


Friction = Annotated[Range, _in_order(0.01, 10.0), "the lowest and highest factor, 0.01 to 10, such as [0.8, 1.2]"]
Factor = Annotated[Range, _in_order(0.1, 10.0), "the lowest and highest factor, 0.1 to 10, such as [0.8, 1.2]"]
Light = Annotated[Range, _in_order(0.0, 10.0), "the lowest and highest factor, 0 to 10, such as [0.8, 1.2]"]
Change = Annotated[Extent, _sized(1.0), "from 0 to 1: the largest change, or the least and the largest"]
Turn = Annotated[Extent, _sized(math.pi / 2), "from 0 to 1.571 rad: the largest turn, or the least and the largest"]
Latency = Annotated[
    Steps, _in_order(0, MAX_LATENCY), f"the fewest and most control steps, 0 to {MAX_LATENCY}, such as [0, 2]"
]
Deviation = Annotated[float, Interval(ge=0, le=1e3)]


@settings("randomise")
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

    friction: Friction | None = None
    mass: Factor | None = None
    gains: Factor | None = None
    colour: Change = 0.0
    light: Light | None = None
    light_dir: Turn = 0.0
    camera_pos: Change = 0.0
    camera_rot: Change = 0.0
    sensor_noise: (
        Annotated[Deviation, "one share of each reading,"]
        | Annotated[Mapping[str, Deviation], "by stream, such as {joint_pos: 0.005}"]
    ) = 0.0
    action_latency: Latency = (0, 0)
    observation_latency: Latency | Annotated[Mapping[str, Latency], "by stream"] = (0, 0)

    @classmethod
    def read(cls, given: Mapping[str, Any] | None) -> Self:
        """Settings of a config, such as `{friction: [0.7, 1.3], action_latency: [0, 2]}`; None for nothing.

        Raises:
            ConfigError: An unknown key, or a value that is no range or out of bounds.
        """
        if given is not None and not isinstance(given, Mapping):
            fix = "give a mapping such as {friction: [0.7, 1.3]}, or null"
            raise ConfigError(f"randomise cannot be {given!r}", "randomise", fix)
        return configured(cls, {key: value for key, value in (given or {}).items() if value is not None}, "randomise")

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
