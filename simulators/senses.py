"""Senses of the agents of a batch: their task's streams and the cameras' pictures, with noise and latency."""

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from mujoco.batch import Batch
from numpy.typing import NDArray

from embodied.data import Observation, Rows
from embodied.errors import SpecMismatch
from embodied.spec import AgentSpec, EnvSpec
from simulators.randomise.envs import RandomisedEnvs
from simulators.render.cameras import Cameras
from simulators.task import Array, Fields, MultiAgentTask, Task

Streams = dict[str, NDArray[Any]]
Ids = NDArray[np.int32]
TIME = "/time"
"""Name, among streams, of their capture times; `/time/<stream>` for those of one stream that comes late."""


def with_cameras(task: Task | MultiAgentTask, cameras: Cameras | None) -> EnvSpec:
    """Spec of a task whose agents see pictures too: all those of `cameras`, or those that `task.cameras` names.

    Raises:
        SpecMismatch: `task.cameras` names an agent that the task does not have.
    """
    chosen: Mapping[str, Collection[str]] = getattr(task, "cameras", {})
    if unknown := sorted(chosen.keys() - task.spec.agents.keys()):
        what, fix = f"cameras of agent {unknown[0]}", f"its agents are {', '.join(task.spec.agents)}"
        raise SpecMismatch(what, f"task {task.spec.task}", fix)
    if cameras is None:
        return task.spec
    agents = {
        name: AgentSpec((*agent.observations, *cameras.streams_of(chosen.get(name))), agent.actions)
        for name, agent in task.spec.agents.items()
    }
    return replace(task.spec, agents=agents)


class Senses:
    """Senses of all agents in the environments of a batch.

    Args:
        task: Gives its streams.
        spec: The task's, with the streams of `cameras`.
        batch: The environments.
        cameras: Cameras, or None.
        randomised: Adds noise and latency; None for neither.

    Attributes:
        last: Agent name to the streams and times [B, ...] that it was given last; zeros before the first time.
    """

    def __init__(
        self,
        task: MultiAgentTask,
        spec: EnvSpec,
        batch: Batch,
        cameras: Cameras | None,
        randomised: RandomisedEnvs | None,
    ) -> None:
        self._task, self._spec, self._cameras, self._randomised = task, spec, cameras, randomised
        self._poses: Fields = {name: batch.bind(name) for name in cameras.fields} if cameras else {}
        self._every = np.arange(batch.nsim, dtype=np.int32)
        late = randomised.late_names if randomised is not None else ()
        self.last: dict[str, Streams] = {
            name: {s.name: np.zeros((batch.nsim, *s.shape), s.dtype) for s in agent.observations}
            | {TIME: np.zeros(batch.nsim)}
            | {f"{TIME}/{s.name}": np.zeros(batch.nsim) for s in agent.observations if s.name in late}
            for name, agent in spec.agents.items()
        }
        self._checked = False

    def sense(
        self,
        fields: Fields,
        memory: Array,
        ids: Ids | None,
        fresh: Ids | None,
        time: Array,
        step: NDArray[np.int32],
        seeds: NDArray[np.int64],
    ) -> dict[str, Streams]:
        """Agent name to owned streams [M, ...] of environments `ids` [M], or of all, with their capture times.

        Args:
            fields, memory: [M, ...], as a task takes them.
            ids: None for all.
            fresh: With all environments, those that have new pictures; the others keep their last. None for all.
            time, step, seeds: [M] time and step within the episode, and its seed; `time` is owned.
        """
        seen = self._task.observe(fields, memory)
        if self._cameras is not None:
            looks = self._randomised.looks if self._randomised is not None else None
            pictures = self._cameras.render(self._poses, ids if fresh is None else fresh, looks)
            for agent, streams in seen.items():
                last = self.last[agent]
                for name, values in pictures.items():
                    if name in last and fresh is None:
                        streams[name] = values if agent == next(iter(seen)) else values.copy()
                    elif name in last:
                        streams[name] = last[name].copy()
                        streams[name][fresh] = values
        for agent, streams in seen.items():
            streams[TIME] = time if len(seen) == 1 else time.copy()
            if self._randomised is not None:
                rows = self._every if ids is None else ids
                seen[agent] = self._randomised.sense(agent, streams, rows, step, seeds)
        return seen

    def repeat(self, agent: str, streams: Streams, ids: NDArray[Any]) -> None:
        """Write what `agent` was given last into rows `ids` of `streams` [B, ...]."""
        for name, values in streams.items():
            values[ids] = self.last[agent][name][ids]

    def note(self, seen: dict[str, Streams]) -> None:
        """Remember what all agents are given.

        Raises:
            SpecMismatch: The first time, if that is not what the spec says.
        """
        if not self._checked:
            self._check(seen)
        for agent, streams in seen.items():
            for name, values in streams.items():
                self.last[agent][name][...] = values

    def _check(self, seen: dict[str, Streams]) -> None:
        """Raise `SpecMismatch` unless a task observes what its spec says; once, for it costs a step's worth of time."""
        if seen.keys() != self.last.keys():
            what = f"observe() gives the agents {', '.join(seen)}, its spec says {', '.join(self.last)}"
            raise SpecMismatch(what, f"task {self._spec.task}", "mend observe() or the spec")
        for agent, last in self.last.items():
            wanted = {name: (values.shape, values.dtype.name) for name, values in last.items()}
            found = {name: (values.shape, values.dtype.name) for name, values in seen[agent].items()}
            for name in sorted(wanted.keys() | found.keys()):
                given, said = found.get(name, "nothing"), wanted.get(name, "nothing")
                if given != said:
                    what = f"observe() gives {name} as {given}, its spec says {said}"
                    where = f"task {self._spec.task}, agent {agent}, stream {name}"
                    raise SpecMismatch(what, where, "mend observe() or the spec")
        self._checked = True


def observation(rows: Rows, streams: Streams) -> Observation:
    """An observation of copies of `rows`, and of streams and times as `Senses` gives them."""
    prefix = f"{TIME}/"
    times = {name.removeprefix(prefix): values for name, values in streams.items() if name.startswith(prefix)}
    return Observation(rows.take(slice(None)), named(streams), streams[TIME], times)


def named(streams: Streams) -> Streams:
    """The streams without their capture times."""
    return {name: values for name, values in streams.items() if name[0] != "/"}
