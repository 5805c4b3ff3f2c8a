"""Many environments as a `gymnasium.vector.VectorEnv`, stepped together."""

from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium.utils import seeding
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from embodied.errors import ConfigError
from simulators.adapters.episodes import Episodes, Info, masked
from simulators.adapters.gym_env import MAX_SEED, Streams
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

Flags = NDArray[np.bool_]


class VectorEnv(gymnasium.vector.VectorEnv[Any, Any, Any]):
    """A task in `num_envs` environments; each gives what a `SingleEnv` of its seed gives, number for number.

    An ended episode is followed by the next in the same step: `infos["final_obs"]` and `infos["final_info"]` hold the
    last of the old one, as gymnasium's own vector environments have them with `AutoresetMode.SAME_STEP`.

    Args:
        num_envs: B.
        num_threads: Physics threads; 0 for one per CPU.
        Others as of `SingleEnv`.

    Raises:
        ConfigError: As `SingleEnv`, or a count out of range.
    """

    metadata: dict[str, Any] = {  # noqa: RUF012 (gymnasium's)
        "render_modes": RENDER_MODES,
        "render_fps": 20,
        "autoreset_mode": AutoresetMode.SAME_STEP,
    }

    def __init__(
        self,
        task: str,
        num_envs: int = 1,
        render_mode: str | None = None,
        camera: str = "",
        width: int = 640,
        height: int = 480,
        render_with: str = "auto",
        num_threads: int = 0,
        **options: Any,
    ) -> None:
        self.env = make_env(task, num_envs, num_threads, **options)
        self._one = OneAgentEnv(self.env)
        self.env.draw_seeds = self._draw_seeds
        self._pictures = Pictures(self.env, render_mode, camera, width, height, render_with)
        agent = self.env.spec.agents[self._one.agent]
        self.num_envs, self.render_mode = num_envs, render_mode
        self.single_observation_space, self.single_action_space = observation_space(agent), action_space(agent)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.metadata = {**self.metadata, "render_fps": round(self.env.spec.control_hz)}
        self._episodes = Episodes(num_envs, self.env.spec.instruction, self.env.first)
        self._generators = [seeding.np_random() for _ in range(num_envs)]

    @property  # type: ignore[misc]
    def np_random(self) -> tuple[np.random.Generator, ...]:  # type: ignore[override]
        """Each environment's generator, which draws the seeds of its later episodes."""
        return tuple(generator for generator, _ in self._generators)

    @property
    def np_random_seed(self) -> tuple[int, ...]:  # type: ignore[override]
        return tuple(seed for _, seed in self._generators)

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Streams, Info]:
        """Start an episode on every environment.

        Args:
            seed: Seed of the first environment, each other having one more than that before it; or one per environment.
                An environment whose seed is None draws further seeds from the last it was given.
            options: None are known.

        Raises:
            ConfigError: Not one seed from 0 to 2^63 - 1 per environment, or `options` holds any.
        """
        check_options(options, self.env.spec.task)
        seeds = self._drawn_or_given(seed)
        observation, starts = self._one.reset(seeds)
        self._episodes.begin(starts, observation.streams)
        every = np.ones(self.num_envs, bool)
        return observation.streams, masked(self._episodes.rows(np.zeros(self.num_envs, np.uint8)), every)

    def step(self, actions: NDArray[np.float32]) -> tuple[Streams, NDArray[np.float64], Flags, Flags, Info]:
        """One control step of every environment.

        Raises:
            SpecMismatch: `actions` are no [B, D] numbers.
            ConfigError: No episode was ever started.
        """
        assert self.action_space.shape is not None
        result = self._one.step(checked_actions(actions, self.action_space.shape, self.env.spec.task))
        outcomes, infos = result.outcomes, {}
        if result.started is not None:
            ended = np.zeros(self.num_envs, bool)
            ended[result.ended] = True
            final = np.full(self.num_envs, None, object)
            for at, env in enumerate(result.ended):
                final[env] = {name: values[at] for name, values in result.final.items()}
            last = masked(self._episodes.rows(outcomes), ended)
            infos = {"final_obs": final, "_final_obs": ended, "final_info": last, "_final_info": ended.copy()}
            self._episodes.begin(result.started, result.observation.streams)
            outcomes = np.where(ended, np.uint8(0), outcomes)
        infos |= masked(self._episodes.rows(outcomes), np.ones(self.num_envs, bool))
        rewards = result.rewards.astype(np.float64)
        return result.observation.streams, rewards, result.terminated, result.truncated, infos

    def render(self) -> tuple[NDArray[np.uint8], ...] | None:
        """A picture [height, width, 3] of each environment, or None without a render mode."""
        pictures = self._pictures.draw()
        return None if pictures is None else tuple(pictures)

    def expert(self) -> NDArray[np.float32]:
        """[B, D] actions of the task's scripted expert in the present state."""
        return self._one.expert()

    def close_extras(self, **kwargs: Any) -> None:
        self._pictures.close()
        self.env.close()

    def _drawn_or_given(self, seed: int | Sequence[int | None] | None) -> NDArray[np.int64]:
        """[B] seeds of the episodes that a reset starts."""
        task = self.env.spec.task
        given: list[int | None]
        if seed is None:
            given = [None] * self.num_envs
        elif isinstance(seed, Sequence | np.ndarray) and not isinstance(seed, str):
            given = [None if own is None else checked_seed(own, task) for own in seed]
        else:
            first = checked_seed(seed, task, self.num_envs)
            given = [first + i for i in range(self.num_envs)]
        if len(given) != self.num_envs:
            what = f"{len(given)} seeds for {self.num_envs} environments"
            raise ConfigError(what, f"task {task}, reset", "give one each, or a single number")
        for env, own in enumerate(given):
            if own is not None:
                self._generators[env] = seeding.np_random(own)
        drawn = [self._draw(env) if own is None else own for env, own in enumerate(given)]
        return np.array(drawn, np.int64)

    def _draw_seeds(self, ids: NDArray[np.int32]) -> NDArray[np.int64]:
        return np.array([self._draw(env) for env in ids - self.env.first], np.int64)

    def _draw(self, env: int) -> int:
        return int(self._generators[env][0].integers(MAX_SEED))
