"""What envs sense: their task's streams and their cameras' pictures, with noise, as late as they come."""

from dataclasses import replace
from typing import Any

import numpy as np
from mujoco.batch import Batch
from numpy.typing import NDArray

from embodied.errors import SpecMismatch
from embodied.spec import AgentSpec, EnvSpec
from simulators.randomise.envs import RandomisedEnvs
from simulators.render.cameras import Cameras
from simulators.task import Array, Fields, Task

Streams = dict[str, NDArray[Any]]
Ids = NDArray[np.int32]


def with_cameras(spec: EnvSpec, cameras: Cameras | None) -> EnvSpec:
    """The spec of a task whose agents see the pictures of `cameras` too."""
    if cameras is None:
        return spec
    agents = {
        name: AgentSpec((*agent.observations, *cameras.streams), agent.actions) for name, agent in spec.agents.items()
    }
    return replace(spec, agents=agents)


class Senses:
    """The senses of all envs of a batch.

    Args:
        task: Gives its streams.
        spec: The task's, with the streams of `cameras`.
        batch: The envs.
        cameras: Or None.
        randomised: Adds noise and latency; None for neither.

    Attributes:
        last: What all envs were given last; empty before the first time.
    """

    def __init__(
        self, task: Task, spec: EnvSpec, batch: Batch, cameras: Cameras | None, randomised: RandomisedEnvs | None
    ) -> None:
        self._task, self._spec, self._cameras, self._randomised = task, spec, cameras, randomised
        self._poses: Fields = {name: batch.bind(name) for name in cameras.fields} if cameras else {}
        self._every = np.arange(batch.nsim, dtype=np.int32)
        self.last: Streams = {}

    def sense(
        self,
        fields: Fields,
        memory: Array,
        ids: Ids | None,
        fresh: Ids | None,
        time: Array,
        step: NDArray[np.int32],
        seeds: NDArray[np.int64],
    ) -> tuple[Streams, Array]:
        """Owned streams [M, ...] of envs `ids` [M], or of all, as they are given them, and when they were captured.

        Args:
            fields, memory: [M, ...], as a task takes them.
            ids: None for all.
            fresh: With all envs, those that have new pictures; the others keep their last. None for all.
            time, step, seeds: [M] time and step within the episode, and its seed; `time` is owned.
        """
        streams = self._task.observe(fields, memory)
        if self._cameras is not None:
            looks = self._randomised.looks if self._randomised is not None else None
            for name, pictures in self._cameras.render(self._poses, ids if fresh is None else fresh, looks).items():
                streams[name] = pictures if fresh is None else self.last[name].copy()
                if fresh is not None:
                    streams[name][fresh] = pictures
        if self._randomised is None:
            return streams, time
        streams, time = self._randomised.sense(streams, time, self._every if ids is None else ids, step, seeds)
        if self._cameras is not None and fresh is not None:
            stale = np.setdiff1d(self._every, fresh)
            for stream in self._cameras.streams:
                streams[stream.name][stale] = self.last[stream.name][stale]
        return streams, time

    def note(self, streams: Streams) -> None:
        """Remember what all envs are given.

        Raises:
            SpecMismatch: The first time, if that is not what the spec says.
        """
        if not self.last:
            self._check(streams)
        self.last = {name: values.copy() for name, values in streams.items()}

    def _check(self, streams: Streams) -> None:
        """Raise `SpecMismatch` unless a task observes what its spec says; once, for it costs a step's worth of time."""
        robot, count = self._spec.agents[self._spec.only_agent], len(self._every)
        wanted = {s.name: ((count, *s.shape), s.dtype) for s in robot.observations}
        found = {name: (values.shape, values.dtype.name) for name, values in streams.items()}
        for name in sorted(wanted.keys() | found.keys()):
            given, said = found.get(name, "nothing"), wanted.get(name, "nothing")
            if given != said:
                what = f"observe() gives {name} as {given}, its spec says {said}"
                raise SpecMismatch(what, f"task {self._spec.task}, stream {name}", "mend observe() or the spec")
