"""Direct environments: one class that applies actions, observes, rewards and resets by itself."""

import math
from collections.abc import Sequence
from typing import Any, ClassVar

import gymnasium
import torch

from simulators.isaac.cfg import DirectRLEnvCfg
from simulators.isaac.env_base import EnvBase, Observations, StepReturn, box
from simulators.isaac.errors import ConfigError, SpecMismatch
from simulators.isaac.managers import EventManager
from simulators.isaac.noise import NoiseCfg, apply_noise
from simulators.isaac.simulation import as_action, returned


class DirectRLEnv(EnvBase):
    """N environments written as one class; see `EnvBase`. Derive, and define the hooks.

    `_setup_scene` may add entities: `self.robot = Articulation(cfg)`, `self.scene.articulations["robot"] = self.robot`.
    `_get_observations` is called again, before the reset, in steps that end episodes: for the final observation.

    Attributes:
        actions: [N, D] as last given to `_pre_physics_step`.
        constant_over_decimation: Whether `_apply_action` would set the same targets in every physics step of an
            environment step; then it is called once, and physics runs through in one call.

    Raises:
        ConfigError: The configuration misses something or names something unknown.
    """

    cfg: DirectRLEnvCfg
    constant_over_decimation: ClassVar[bool] = False

    def __init__(self, cfg: DirectRLEnvCfg, render_mode: str | None = None, **kwargs: Any) -> None:
        super().__init__(cfg, render_mode, **kwargs)
        self._observed = False
        with torch.no_grad(), self._at_work():
            self.event_manager = EventManager(self.cfg.events, self)
            spaces: dict[str, gymnasium.Space[Any]] = {"policy": self._space("observation_space")}
            if self.cfg.state_space:
                spaces["critic"] = self.state_space = self._space("state_space")
            action = self._space("action_space")
            self._set_spaces(gymnasium.spaces.Dict(spaces), action)
            self.actions = torch.zeros(self.num_envs, *action.shape)
            self.event_manager.apply("prestartup")
            self.event_manager.apply("startup")

    def _space(self, name: str) -> gymnasium.spaces.Box:
        """A space of the configuration; raises `ConfigError` unless it is a Box or sizes."""
        given = getattr(self.cfg, name)
        if isinstance(given, gymnasium.spaces.Box):
            return given
        sizes = [given] if isinstance(given, int) else given
        if not isinstance(sizes, (list, tuple)) or not all(isinstance(size, int) and size > 0 for size in sizes):
            fix = "give a size, the sizes of several axes, or a gymnasium Box"
            raise ConfigError(f"{name} cannot be {given!r}"[:100], type(self.cfg).__name__, fix)
        return box(tuple(sizes))

    def _step(self, action: torch.Tensor) -> StepReturn:
        if not isinstance(action, torch.Tensor) or action.dtype is not torch.float32:
            action = as_action(action, type(self).__name__)
        self._check_action(action)
        self.actions = self._noisy(action, self.cfg.action_noise_model)
        self._pre_physics_step(self.actions)
        self._advance(self.constant_over_decimation)
        dones = self._get_dones()
        if not isinstance(dones, (tuple, list)) or len(dones) != 2:
            where = f"{type(self).__name__}._get_dones"
            raise SpecMismatch(f"the result is a {type(dones).__name__}", where, "return (terminated, time-outs)")
        self.reset_terminated, self.reset_time_outs = dones
        for done in (self.reset_terminated, self.reset_time_outs):
            returned(done, self.num_envs, f"{type(self).__name__}._get_dones", truths=True)
        faults = self._take_faults()
        if faults is not None:
            self.reset_terminated, self.reset_time_outs = self.reset_terminated & ~faults, self.reset_time_outs | faults
        self.reset_buf = self.reset_terminated | self.reset_time_outs
        self.reward_buf = self._get_rewards()
        returned(self.reward_buf, self.num_envs, f"{type(self).__name__}._get_rewards")
        if faults is not None:
            self.reward_buf = self.reward_buf.masked_fill(faults, 0.0)
        if not math.isfinite(float(self.reward_buf.sum())):
            where = f"{type(self).__name__}._get_rewards"
            raise SpecMismatch("the result is not finite", where, "mend the reward")
        return self._end_step(faults)

    def _setup_scene(self) -> None:
        """Hook: add entities that `cfg.scene` does not hold."""

    def _pre_physics_step(self, actions: torch.Tensor) -> None:
        """Hook: take the step's actions [N, D]."""
        raise NotImplementedError

    def _apply_action(self) -> None:
        """Hook: set targets, before each physics step."""
        raise NotImplementedError

    def _get_observations(self) -> Observations:
        """Hook: `policy`, and `critic` if there is a `state_space`: [N, ...]."""
        raise NotImplementedError

    def _get_rewards(self) -> torch.Tensor:
        """Hook: [N]."""
        raise NotImplementedError

    def _get_dones(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Hook: terminated and time-outs, [N] bool each."""
        raise NotImplementedError

    def _reset_idx(self, env_ids: torch.Tensor | Sequence[int] | None) -> None:
        """Hook: reset the states of `env_ids`, after a call of this base, for entities, events and counters."""
        ids = torch.arange(self.num_envs) if env_ids is None else torch.as_tensor(env_ids)
        self.extras["log"] = {}
        self.scene.reset(ids)
        self.event_manager.apply("reset", ids, global_env_step_count=self.common_step_counter)
        self.event_manager.reset(ids)
        self._episode_length_buf[ids] = 0

    def _set_targets(self) -> None:
        self._apply_action()

    def _observe(self) -> Observations:
        observations = self._get_observations()
        if not isinstance(observations, dict) or "policy" not in observations:
            where = f"{type(self).__name__}._get_observations"
            raise SpecMismatch("the result has no policy", where, 'return {"policy": tensor}')
        if not self._observed:
            self._check_observations(observations)
            self._observed = True
        if self.cfg.observation_noise_model is not None:
            noisy = self._noisy(observations["policy"], self.cfg.observation_noise_model)
            observations = {**observations, "policy": noisy}
        return observations

    def _check_observations(self, observations: Observations) -> None:
        """Raise `SpecMismatch` unless observations fit the observation space; called for the first ones only."""
        for name, space in self.observation_space.spaces.items():
            value, where = observations.get(name), f"{name} of {type(self).__name__}._get_observations"
            if not isinstance(value, torch.Tensor) or tuple(value.shape) != space.shape:
                found = f"shape {tuple(value.shape)}" if isinstance(value, torch.Tensor) else type(value).__name__
                raise SpecMismatch(f"the result has {found}", where, f"return a tensor of shape {space.shape}")
            if not torch.isfinite(value).all():
                raise SpecMismatch("the result is not finite", where, "mend the observation")

    def _observe_final(self) -> Observations:
        # A hook may return a buffer of its own and write it again after the reset.
        return {name: value.clone() for name, value in self._observe().items()}

    def _noisy(self, data: torch.Tensor, noise: NoiseCfg | None) -> torch.Tensor:
        return data if noise is None else apply_noise(noise, data, self.generator)

    def _check_action(self, action: torch.Tensor) -> None:
        if tuple(action.shape) != tuple(self.actions.shape):
            what = f"an action of shape {tuple(action.shape)}"
            raise SpecMismatch(what, type(self).__name__, f"give {tuple(self.actions.shape)}")
        if not math.isfinite(float(action.sum())) and not torch.isfinite(action).all():
            env, *rest = (~torch.isfinite(action)).nonzero()[0].tolist()
            raise SpecMismatch(f"action {rest} of environment {env} is not finite", type(self).__name__, "give numbers")
