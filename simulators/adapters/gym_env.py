"""One environment as a `gymnasium.Env`."""

from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from embodied.data import Outcome
from embodied.errors import ConfigError
from simulators.adapters.episodes import Episodes, Info, row
from simulators.adapters.pictures import RENDER_MODES, Pictures
from simulators.adapters.spaces import (
    action_space,
    check_options,
    checked_actions,
    checked_seed,
    observation_space,
)
from simulators.make import make_env
from simulators.one_agent import OneAgentEnv

Streams = dict[str, NDArray[Any]]
MAX_SEED = 2**62


class SingleEnv(gymnasium.Env[Any, Any]):
    """A task for one environment.

    Observations are the streams by name. Actions are in physical units, and clipped to the limits of the action space.
    A seed alone decides its episode: `reset(seed=7)` starts the episode that seed 7 has everywhere; later resets
    without one draw further seeds from it. Success and failure terminate, the time limit truncates, and so does a fault
    of the simulator, which comes with reward 0 and `info["infrastructure_fault"]`. Infos are those of `Episodes.rows`.

    Args:
        task: Name of a task.
        render_mode: `rgb_array` or None.
        camera: What `render` looks through; empty for `video`, or `front` where there is none.
        width: Pixels of a picture.
        height: Pixels of a picture.
        render_with: Who draws it: `ray`, `gl`, `quality` or `auto`.
        num_threads: Physics threads.
        options: Of `simulators.make.make_env`: the task's own, such as `reward`, cameras, randomisation.

    Raises:
        ConfigError: Unknown task, option, camera, render mode or renderer, or a picture's size out of range.
    """

    metadata: dict[str, Any] = {"render_modes": RENDER_MODES, "render_fps": 20}  # noqa: RUF012 (gymnasium's)

    def __init__(
        self,
        task: str,
        render_mode: str | None = None,
        camera: str = "",
        width: int = 640,
        height: int = 480,
        render_with: str = "auto",
        num_threads: int = 1,
        **options: Any,
    ) -> None:
        self.env = make_env(task, 1, num_threads, **options)
        self._one = OneAgentEnv(self.env)
        self.env.autoreset = False
        self._pictures = Pictures(self.env, render_mode, camera, width, height, render_with)
        agent = self.env.spec.agents[self._one.agent]
        self.observation_space = observation_space(agent)
        self.action_space = action_space(agent)
        self.render_mode = render_mode
        self.metadata = {**self.metadata, "render_fps": round(self.env.spec.control_hz)}
        self._episodes = Episodes(1, self.env.spec.instruction, self.env.first)
        self._ended = True

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Streams, Info]:
        """Start the episode of `seed`, or of the next one drawn.

        Raises:
            ConfigError: `seed` is no integer from 0 to 2^63 - 1, or `options` holds any.
        """
        check_options(options, self.env.spec.task)
        seed = None if seed is None else checked_seed(seed, self.env.spec.task)
        super().reset(seed=seed)
        episode = int(self.np_random.integers(MAX_SEED)) if seed is None else seed
        observation, starts = self._one.reset([episode])
        self._episodes.begin(starts, observation.streams)
        self._ended = False
        return _first(observation.streams), self._info(np.zeros(1, np.uint8))

    def step(self, action: NDArray[np.float32]) -> tuple[Streams, float, bool, bool, Info]:
        """One control step.

        Raises:
            SpecMismatch: `action` is no [D] numbers.
            ConfigError: The episode has ended.
        """
        task = self.env.spec.task
        assert self.action_space.shape is not None
        actions = checked_actions(action, self.action_space.shape, task)[None]
        if self._ended:
            raise ConfigError("step outside an episode", f"task {task}", "call reset() first")
        result = self._one.step(actions)
        self._ended = bool(result.outcomes[0] != Outcome.RUNNING)
        return (
            _first(result.observation.streams),
            float(result.rewards[0]),
            bool(result.terminated[0]),
            bool(result.truncated[0]),
            self._info(result.outcomes),
        )

    def render(self) -> NDArray[np.uint8] | None:
        """[height, width, 3] RGB, or None without a render mode."""
        pictures = self._pictures.draw()
        return None if pictures is None else pictures[0]

    def close(self) -> None:
        self._pictures.close()
        self.env.close()

    def expert(self) -> NDArray[np.float32]:
        """[D] action of the task's scripted expert in the present state."""
        return self._one.expert()[0]

    def _info(self, outcomes: NDArray[np.uint8]) -> Info:
        return row(self._episodes.rows(outcomes), 0)


def _first(streams: Streams) -> Streams:
    return {name: values[0] for name, values in streams.items()}
