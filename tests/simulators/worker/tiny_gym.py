"""Tiny Gymnasium environments for workers: a point that is pushed towards a goal, and what can go wrong on the way."""

import os
import signal
import time
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete

STEPS = 6
TROUBLE = 0.875  # this first number of an action calls for the trouble that the environment was made with


class Tiny(gym.Env[Any, Any]):
    """Observes position, goal and a count of its life's resets; success within 0.3 of the goal.

    Args:
        trouble: `raise`, `hang`, `die` or `nan` at an action that begins with `TROUBLE`; `reset` fails every reset,
            `third` hangs from the third of this process on.
        refused, hanging: Seeds whose reset raises, or hangs.
        drift: Moves the goal on each reset of this process, so that an episode does not repeat.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012 (as Gymnasium has it)
    resets = 0

    def __init__(
        self,
        trouble: str = "",
        drift: bool = False,
        render_mode: str | None = None,
        refused: tuple[int, ...] = (),
        hanging: tuple[int, ...] = (),
    ) -> None:
        box = Box(-np.inf, np.inf, (2,), np.float64)
        self.observation_space = Dict({"observation": box, "achieved_goal": box, "desired_goal": box})
        self.action_space = Box(-1.0, 1.0, (2,), np.float32)
        self._trouble, self._drift, self.render_mode = trouble, drift, render_mode
        self._refused, self._hanging = refused, hanging

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        if self._trouble == "reset":
            raise OSError("the reset is broken")
        if seed in self._refused:
            raise ValueError(f"no layout for seed {seed}")
        if seed in self._hanging:
            time.sleep(600)
        if self._trouble == "third" and Tiny.resets == 2:
            time.sleep(600)
        Tiny.resets += 1
        self._goal = self.np_random.uniform(-0.5, 0.5, 2) + self._drift * Tiny.resets
        self._at = np.zeros(2)
        return self._seen(), {}

    def step(self, action: Any) -> Any:
        if self._trouble and action[0] == np.float32(TROUBLE):
            if self._trouble == "raise":
                raise RuntimeError("the gripper broke")
            if self._trouble == "hang":
                time.sleep(600)
            if self._trouble == "die":
                os.kill(os.getpid(), signal.SIGKILL)
            self._at = self._at * np.nan
        self._at = self._at + 0.1 * action
        distance = float(np.linalg.norm(self._at - self._goal))
        far = bool(np.abs(self._at).max() > 0.35)
        return self._seen(), -distance, far, False, {"is_success": distance < 0.3}

    def render(self) -> Any:
        return np.full((8, 12, 3), 100, np.uint8)

    def _seen(self) -> dict[str, Any]:
        return {"observation": self._at.copy(), "achieved_goal": self._at.copy(), "desired_goal": self._goal.copy()}


class Odd(Tiny):
    """Spaces that need care: one flat box, actions from 0 to 2 and -1 to 3."""

    def __init__(self, discrete: bool = False, bounded: bool = True) -> None:
        super().__init__()
        self.observation_space = Box(-1, 1, (2, 2), np.float32)
        high = np.array([2.0, 3.0 if bounded else np.inf], np.float32)
        self.action_space = Discrete(3) if discrete else Box(np.array([0.0, -1.0], np.float32), high)

    def _seen(self) -> Any:
        return np.tile(self._at, (2, 1)).astype(np.float32)

    def step(self, action: Any) -> Any:
        self._at = np.asarray(action, np.float64)
        return self._seen(), 0.0, False, False, {}


gym.register("Tiny-v0", Tiny, max_episode_steps=STEPS)
gym.register("Odd-v0", Odd, max_episode_steps=STEPS)
gym.register("Endless-v0", Tiny)
