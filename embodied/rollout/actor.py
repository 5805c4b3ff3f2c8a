"""The actor: drives bodies with a policy client and cuts what happens into segments."""

from typing import Any

import numpy as np

from embodied.client import ChunkCursor, PolicyClient
from embodied.client.execution import no_prefix
from embodied.data import Observation, Rows, Segment, Starts
from embodied.errors import ConfigError
from embodied.monitor.timing import Stopwatch
from embodied.rollout.body import Body
from embodied.rollout.recorder import SegmentRecorder
from embodied.spec import CLIENT_STREAMS, PolicySpec


class Actor:
    """Collects training segments, in lockstep with its bodies.

    Args:
        body: The bodies, which reset themselves.
        client: Answers observations with chunks.
        policy: Spec of the policy behind `client`.
        steps: T, steps per segment.
        seed: Seed of the sampling noise.
        attempt: Which start of the run this is; keeps segment ids unique over resumes.
        watch: Gets the seconds of `inference` and `physics`.
        agent: Which agent of the body the policy drives.
    """

    def __init__(
        self,
        body: Body,
        client: PolicyClient,
        policy: PolicySpec,
        steps: int,
        seed: int,
        attempt: int,
        watch: Stopwatch,
        agent: str = "robot",
    ) -> None:
        self.body, self.client, self.policy, self.steps, self.seed = body, client, policy, steps, seed
        self.attempt, self.watch, self.agent = attempt, watch, agent
        self.count = 0
        self._cursor = ChunkCursor(body.num_bodies, policy.chunk, policy.execute, policy.agent.action_dim)
        self._names = [s.name for s in policy.agent.observations if s.name not in CLIENT_STREAMS]
        self._everyone = np.arange(body.num_bodies)
        self._observation: Observation | None = None
        self._starts: Starts | None = None

    def collect(self) -> Segment:
        """Run T steps on every body, tell the server how episodes ended, and return the steps."""
        if self._observation is None:
            self._observation, self._starts = self.body.reset()
        body, spec = self.body, self.policy
        recorder = SegmentRecorder(
            self.steps, body.num_bodies, spec.chunk, spec.agent.action_dim, body.spec.control_size, spec.stored
        )
        recorder.start(self._starts)
        self._cursor.reset(self._everyone)
        for _ in range(self.steps):
            observation = self._observation
            due = np.flatnonzero(self._cursor.due(observation.rows))
            if len(due):
                asked = observation if len(due) == body.num_bodies else observation.take(due)
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
            with self.watch("bodies"):
                before = body.physics_s
                result = body.step(actions)
                self.watch.add("physics", body.physics_s - before)
            recorder.step(observation, k, result)
            self._observation = result.observation
        self._starts = recorder.pending_starts()
        self.count += 1
        segment = recorder.finish(
            self._observation,
            id=f"{self.attempt}-{self.count:06d}",
            policy=spec.name,
            agent=self.agent,
            task=body.spec.task,
        )
        if len(segment.final_at):
            ended = tuple(segment.final_at.T)
            self.client.outcome(segment.rows.take(ended), segment.outcomes[ended], segment.versions[ended])
        return segment

    def state(self) -> dict[str, Any]:
        """Where the bodies and the actor stand, as named arrays; `load` goes on from there bit for bit."""
        state: dict[str, Any] = {"actor/count": np.array(self.count)}
        if self._observation is not None:
            state |= {f"body/{name}": value for name, value in self.body.snapshot().items()}
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
            ConfigError: The state is of another number of bodies.
        """
        self.count = int(state["actor/count"])
        if "time" not in state:
            return
        if len(state["time"]) != self.body.num_bodies:
            raise ConfigError(
                f"the checkpoint holds {len(state['time'])} bodies, the run has {self.body.num_bodies}",
                "rollout.num_envs",
                "resume with the number the run was started with",
            )

        def under(prefix: str) -> dict[str, Any]:
            return {k[len(prefix) :]: np.array(v) for k, v in state.items() if k.startswith(prefix)}

        self.body.restore(under("body/"))
        self._observation = Observation(Rows(**under("rows/")), under("stream/"), np.array(state["time"]))
        starts = under("starts/")
        self._starts = Starts(**starts, drawn=under("drawn/")) if starts else None
