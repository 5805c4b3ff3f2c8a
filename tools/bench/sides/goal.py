"""The end of a race to 90 % success, the same for every side."""

import math
import time
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from embodied.data import Outcome
from simulators.make import make_env
from simulators.one_agent import OneAgentEnv

EPISODES, FIRST_SEED, TARGET, PATIENCE = 100, 100_000, 0.9, 2

Streams = dict[str, NDArray]


class Goal:
    """Counts evaluations in a row that reach the target, and the time between evaluations.

    Args:
        limit_s: Seconds after which a side stops.
        every: Environment steps between evaluations.
    """

    def __init__(self, limit_s: float, every: int) -> None:
        self.limit_s, self.every = limit_s, every
        self.spent, self.reached, self.next = 0.0, 0, every
        self.mark = math.inf

    def done(self, env_steps: int, evaluate: Callable[[], float]) -> bool:
        """Call before the first update, from when on time counts, and between updates: evaluates where it is due."""
        self.spent += max(time.perf_counter() - self.mark, 0.0)
        if env_steps >= self.next:
            self.next = env_steps + self.every
            self.reached = self.reached + 1 if evaluate() >= TARGET else 0
        self.mark = time.perf_counter()
        return self.reached >= PATIENCE or self.spent >= self.limit_s

    @property
    def late(self) -> bool:
        """Whether the limit is met, also within an update."""
        return time.perf_counter() - self.mark + self.spent >= self.limit_s

    @property
    def seconds(self) -> float:
        """Seconds to the target, or the limit where it was not reached."""
        return self.spent if self.reached >= PATIENCE else self.limit_s


class Exam:
    """Success of a policy on episodes of their own, the same seeds for every side."""

    def __init__(self, task: str, seed: int) -> None:
        self.env = make_env(task, EPISODES, seed=seed)
        self.env.autoreset = False

    def __call__(self, act: Callable[[Streams], NDArray]) -> float:
        """Share of successes of `act`, which gives physical actions for streams."""
        observation, _ = OneAgentEnv(self.env).reset(np.arange(EPISODES) + FIRST_SEED)
        outcomes = np.zeros(EPISODES, np.uint8)
        while not outcomes.all():
            result = OneAgentEnv(self.env).step(act(observation.streams))
            outcomes[result.ended] = result.outcomes[result.ended]
            observation = result.observation
        return float((outcomes == Outcome.SUCCESS).mean())


def numbers(env: object) -> list[str]:
    """Names of the float streams of a `BatchEnv`, in order."""
    streams = env.spec.agents["robot"].observations  # type: ignore[attr-defined]
    return [stream.name for stream in streams if stream.dtype == "float32"]


def flat(streams: Streams, names: list[str], rows: int) -> NDArray:
    """One float32 vector per row."""
    return np.concatenate([streams[name].reshape(rows, -1) for name in names], axis=1)
