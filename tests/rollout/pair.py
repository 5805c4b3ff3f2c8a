"""Environments of two agents, each with a point on a line, small enough to follow by hand."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from embodied.data import ActionChunk, AgentStep, EnvStep, Observation, Outcome, Resets, RewardStatus, Rows
from embodied.noise import normal
from embodied.spec import AgentSpec, EnvSpec, PolicySpec, Stream

DT = 0.1
LENGTHS = {"left": 3, "right": 5}
"""Steps of each agent's episodes; an environment resets once both have ended."""


def agent(*more: Stream) -> AgentSpec:
    return AgentSpec((Stream("x", (1,)), *more), (Stream("dx", (1,)),))


class Pair:
    """B environments, indices from `first`; environment e has `e % 3` steps more than `LENGTHS` say.

    The right agent senses `force` too, half a step late; every action is clipped to 5 in magnitude.
    """

    def __init__(self, count: int, first: int = 0, autoreset: bool = True) -> None:
        agents = {"left": agent(), "right": agent(Stream("force", (1,)))}
        self.spec = EnvSpec("pair", agents, 1 / DT, "", max(LENGTHS.values()) + 2, control_size=2)
        self.num_envs, self.first, self.autoreset, self.seed = count, first, autoreset, 0
        self.physics_s, self.faults = 0.0, 0
        self.rows = {name: Rows.of_envs(count, first, i) for i, name in enumerate(agents)}
        self.x = {name: np.zeros((count, 1), np.float32) for name in agents}
        self.live = {name: np.ones(count, bool) for name in agents}
        self.taken: list[dict[str, NDArray[np.float32]]] = []

    def reset(self, seeds: ArrayLike | None = None) -> tuple[dict[str, Observation], Resets]:
        return self._observe(), self._starts(np.arange(self.num_envs))

    def step(self, actions: Mapping[str, NDArray[np.float32]]) -> EnvStep:
        self.taken.append({name: taken.copy() for name, taken in actions.items()})
        parts: dict[str, dict[str, Any]] = {}
        for name, live in self.live.items():
            executed = np.clip(actions[name], -5, 5)
            rows, before = self.rows[name], live.copy()
            self.x[name] += np.where(before[:, None], executed, 0)
            rows.step[before] += 1
            over = before & (rows.step >= LENGTHS[name] + rows.env % 3)
            live[over] = False
            outcomes = np.where(over, Outcome.SUCCESS if name == "left" else Outcome.TIME_LIMIT, Outcome.RUNNING)
            ended = np.flatnonzero(over).astype(np.int32)
            parts[name] = {
                "rewards": np.where(before, self.x[name][:, 0], 0).astype(np.float32),
                "reward_status": np.full(len(over), RewardStatus.SCORED, np.uint8),
                "terminated": over & (name == "left"),
                "truncated": over & (name == "right"),
                "outcomes": outcomes.astype(np.uint8),
                "ended": ended,
                "final": {stream: values[ended] for stream, values in self._streams(name).items()},
                "executed": executed if (executed != actions[name]).any() else None,
            }
        again = np.flatnonzero(~self.live["left"] & ~self.live["right"])
        started = None
        if self.autoreset and len(again):
            for name, rows in self.rows.items():
                rows.episode[again] += 1
                rows.step[again] = 0
                self.x[name][again] = 0
                self.live[name][again] = True
            started = self._starts(again)
        observations = self._observe()
        agents = {
            name: AgentStep(observation=observations[name], active=self.live[name].copy(), **part)
            for name, part in parts.items()
        }
        applied = np.concatenate([actions["left"], actions["right"]], axis=1).astype(np.float64)
        return EnvStep(agents, applied, started, (applied[:, 0] * 8).astype(np.uint64))

    def _streams(self, name: str) -> dict[str, NDArray[Any]]:
        own = {"x": self.x[name].copy()}
        return own | ({"force": 2 * self.x[name]} if name == "right" else {})

    def _observe(self) -> dict[str, Observation]:
        out = {}
        for name, rows in self.rows.items():
            time = rows.step * DT
            times = {"force": time - DT / 2} if name == "right" else {}
            out[name] = Observation(rows.take(slice(None)), self._streams(name), time, times)
        return out

    def _starts(self, ids: NDArray[np.intp]) -> Resets:
        episodes = self.rows["left"].episode[ids]
        return Resets((ids + self.first).astype(np.int32), 100 * (ids + self.first) + episodes, np.zeros((len(ids), 0)))

    def expert(self) -> dict[str, NDArray[np.float32]]:
        return {name: np.full((self.num_envs, 1), i + 1, np.float32) for i, name in enumerate(self.rows)}

    def snapshot(self, ids: ArrayLike | None = None) -> dict[str, NDArray[Any]]:
        state: dict[str, NDArray[Any]] = {}
        for name, rows in self.rows.items():
            state |= {f"{name}-{k}": v.copy() for k, v in rows.arrays().items()}
            state |= {f"{name}-x": self.x[name].copy(), f"{name}-live": self.live[name].copy()}
        return state

    def restore(self, snapshot: dict[str, NDArray[Any]], ids: ArrayLike | None = None) -> None:
        for name in self.rows:
            self.rows[name] = Rows(*(snapshot[f"{name}-{k}"].copy() for k in ("env", "agent", "episode", "step")))
            self.x[name], self.live[name] = snapshot[f"{name}-x"].copy(), snapshot[f"{name}-live"].copy()

    def close(self) -> None: ...


class Noisy:
    """A policy whose chunks are the noise of their rows; it notes the rows that asked."""

    def __init__(
        self, name: str = "noisy", chunk: int = 1, execute: int = 0, streams: tuple[str, ...] = ("x",)
    ) -> None:
        known = {"x": Stream("x", (1,)), "force": Stream("force", (1,))}
        spec = AgentSpec(tuple(known[stream] for stream in streams), (Stream("dx", (1,)),))
        self.spec = PolicySpec(name, spec, chunk, execute or chunk)
        self.asked: list[Rows] = []
        self.version = 1
        self.ended: list[tuple[Rows, NDArray[np.uint8], NDArray[np.int64]]] = []

    def act(self, observation: Observation, noise_keys: NDArray[np.int64], mode: str) -> ActionChunk:
        rows = observation.rows.take(slice(None))
        self.asked.append(rows)
        assert set(observation.streams) == {stream.name for stream in self.spec.agent.observations}
        actions = 3 * normal(noise_keys, self.spec.chunk)[:, :, None]
        values = observation.streams["x"][:, 0].copy()
        return ActionChunk(rows, actions, -(actions**2), values, np.full(len(rows), self.version), self.spec.name)

    def outcome(self, rows: Rows, outcomes: NDArray[np.uint8], versions: NDArray[np.int64]) -> None:
        self.ended.append((rows, outcomes, versions))
