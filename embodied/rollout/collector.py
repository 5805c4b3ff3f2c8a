"""Collection of training segments: policies drive environments in lockstep."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embodied.client import PolicyClient
from embodied.data import ActionChunk, Observation, Resets, Rows, Segment, Source
from embodied.errors import ConfigError
from embodied.monitor.timing import Stopwatch
from embodied.rollout.driver import Decide, Driver
from embodied.rollout.env import Env
from embodied.spec import PolicySpec


@dataclass(frozen=True)
class Assignment:
    """Agents driven by one policy.

    Attributes:
        client: Answers observations with chunks.
        policy: Spec of the policy behind `client`.
        agents: Names of the agents; None for the environments' only one.
    """

    client: PolicyClient
    policy: PolicySpec
    agents: Sequence[str] | None = None


class Collector:
    """Collects training segments, in lockstep with environments that reset themselves.

    Args:
        env: The environments.
        assignments: Policies and the agents that each drives; every agent is driven by one.
        steps: T, steps per segment.
        seed: Seed of the sampling noise.
        attempt: Number of starts of the run before this one; keeps segment ids unique over resumes.
        watch: Gets the seconds of `inference` and `physics`.
        origin: Name of this process, unique within the run.

    Attributes:
        count: Calls of `collect`, over resumes too.

    Raises:
        ConfigError: An agent is driven by no policy, or by several.
        SpecMismatch: The environments lack an agent, or have several and none is named.
    """

    def __init__(
        self,
        env: Env,
        assignments: Sequence[Assignment],
        steps: int,
        seed: int,
        attempt: int,
        watch: Stopwatch,
        origin: str = "sim-0",
    ) -> None:
        self.env, self.steps, self.seed, self.attempt = env, steps, seed, attempt
        self.watch, self.origin = watch, origin
        self.count = 0
        self._clients = [each.client for each in assignments]
        self._drivers = [
            Driver(env.spec, env.num_envs, each.policy, self._sampled(each), each.agents) for each in assignments
        ]
        driven = [agent for driver in self._drivers for agent in driver.agents]
        for agent in env.spec.agents:
            if driven.count(agent) != 1:
                what = f"agent {agent} is driven by {driven.count(agent)} policies"
                raise ConfigError(what, f"task {env.spec.task}", "assign every agent to one policy")
        self._observations: dict[str, Observation] | None = None
        self._starts: Resets | None = None

    @property
    def policies(self) -> int:
        """Number of policies, each of which gives a segment."""
        return len(self._drivers)

    def collect(self) -> list[Segment]:
        """Run T steps of every environment and report the episodes that ended; the segment of each policy."""
        if self._observations is None:
            self._observations, self._starts = self.env.reset()
        env, drivers = self.env, self._drivers
        for driver in drivers:
            driver.begin(self.steps, self._starts)
        for _ in range(self.steps):
            actions: dict[str, NDArray[np.float32]] = {}
            for driver in drivers:
                actions |= driver.act(self._observations)
            with self.watch("envs"):
                before = env.physics_s
                result = env.step(actions)
                self.watch.add("physics", env.physics_s - before)
            for driver in drivers:
                driver.record(result)
            self._observations = {agent: step.observation for agent, step in result.agents.items()}
        segments = []
        for i, (driver, client) in enumerate(zip(drivers, self._clients, strict=True), 1):
            name = f"{self.origin}/{self.attempt}/{self.count * len(drivers) + i:06d}"
            segment = driver.finish(self._observations, name, "train", Source.POLICY, self.origin)
            self._starts = driver.carry(self._observations)
            if len(segment.final_at):
                ended = tuple(segment.final_at.T)
                client.outcome(segment.rows.take(ended), segment.outcomes[ended], segment.versions[ended])
            segments.append(segment)
        self.count += 1
        return segments

    def state(self) -> dict[str, Any]:
        """State of the environments and of open decisions, nested, from which `load` continues bit for bit."""
        if self._observations is None:
            return {"count": self.count}
        return {
            "count": self.count,
            "env": self.env.snapshot(),
            "observations": {agent: asdict(seen) for agent, seen in self._observations.items()},
            "starts": None if self._starts is None else asdict(self._starts),
            "drivers": [driver.state() for driver in self._drivers],
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Continue from `state`, whose arrays may be tensors.

        Raises:
            ConfigError: The state is of another number of environments, of other agents, or of an older format.
        """
        if "count" not in state:
            raise ConfigError("the checkpoint is of an older format", "task", "resume with the version that wrote it")
        self.count = int(state["count"])
        if len(state) == 1:
            return
        state = _as_arrays(state)
        observations, starts = state["observations"], state["starts"]
        if observations.keys() != set(self.env.spec.agents):
            what = f"the checkpoint is of agents {', '.join(observations)}"
            raise ConfigError(what[:200], "task", "resume with the task the run was started with")
        if (held := len(next(iter(observations.values()))["time"])) != self.env.num_envs:
            raise ConfigError(
                f"the checkpoint holds {held} environments, the run has {self.env.num_envs}",
                "rollout.num_envs",
                "resume with the number the run was started with",
            )
        self.env.restore(state["env"])
        self._observations = {
            agent: Observation(Rows(**seen.pop("rows")), **seen) for agent, seen in observations.items()
        }
        self._starts = None if starts is None else Resets(**starts)
        for driver, own in zip(self._drivers, state["drivers"], strict=True):
            driver.load(own)

    def _sampled(self, assignment: Assignment) -> Decide:
        """Decisions of a policy server, sampled with the noise of each row."""
        names = [stream.name for stream in assignment.policy.agent.observations]

        def decide(seen: Observation) -> ActionChunk:
            asked = Observation(seen.rows, {name: seen.streams[name] for name in names}, seen.time)
            with self.watch("inference"):
                return assignment.client.act(asked, seen.rows.noise_keys(self.seed), "sample")

        return decide


def _as_arrays(value: Any) -> Any:
    """Nested values with every array and tensor as an array of its own."""
    if isinstance(value, Mapping):
        return {name: _as_arrays(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_as_arrays(item) for item in value]
    return None if value is None else np.asarray(value).copy()
