"""The actor: drives envs with a policy client and cuts what happens into segments."""

from typing import Any

import numpy as np

from embodied.client import ChunkCursor, PolicyClient
from embodied.client.execution import no_prefix
from embodied.data import Observation, Resets, Rows, Segment
from embodied.errors import ConfigError
from embodied.monitor.timing import Stopwatch
from embodied.rollout.env import Env
from embodied.rollout.segment_recorder import SegmentRecorder
from embodied.spec import CLIENT_STREAMS, PolicySpec


class Collector:
    """Collects training segments, in lockstep with its envs.

    Args:
        env: The envs, which reset themselves.
        client: Answers observations with chunks.
        policy: Spec of the policy behind `client`.
        steps: T, steps per segment.
        seed: Seed of the sampling noise.
        attempt: Which start of the run this is; keeps segment ids unique over resumes.
        watch: Gets the seconds of `inference` and `physics`.
        agent: Which agent of the env the policy drives.
    """

    def __init__(
        self,
        env: Env,
        client: PolicyClient,
        policy: PolicySpec,
        steps: int,
        seed: int,
        attempt: int,
        watch: Stopwatch,
        agent: str = "robot",
    ) -> None:
        self.env, self.client, self.policy, self.steps, self.seed = env, client, policy, steps, seed
        self.attempt, self.watch, self.agent = attempt, watch, agent
        self.count = 0
        self._cursor = ChunkCursor(env.num_envs, policy.chunk, policy.execute, policy.agent.action_dim)
        self._names = [s.name for s in policy.agent.observations if s.name not in CLIENT_STREAMS]
        self._everyone = np.arange(env.num_envs)
        self._observation: Observation | None = None
        self._starts: Resets | None = None

    def collect(self) -> Segment:
        """Run T steps on every env, tell the server how episodes ended, and return the steps."""
        if self._observation is None:
            observations, self._starts = self.env.reset()
            self._observation = observations[self.agent]
        env, spec = self.env, self.policy
        recorder = SegmentRecorder(
            self.steps, env.num_envs, spec.chunk, spec.agent.action_dim, env.spec.control_size, spec.stored
        )
        recorder.start(self._starts)
        self._cursor.reset(self._everyone)
        for _ in range(self.steps):
            observation = self._observation
            due = np.flatnonzero(self._cursor.due(observation.rows))
            if len(due):
                asked = observation if len(due) == env.num_envs else observation.take(due)
                streams = {n: asked.streams[n] for n in self._names} | no_prefix(spec, len(due))
                with self.watch("inference"):
                    chunk = self.client.act(
                        Observation(asked.rows, streams, asked.time),
                        asked.rows.noise_keys(self.seed),
                        "sample",
                    )
                recorder.decide(due, chunk)
                self._cursor.accept(due, chunk)
            actions, k = self._cursor.next()
            with self.watch("envs"):
                before = env.physics_s
                result = env.step({self.agent: actions})
                self.watch.add("physics", env.physics_s - before)
            recorder.step(observation, k, result, self.agent)
            self._observation = result.agents[self.agent].observation
        self._starts = recorder.pending_starts()
        self.count += 1
        segment = recorder.finish(
            self._observation,
            id=f"{self.attempt}-{self.count:06d}",
            policy=spec.name,
            agent=self.agent,
            task=env.spec.task,
        )
        if len(segment.final_at):
            ended = tuple(segment.final_at.T)
            self.client.outcome(segment.rows.take(ended), segment.outcomes[ended], segment.versions[ended])
        return segment

    def state(self) -> dict[str, Any]:
        """Where the envs and the actor stand, as named arrays; `load` goes on from there bit for bit."""
        state: dict[str, Any] = {"actor/count": np.array(self.count)}
        if self._observation is not None:
            state |= {f"env/{name}": value for name, value in self.env.snapshot().items()}
            state |= {f"rows/{name}": value for name, value in self._observation.rows.arrays().items()}
            state |= {f"stream/{name}": value for name, value in self._observation.streams.items()}
            state["time"] = self._observation.time
            if self._starts is not None:
                state |= {f"starts/{name}": getattr(self._starts, name) for name in ("ids", "seeds", "state")}
                state |= {f"drawn/{name}": value for name, value in self._starts.drawn.items()}
        return state

    def load(self, state: dict[str, Any]) -> None:
        """Take up what `state` gave.

        Raises:
            ConfigError: The state is of another number of envs.
        """
        self.count = int(state["actor/count"])
        if "time" not in state:
            return
        if len(state["time"]) != self.env.num_envs:
            raise ConfigError(
                f"the checkpoint holds {len(state['time'])} envs, the run has {self.env.num_envs}",
                "rollout.num_envs",
                "resume with the number the run was started with",
            )

        def under(prefix: str) -> dict[str, Any]:
            return {k[len(prefix) :]: np.array(v) for k, v in state.items() if k.startswith(prefix)}

        self.env.restore(under("env/"))
        self._observation = Observation(Rows(**under("rows/")), under("stream/"), np.array(state["time"]))
        starts = under("starts/")
        self._starts = Resets(**starts, drawn=under("drawn/")) if starts else None
