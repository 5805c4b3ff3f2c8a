"""Randomisation of a batch of environments: drawn values, sensor noise and latencies."""

from typing import Any

import mujoco
import numpy as np
from mujoco.batch import Batch
from numpy.typing import NDArray

from embodied.spec import AgentSpec
from simulators.randomise.apply import Appearance, physics_fields
from simulators.randomise.draw import Drawn, draw
from simulators.randomise.ranges import Ranges
from simulators.randomise.sensors import SensorNoise, late_actions, late_streams
from simulators.render.looks import Looks

Ids = NDArray[Any]
Streams = dict[str, NDArray[Any]]


class RandomisedEnvs:
    """Randomised values, noise and latencies of B environments.

    Args:
        ranges: Ranges of the values.
        batch: Physics of the environments.
        agent: Streams of observations and actions.
        images: Whether appearance matters.

    Raises:
        ConfigError: Noise on an unknown stream, or late values that would take too much memory.
    """

    def __init__(self, ranges: Ranges, batch: Batch, agent: AgentSpec, images: bool) -> None:
        ranges.check_streams(agent.observations)
        self._ranges, self._batch, self._images = ranges, batch, images
        self._model: mujoco.MjModel = batch.model
        count = batch.nsim
        self._values = {
            name: np.zeros((count, *value.shape[1:]), value.dtype)
            for name, value in self.draw(np.zeros(1, np.int64)).items()
        }
        self._appearance = Appearance(self._model, count)
        self._noise = SensorNoise(ranges.sensor_noise, agent.observations)
        self._late_streams = late_streams(ranges, agent.observations, count)
        self._late_actions = late_actions(ranges, agent.action_dim, count)

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
        self, actions: NDArray[np.float32], step: NDArray[np.int32], ids: Ids | None
    ) -> tuple[NDArray[np.float32], Ids | None]:
        """Actions [B, D] that arrive at steps `step` [B], and the environments of `ids` that they reach (or None)."""
        if self._late_actions is None:
            return actions, ids
        latency = self._values["action_latency"]
        every = np.arange(len(actions), dtype=np.int32)
        actions = self._late_actions.pass_on({"action": actions}, every, step, latency)["action"]
        rows = every if ids is None else ids
        return actions, rows[step[rows] >= latency[rows]]

    def sense(
        self, streams: Streams, time: NDArray[np.float64], ids: Ids, step: NDArray[np.int32], seeds: NDArray[np.int64]
    ) -> tuple[Streams, NDArray[np.float64]]:
        """Observations of environments `ids` [M] after noise and latency, and their capture times.

        Args:
            streams, time: [M, ...], captured now; written in place.
            step, seeds: [M] step within the episode, and the episode's seed.
        """
        self._noise.add(streams, seeds, step)
        if self._late_streams is None:
            return streams, time
        late = self._late_streams.pass_on(
            streams | {"/time": time}, ids, step, self._values["observation_latency"][ids]
        )
        return late, late.pop("/time")

    def parts(self) -> Streams:
        """Live arrays [B, ...] of the randomisation's state; call `renew` after writing to them."""
        parts: Streams = {f"drawn/{name}": value for name, value in self._values.items()}
        for what, late in (("actions", self._late_actions), ("streams", self._late_streams)):
            if late is not None:
                parts |= {f"late_{what}/{name}": kept for name, kept in late.kept.items()}
        return parts

    def renew(self, ids: Ids) -> None:
        """Apply the drawn values of environments `ids` again."""
        self.put(ids, {name: value[ids] for name, value in self._values.items()})
