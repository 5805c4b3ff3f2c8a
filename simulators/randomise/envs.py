"""Randomisation of a batch of environments: drawn values, sensor noise and latencies."""

from collections.abc import Mapping
from typing import Any

import mujoco
import numpy as np
from mujoco.batch import Batch
from numpy.typing import NDArray

from embodied.spec import EnvSpec
from simulators.randomise.apply import Appearance, physics_fields
from simulators.randomise.draw import Drawn, draw
from simulators.randomise.ranges import Ranges
from simulators.randomise.sensors import Late, SensorNoise, late_actions, late_streams
from simulators.render.looks import Looks

Ids = NDArray[Any]
Streams = dict[str, NDArray[Any]]


class RandomisedEnvs:
    """Randomised values, noise and latencies of B environments.

    Args:
        ranges: Ranges of the values.
        batch: Physics of the environments.
        spec: Streams of observations and actions of the agents.
        images: Whether appearance matters.

    Attributes:
        late_names: Names of the streams that come late by a latency of their own.

    Raises:
        ConfigError: Noise or latency of an unknown stream, or late values that would take too much memory.
    """

    def __init__(self, ranges: Ranges, batch: Batch, spec: EnvSpec, images: bool) -> None:
        ranges.check_streams([stream for agent in spec.agents.values() for stream in agent.observations])
        self._ranges, self._batch, self._images = ranges, batch, images
        self._model: mujoco.MjModel = batch.model
        count = batch.nsim
        self._values = {
            name: np.zeros((count, *value.shape[1:]), value.dtype)
            for name, value in self.draw(np.zeros(1, np.int64)).items()
        }
        self._appearance = Appearance(self._model, count)
        self._noise = {
            name: SensorNoise(ranges.sensor_noise, agent.observations, index)
            for index, (name, agent) in enumerate(spec.agents.items())
        }
        self.late_names = ranges.late_names
        self._late_streams: dict[str, list[Late]] = {
            name: late_streams(ranges, agent.observations, count) for name, agent in spec.agents.items()
        }
        self._late_actions = late_actions(ranges, spec, count)

    @property
    def looks(self) -> Looks:
        return self._appearance.looks

    def draw(self, seeds: NDArray[np.int64]) -> Drawn:
        """Draw the values of the episodes of `seeds` [M]."""
        return draw(self._ranges, self._model, seeds, self._images)

    def put(self, ids: Ids, drawn: Drawn) -> None:
        """Set the values of environments `ids` [M] to `drawn` [M, ...]; physics has them from the next `forward` on."""
        mine = {name: drawn[name] for name in self._values}
        for name, value in mine.items():
            self._values[name][ids] = value
        for name, value in physics_fields(self._model, mine).items():
            self._batch.expand(name)[ids] = value
        if "mass" in mine:
            self._batch.set_const(ids)
        self._appearance.put(ids, mine)

    def delay(
        self, actions: Mapping[str, NDArray[np.float32]], step: NDArray[np.int32], ids: Ids | None
    ) -> tuple[Mapping[str, NDArray[np.float32]], Ids | None]:
        """Actions [B, D] by agent that arrive at steps `step` [B], and the environments of `ids` reached (or None)."""
        if self._late_actions is None:
            return actions, ids
        latency = self._values["action_latency"]
        every = np.arange(len(step), dtype=np.int32)
        late = self._late_actions.pass_on(actions, every, step, latency)
        rows = every if ids is None else ids
        return late, rows[step[rows] >= latency[rows]]

    def sense(
        self, agent: str, streams: Streams, ids: Ids, step: NDArray[np.int32], seeds: NDArray[np.int64]
    ) -> Streams:
        """Observations of an agent in environments `ids` [M] after noise and latency, with their capture times.

        Args:
            streams: [M, ...] captured now, and `/time`; written in place.
            step, seeds: [M] step within the episode, and the episode's seed.
        """
        self._noise[agent].add(streams, seeds, step)
        for late in self._late_streams[agent]:
            latency = self._values["observation_latency"][ids]
            now = {name: streams["/time" if name[0] == "/" else name] for name in late.kept}
            streams |= late.pass_on(now, ids, step, latency if late.column is None else latency[:, late.column])
        return streams

    def parts(self) -> Streams:
        """Live arrays [B, ...] of the randomisation's state; call `renew` after writing to them."""
        parts: Streams = {f"drawn/{name}": value for name, value in self._values.items()}
        for agent, group in self._late_streams.items():
            for late in group:
                parts |= {f"late_streams/{agent}/{name}": kept for name, kept in late.kept.items()}
        if self._late_actions is not None:
            parts |= {f"late_actions/{agent}": kept for agent, kept in self._late_actions.kept.items()}
        return parts

    def renew(self, ids: Ids) -> None:
        """Apply the drawn values of environments `ids` again."""
        self.put(ids, {name: value[ids] for name, value in self._values.items()})
