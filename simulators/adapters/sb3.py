"""Many environments as stable-baselines3's `VecEnv`. Needs `stable_baselines3`, which this project does not install."""

from collections.abc import Iterable, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Dict
from numpy.typing import NDArray
from stable_baselines3.common.vec_env import VecEnv

from embodied.data import Outcome
from embodied.errors import ConfigError, nearest
from simulators.adapters.episodes import NAMES, Episodes, Info, row
from simulators.adapters.gym_env import Streams
from simulators.adapters.pictures import Pictures
from simulators.adapters.spaces import action_space, checked_actions, checked_seed, observation_space
from simulators.env import BatchEnv
from simulators.one_agent import OneAgentEnv

Indices = None | int | Iterable[int]


class Sb3VecEnv(VecEnv):
    """Environments of one batch, for `MultiInputPolicy`: the streams by name, actions in physical units.

    An ended episode is followed by the next in the same step, and its last observation is in
    `infos[i]["terminal_observation"]`, beside `TimeLimit.truncated` (also after a fault of the simulator, whose reward
    is 0), `is_success`, which `EvalCallback` counts, `outcome` and `infrastructure_fault`. `reset_infos` are those of
    `Episodes.rows`.

    Args:
        env: The environments, from `simulators.make.make_env`. Their own seed holds until
            `VecEnv.seed` gives another.
        streams: Names of the streams to observe; None for all of them, the words of an instruction as bytes included.
        render_mode: `rgb_array` or None.
        camera: What `render` looks through; empty for `video`, or `front` where there is none.
        width: Pixels of a picture.
        height: Pixels of a picture.
        render_with: Who draws it, `gl`, `ray` or `auto`.

    Raises:
        ConfigError: Unknown stream, camera, render mode or renderer, a picture's size out of range, or several agents.
    """

    def __init__(
        self,
        env: BatchEnv,
        streams: Sequence[str] | None = None,
        render_mode: str | None = None,
        camera: str = "",
        width: int = 640,
        height: int = 480,
        render_with: str = "auto",
    ) -> None:
        env.autoreset = True
        self.env, self.render_mode, self._one = env, render_mode, OneAgentEnv(env)
        self._pictures = Pictures(env, render_mode, camera, width, height, render_with)
        self._episodes = Episodes(env.num_envs, env.spec.instruction, env.first)
        self._actions: NDArray[np.float32] | None = None
        agent = env.spec.agents[self._one.agent]
        self._shape = (env.num_envs, agent.action_dim)
        space = observation_space(agent)
        self._names = list(space.spaces if streams is None else streams)
        for name in self._names:
            if name not in space.spaces:
                raise ConfigError(f"unknown stream {name!r}", f"task {env.spec.task}", nearest(name, space.spaces))
        super().__init__(env.num_envs, Dict({name: space[name] for name in self._names}), action_space(agent))

    def seed(self, seed: int | None = None) -> Sequence[int | None]:
        """Seeds of the environments' next episodes: `seed` and those that follow it, or drawn ones.

        Raises:
            ConfigError: They are no integers from 0 to 2^63 - 1.
        """
        task = self.env.spec.task
        return super().seed(None if seed is None else checked_seed(seed, task, self.num_envs))

    def reset(self) -> Streams:
        """Start an episode on every environment, of the seeds that `seed` was given last if they are not used up."""
        seeds = None
        if self._seeds[0] is not None:
            seeds = np.array(self._seeds, np.int64)
            self.env.seed = int(seeds[0])
        observation, starts = self._one.reset(seeds)
        self._episodes.begin(starts, observation.streams)
        infos = self._episodes.rows(np.zeros(self.num_envs, np.uint8))
        self.reset_infos = [row(infos, env) for env in range(self.num_envs)]
        self._reset_seeds()
        self._reset_options()
        return {name: observation.streams[name] for name in self._names}

    def step_async(self, actions: NDArray[np.float32]) -> None:
        """Take [B, D] actions for the next `step_wait`.

        Raises:
            SpecMismatch: They have another shape, or hold NaN.
        """
        self._actions = checked_actions(actions, self._shape, self.env.spec.task)

    def step_wait(self) -> tuple[Streams, NDArray[np.float32], NDArray[np.bool_], list[Info]]:
        """One control step of every environment: observations, rewards, whether episodes ended, infos.

        Raises:
            ConfigError: No actions were given, or no episode was ever started.
        """
        if self._actions is None:
            raise ConfigError("step_wait without step_async", f"task {self.env.spec.task}", "give actions first")
        actions, self._actions = self._actions, None
        result = self._one.step(actions)
        infos: list[Info] = [{} for _ in range(self.num_envs)]
        for at, env in enumerate(result.ended):
            outcome = Outcome(int(result.outcomes[env]))
            infos[env] = {
                "terminal_observation": {name: result.final[name][at] for name in self._names},
                "TimeLimit.truncated": bool(result.truncated[env]),
                "is_success": outcome is Outcome.SUCCESS,
                "outcome": NAMES[outcome],
                "infrastructure_fault": outcome is Outcome.INFRASTRUCTURE_FAULT,
            }
        streams = {name: result.observation.streams[name] for name in self._names}
        return streams, result.rewards, result.terminated | result.truncated, infos

    def get_images(self) -> Sequence[NDArray[np.uint8] | None]:
        """A picture [height, width, 3] of each environment, or None without a render mode."""
        pictures = self._pictures.draw()
        return [None] * self.num_envs if pictures is None else list(pictures)

    def close(self) -> None:
        self._pictures.close()
        self.env.close()

    def get_attr(self, attr_name: str, indices: Indices = None) -> list[Any]:
        """An attribute of this object or the environment below, the same for every environment."""
        return [getattr(self._owner(attr_name), attr_name) for _ in self._get_indices(indices)]

    def set_attr(self, attr_name: str, value: Any, indices: Indices = None) -> None:
        """Set an attribute that exists, for all environments at once.

        Raises:
            ConfigError: Only some environments are named.
        """
        if len(list(self._get_indices(indices))) != self.num_envs:
            raise ConfigError(f"{attr_name} is shared by all environments", "set_attr", "leave indices out")
        setattr(self._owner(attr_name), attr_name, value)

    def env_method(
        self, method_name: str, *method_args: Any, indices: Indices = None, **method_kwargs: Any
    ) -> list[Any]:
        """Call a method of the batch once, such as `expert`; returns the row of each environment in its result."""
        result = getattr(self._owner(method_name), method_name)(*method_args, **method_kwargs)
        rows = isinstance(result, np.ndarray) and len(result) == self.num_envs
        return [result[env] if rows else result for env in self._get_indices(indices)]

    def env_is_wrapped(self, wrapper_class: type[gymnasium.Wrapper], indices: Indices = None) -> list[bool]:
        """No environment is wrapped, for there are no single environments."""
        return [False for _ in self._get_indices(indices)]

    def _owner(self, name: str) -> Any:
        """The environment or this object, whichever has an attribute.

        Raises:
            AttributeError: Neither.
        """
        for owner in (self._one, self.env, self):
            if hasattr(owner, name):
                return owner
        raise AttributeError(f"no attribute {name!r}: {nearest(name, (n for n in dir(self.env) if n[0] != '_'))}")
