"""A suite of two agents with different streams, actions and ends: `tests.simulators.worker.pairs:pair`."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embodied.spec import AgentSpec, EnvSpec, Stream
from simulators.worker.suite import Moment, Streams

STEPS = 8
AGENTS = {
    "walker": AgentSpec((Stream("at", (1,)), Stream("goal", (1,))), (Stream("step", (1,), limit=1.0),)),
    "watcher": AgentSpec((Stream("seen", (2, 2), "uint8"),), (Stream("gaze", (2,), limit=0.5),)),
}


class Pair:
    """`walker` succeeds beyond its goal; `watcher` fails where its gaze leaves 0.6, and raises at a gaze of -0.375."""

    def reset(self, seed: int) -> dict[str, Streams]:
        rng = np.random.default_rng(seed)
        self._at, self._goal, self._gaze = 0.0, rng.uniform(0.5, 1.5), np.zeros(2)
        return {name: self._seen(name) for name in AGENTS}

    def step(self, actions: dict[str, NDArray[np.float32]]) -> dict[str, Moment]:
        moments = {}
        if "walker" in actions:
            self._at += 0.3 * float(actions["walker"][0])
            there = self._at > self._goal
            moments["walker"] = Moment(self._seen("walker"), self._at, there, there, False)
        if "watcher" in actions:
            if actions["watcher"][0] == np.float32(-0.375):
                raise RuntimeError("the watcher is blind")
            self._gaze = self._gaze + actions["watcher"]
            lost = bool(np.abs(self._gaze).max() > 0.6)
            moments["watcher"] = Moment(self._seen("watcher"), 1.0, False, lost, False)
        return moments

    def close(self) -> None:
        pass

    def _seen(self, name: str) -> Streams:
        if name == "walker":
            return {"at": np.array([self._at]), "goal": np.array([self._goal])}
        return {"seen": np.full((2, 2), int(100 + 100 * np.clip(self._gaze[0], -1, 1)))}


class PairSuite:
    spec = EnvSpec("pair", AGENTS, 10.0, episode_steps=STEPS, control_size=3)

    def make(self) -> Pair:
        return Pair()


def load(id: str, options: Mapping[str, Any], pixels: int = 0) -> PairSuite:
    return PairSuite()
