"""Many environments as a `gymnasium.vector.VectorEnv`, stepped together."""

from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium.utils import seeding
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from embodied.data import Observation, Resets
from embodied.errors import ConfigError
from simulators.adapters.episodes import Episodes, Info, masked
from simulators.adapters.gym_env import MAX_SEED, Streams
from simulators.adapters.pictures import RENDER_MODES, Pictures
from simulators.adapters.spaces import (
    action_space,
    check_options,
    checked_actions,
    checked_mask,
    checked_seed,
    observation_space,
)
from simulators.make import make_env
from simulators.one_agent import OneAgentEnv

Flags = NDArray[np.bool_]


class VectorEnv(gymnasium.vector.VectorEnv[Any, Any, Any]):
    """A task in `num_envs` environments; each gives what a `SingleEnv` of its seed gives, number for number.

    The next episode follows an ended one as in gymnasium's own vector environments with this `autoreset_mode`.
    `SAME_STEP`: in the same step, and `infos["final_obs"]` and `infos["final_info"]` hold the last of the old one.
    `NEXT_STEP`: in the step after, whatever its action, with reward 0. `DISABLED`: at
    `reset(options={"reset_mask": mask})`.

    Args:
        num_envs: B.
        num_threads: Physics threads; 0 for one per CPU.
        autoreset_mode: An `AutoresetMode`, or `same-step`, `next-step` or `disabled`.
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
        autoreset_mode: AutoresetMode | str = AutoresetMode.SAME_STEP,
        **options: Any,
    ) -> None:
        self._mode = _mode(autoreset_mode, task)
        self.env = make_env(task, num_envs, num_threads, **options)
        self._one = OneAgentEnv(self.env)
        self.env.autoreset = self._mode is AutoresetMode.SAME_STEP
        self.env.draw_seeds = self._draw_seeds
        self._pictures = Pictures(self.env, render_mode, camera, width, height, render_with)
        agent = self.env.spec.agents[self._one.agent]
        self.num_envs, self.render_mode = num_envs, render_mode
        self.single_observation_space, self.single_action_space = observation_space(agent), action_space(agent)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.metadata = {**self.metadata, "render_fps": round(self.env.spec.control_hz)}
        self.metadata["autoreset_mode"] = self._mode
        self._begun, self._ended = False, np.zeros(num_envs, bool)
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
        """Start an episode on every environment, or on those of a mask.

        Args:
            seed: Seed of the first environment, each other having one more than that before it; or one per environment.
                An environment whose seed is None draws further seeds from the last it was given.
            options: `reset_mask` [B] bool, the environments to reset; the others go on.

        Raises:
            ConfigError: Not one seed from 0 to 2^63 - 1 per environment, or `options` holds anything else.
        """
        task = self.env.spec.task
        options = dict(options or {})
        mask = options.pop("reset_mask", None)
        mask = np.ones(self.num_envs, bool) if mask is None else checked_mask(mask, self.num_envs, task)
        check_options(options, task)
        if mask.all():
            observation, starts = self._one.reset(self._drawn_or_given(seed, mask))
        elif not self._begun:
            raise ConfigError("the first reset leaves environments out", f"task {task}, reset_mask", "reset all first")
        else:
            observation, starts = self._restart(mask, self._drawn_or_given(seed, mask)[mask])
        self._begun = True
        self._ended[mask] = False
        self._episodes.begin(starts, observation.streams)
        return observation.streams, masked(self._episodes.rows(np.zeros(self.num_envs, np.uint8)), mask)

    def step(self, actions: NDArray[np.float32]) -> tuple[Streams, NDArray[np.float64], Flags, Flags, Info]:
        """One control step of every environment.

        Raises:
            SpecMismatch: `actions` are no [B, D] numbers.
            ConfigError: No episode was ever started, or with `DISABLED` one that ended was not reset.
        """
        assert self.action_space.shape is not None
        over, self._ended = self._ended, np.zeros(self.num_envs, bool)
        if self._mode is AutoresetMode.DISABLED and over.any():
            self._ended = over
            what = f"the episodes of environments {', '.join(map(str, np.flatnonzero(over)[:8]))} have ended"
            fix = 'call reset(options={"reset_mask": mask}) first'
            raise ConfigError(what, f"task {self.env.spec.task}, step", fix)
        result = self._one.step(checked_actions(actions, self.action_space.shape, self.env.spec.task))
        outcomes, infos = result.outcomes, {}
        observation = result.observation
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
        elif self._mode is not AutoresetMode.SAME_STEP:
            self._ended[result.ended] = True
        if over.any():
            observation, starts = self._restart(over)
            self._episodes.begin(starts, observation.streams)
        infos |= masked(self._episodes.rows(outcomes), np.ones(self.num_envs, bool))
        rewards = result.rewards.astype(np.float64)
        return observation.streams, rewards, result.terminated, result.truncated, infos

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

    def _restart(self, mask: Flags, seeds: NDArray[np.int64] | None = None) -> tuple[Observation, Resets]:
        """Start the next episodes of the environments `mask` [B]; observations are of all."""
        observations, starts = self.env.restart(np.flatnonzero(mask).astype(np.int32), seeds)
        return observations[self._one.agent], starts

    def _drawn_or_given(self, seed: int | Sequence[int | None] | None, mask: Flags) -> NDArray[np.int64]:
        """[B] seeds of the episodes that a reset of the environments `mask` starts; 0 for the others."""
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
            if own is not None and mask[env]:
                self._generators[env] = seeding.np_random(own)
        drawn = [(self._draw(env) if own is None else own) if mask[env] else 0 for env, own in enumerate(given)]
        return np.array(drawn, np.int64)

    def _draw_seeds(self, ids: NDArray[np.int32]) -> NDArray[np.int64]:
        return np.array([self._draw(env) for env in ids - self.env.first], np.int64)

    def _draw(self, env: int) -> int:
        return int(self._generators[env][0].integers(MAX_SEED))


def _mode(mode: AutoresetMode | str, task: str) -> AutoresetMode:
    """An autoreset mode by its name, such as `next-step` or `NextStep`."""
    known = {each.value.lower(): each for each in AutoresetMode}
    plain = mode.value if isinstance(mode, AutoresetMode) else str(mode)
    found = known.get(plain.lower().replace("-", "").replace("_", ""))
    if found is None:
        fix = "choose same-step, next-step or disabled"
        raise ConfigError(f"autoreset_mode cannot be {mode!r}", f"task {task}", fix)
    return found
