"""A env small enough to learn in seconds: a point in the plane that is to reach a goal."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from embodied import noise
from embodied.data import (
    AgentStep,
    EnvStep,
    Observation,
    Outcome,
    Resets,
    RewardStatus,
    Rows,
    Segment,
    Source,
    stack_rows,
)
from embodied.episode import Episode, Track
from embodied.spec import DEFAULT_AGENT, AgentSpec, EnvSpec, Stream
from policies.mlp import MLPPolicy
from simulators.one_agent import OneAgentEnv

AGENT = AgentSpec(
    observations=(Stream("position", (2,), unit="m"), Stream("goal", (2,), unit="m")),
    actions=(Stream("velocity", (2,), unit="m/s"),),
)
SPEED, STEP_S, NEAR = 1.0, 0.1, 0.1


class PointMass:
    """B points in [-1, 1]^2; `sparse` pays 1 at the goal, `dense` the progress made towards it."""

    def __init__(self, count: int, dense: bool = True, limit: int = 30, seed: int = 0) -> None:
        self.spec = EnvSpec("point", {DEFAULT_AGENT: AGENT}, 1 / STEP_S, episode_steps=limit)
        self.num_envs, self.autoreset, self.seed = count, True, seed
        self.physics_s, self.faults = 0.0, 0
        self.dense, self.rows = dense, Rows.of_envs(count)
        self.position, self.goal = np.zeros((count, 2), np.float32), np.zeros((count, 2), np.float32)

    def _streams(self) -> dict[str, NDArray[Any]]:
        return {"position": self.position.copy(), "goal": self.goal.copy()}

    def _observe(self) -> Observation:
        return Observation(self.rows.take(slice(None)), self._streams(), self.rows.step * STEP_S)

    def _start(self, ids: NDArray[np.int32], seeds: NDArray[np.int64]) -> Resets:
        keys = np.stack([seeds, *np.zeros((4, len(ids)), np.int64)], axis=1)
        drawn = 2.0 * noise.uniform(keys, 4) - 1.0
        self.position[ids], self.goal[ids] = drawn[:, :2], drawn[:, 2:]
        return Resets(ids, seeds, drawn)

    def reset(self, seeds: ArrayLike | None = None) -> tuple[dict[str, Observation], Resets]:
        drawn = noise.integers(self.rows.noise_keys(self.seed)) if seeds is None else np.asarray(seeds, np.int64)
        starts = self._start(np.arange(self.num_envs, dtype=np.int32), drawn)
        return {DEFAULT_AGENT: self._observe()}, starts

    def step(self, mapping: Mapping[str, NDArray[np.float32]]) -> EnvStep:
        actions = mapping[DEFAULT_AGENT]
        before = np.linalg.norm(self.goal - self.position, axis=1)
        self.position += STEP_S * np.clip(actions, -SPEED, SPEED)
        distance = np.linalg.norm(self.goal - self.position, axis=1)
        self.rows.step += 1
        success = distance < NEAR
        late = ~success & (self.rows.step >= self.spec.episode_steps)
        rewards = success + (before - distance if self.dense else 0.0)
        ended = np.flatnonzero(success | late).astype(np.int32)
        final = {name: array[ended] for name, array in self._streams().items()}
        started = None
        if len(ended):
            self.rows.episode[ended] += 1
            self.rows.step[ended] = 0
            started = self._start(ended, noise.integers(self.rows.noise_keys(self.seed)[ended]))
        outcomes = np.where(success, Outcome.SUCCESS, np.where(late, Outcome.TIME_LIMIT, Outcome.RUNNING))
        status = np.full(self.num_envs, RewardStatus.SCORED, np.uint8)
        agent = AgentStep(
            self._observe(), rewards.astype(np.float32), status, success, late, outcomes.astype(np.uint8), ended, final
        )
        return EnvStep({DEFAULT_AGENT: agent}, actions.astype(np.float64), started)

    def expert(self) -> dict[str, NDArray[np.float32]]:
        return {DEFAULT_AGENT: np.clip((self.goal - self.position) / STEP_S, -SPEED, SPEED)}


def collect(
    env: PointMass, policy: MLPPolicy, observation: Observation, steps: int, seed: int, name: str = "s"
) -> tuple[Segment, Observation]:
    """A segment of `steps` x envs by `policy`, and the observation after it."""
    columns: dict[str, list[Any]] = {key: [] for key in ("rows", "streams", "chunk", "result")}
    final_at, finals, envs = [], [], env.num_envs
    for t in range(steps):
        chunk = policy.act(observation, observation.rows.noise_keys(seed), "sample")
        result = OneAgentEnv(env).step(chunk.actions[:, 0])
        for key, value in (("rows", observation.rows), ("streams", observation.streams), ("chunk", chunk)):
            columns[key].append(value)
        columns["result"].append(result)
        final_at += [(t, b) for b in result.ended]
        finals.append(result.final)
        observation = result.observation
    chunks, results = columns["chunk"], columns["result"]

    def stack(items: list[Any], field: str) -> NDArray[Any]:
        return np.stack([getattr(item, field) for item in items])

    of_results = ("rewards", "reward_status", "terminated", "truncated", "outcomes", "applied")
    segment = Segment(
        id=name, policy=policy.spec.name, task="point", rows=stack_rows(columns["rows"]),
        observations={k: np.stack([s[k] for s in columns["streams"]]) for k in observation.streams},
        bootstrap=observation.streams, final_at=np.array(final_at, np.int32).reshape(-1, 2),
        final={k: np.concatenate([f[k] for f in finals]) for k in observation.streams},
        k=np.zeros((steps, envs), np.int32), executed=np.ones((steps, envs, 1), bool),
        **{field: stack(chunks, field) for field in ("actions", "log_probs", "values", "versions")},
        **{field: stack(results, field) for field in of_results},
        reward_version="point/1", source=np.zeros((steps, envs), np.uint8), trainable=np.ones((steps, envs), bool),
        start_at=np.zeros(0, np.int32), starts=None,
    )  # fmt: skip
    return segment, observation


def demonstrations(count: int, seed: int) -> list[Episode]:
    """One episode of the expert per env."""
    episodes = []
    for i in range(count):
        env = PointMass(1, seed=seed + i)
        observation, _ = OneAgentEnv(env).reset()
        seen, actions, over = [observation.streams], [], False
        while not over:
            actions.append(OneAgentEnv(env).expert())
            result = OneAgentEnv(env).step(actions[-1])
            over = bool(len(result.ended))
            seen.append(result.final if over else result.observation.streams)
        n = len(actions)
        chosen = np.stack(actions).astype(np.float32)
        track = Track(
            observations={k: np.concatenate([s[k] for s in seen]) for k in seen[0]},
            decision=np.arange(n, dtype=np.int32), k=np.zeros(n, np.int32), rewards=np.zeros(n, np.float32),
            reward_status=np.zeros(n, np.uint8), terminated=np.zeros(n, bool), truncated=np.zeros(n, bool),
            source=np.full(n, Source.SCRIPT, np.uint8), trainable=np.ones(n, bool), applied=np.zeros((n, 2)),
            segment=np.zeros(n, np.int32), step=np.arange(n, dtype=np.int32), actions=chosen,
            log_probs=np.full_like(chosen, np.nan), executed=np.ones((n, 1), bool),
            values=np.full(n, np.nan, np.float32), versions=np.zeros(n, np.int64),
            policy="expert", outcome=Outcome.SUCCESS,
        )  # fmt: skip
        episodes.append(
            Episode(f"demonstration-0-0-{i}", "point", "demonstration", "", seed + i,
                    env.spec.to_dict(), {"robot": track}, np.zeros(0), {}, [])
        )  # fmt: skip
    return episodes


def success(policy: MLPPolicy, count: int = 200, seed: int = 10_000) -> float:
    """Share of first episodes that succeed under the mean action."""
    env = PointMass(count, seed=seed)
    observation, _ = OneAgentEnv(env).reset()
    outcomes = np.zeros(count, np.uint8)
    for _ in range(env.spec.episode_steps):
        chunk = policy.act(observation, observation.rows.noise_keys(0), "mean")
        result = OneAgentEnv(env).step(chunk.actions[:, 0])
        outcomes = np.where((outcomes == 0) & (observation.rows.episode == 0), result.outcomes, outcomes)
        observation = result.observation
    return float((outcomes == Outcome.SUCCESS).mean())
