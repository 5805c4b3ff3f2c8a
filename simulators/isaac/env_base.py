"""Base of manager-based and direct environments: scene, seed, counters, faults, spaces."""

import copy
import logging
import math
import secrets
from collections.abc import Callable, Hashable
from contextlib import AbstractContextManager
from typing import Any, ClassVar

import gymnasium
import numpy as np
import torch
from gymnasium.vector.utils import batch_space

from simulators.isaac.cfg import EnvCfg, check_env_cfg, ignored, quaternion_order_of
from simulators.isaac.checks import check_whole
from simulators.isaac.configclass import missing
from simulators.isaac.errors import ConfigError
from simulators.isaac.quaternion import quaternion_order
from simulators.isaac.scene import InteractiveScene
from simulators.isaac.simulation import Simulation, numbers

Observations = dict[str, Any]
log = logging.getLogger(__name__)
StepReturn = tuple[Observations, torch.Tensor, torch.Tensor, torch.Tensor, dict[str, Any]]


class EnvBase(gymnasium.Env):
    """N environments stepped together; tensors have a leading axis of environments.

    Attributes:
        cfg: A copy of the configuration, with a drawn seed if it had none.
        scene, sim: Entities and physics.
        quaternion: Order of quaternions, also in `metadata`.
        generator: Source of everything random here; a seed repeats bit for bit.
        episode_length_buf: [N] int64 steps in the present episode; may be assigned.
        common_step_counter: Steps taken by all together.
        reset_buf, reset_terminated, reset_time_outs: [N] bool of the last step.
        reward_buf, obs_buf: As last returned.
        extras: `log`, `final_obs` (the observation before any reset), `faults` ([N] bool, physics that diverged: the
            episode is truncated, its reward is 0 and its final observation is the last one that was finite) and, unless
            the horizon is finite, `time_outs`.
    """

    is_vector_env: ClassVar[bool] = True
    device = "cpu"
    observation_space: Any
    action_space: Any
    event_manager: Any

    def __init__(self, cfg: EnvCfg, render_mode: str | None = None, **kwargs: Any) -> None:
        for name in kwargs:
            if not name.endswith("_cfg_entry_point"):  # Part of a task's registration with gymnasium.
                raise ConfigError(f"no argument is called {name!r}", type(self).__name__, "set it in cfg")
        unfilled = list(missing(cfg))
        if unfilled:
            raise ConfigError(f"{', '.join(unfilled)} is missing", type(cfg).__name__, "fill it in")
        check_env_cfg(cfg)
        self.cfg: Any = copy.deepcopy(cfg)
        self.render_mode = render_mode
        self.quaternion = self.cfg.quaternion = quaternion_order_of(cfg)
        unread = ignored(cfg) + (["render_mode"] if render_mode is not None else [])
        if unread:
            log.warning("%s: these settings change nothing here: %s", type(cfg).__name__, ", ".join(unread))
        self.metadata = {"render_modes": [None], "render_fps": 1.0 / self.step_dt, "quaternion": self.quaternion}
        self.generator = torch.Generator()
        self.cfg.seed = self.seed(secrets.randbits(31) if cfg.seed is None else cfg.seed)
        self.extras: dict[str, Any] = {"log": {}}
        self.common_step_counter = 0
        self._episode_length_buf = torch.zeros(self.num_envs, dtype=torch.long)
        self._none = torch.zeros(self.num_envs, dtype=torch.bool)
        self.reset_buf = self.reset_terminated = self.reset_time_outs = self._none
        self.reward_buf = torch.zeros(self.num_envs)
        self.obs_buf: Observations = {}
        self._started = False
        self._memo: dict[Hashable, torch.Tensor] = {}
        self._memo_stamp = -1
        self._counts = self._episode_length_buf.numpy()
        with self._at_work():
            self.scene = InteractiveScene(self.cfg.scene, self.quaternion)
            self._setup_scene()
            self.scene.compile(self.cfg.sim)
            self.sim: Simulation = self.scene.sim

    @property
    def num_envs(self) -> int:
        return self.cfg.scene.num_envs

    @property
    def physics_dt(self) -> float:
        """`sim.dt`, s; MuJoCo takes `sim.substeps` steps in it."""
        return self.cfg.sim.dt

    @property
    def step_dt(self) -> float:
        """s between two actions."""
        return self.cfg.sim.dt * self.cfg.decimation

    @property
    def max_episode_length_s(self) -> float:
        return self.cfg.episode_length_s

    @property
    def max_episode_length(self) -> int:
        """Steps of the longest episode."""
        return math.ceil(self.cfg.episode_length_s / self.step_dt - 1e-9)

    @property
    def episode_length_buf(self) -> torch.Tensor:
        return self._episode_length_buf

    @episode_length_buf.setter
    def episode_length_buf(self, value: torch.Tensor) -> None:
        self._episode_length_buf.copy_(value)

    def seed(self, seed: int) -> int:
        """Seed `generator`, and torch's own for terms written for Isaac Lab; returns the seed.

        Raises:
            ConfigError: It is no whole number of 64 bits.
        """
        seed = check_whole(seed, -(2**63), 2**64 - 1, "seed", type(self).__name__)
        self.generator.manual_seed(seed)
        torch.manual_seed(seed)
        return seed

    @torch.no_grad()
    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observations, dict[str, Any]]:
        """Begin new episodes everywhere. `options` are ignored."""
        del options
        if seed is not None:
            self.seed(seed)
        self.sim.clear_faults()
        with self._at_work():
            self._begin(torch.arange(self.num_envs))
            self.obs_buf = self._observe()
        self._started = True
        return self.obs_buf, self.extras

    @torch.no_grad()
    def step(self, action: torch.Tensor) -> StepReturn:  # type: ignore[override]
        """Take [N, D] actions; returns observations, reward [N], terminated [N], truncated [N], extras.

        Raises:
            SpecMismatch: The action has another shape or is not finite.
            ConfigError: The environment was never reset.
        """
        self._require_started()
        with self._at_work():
            return self._step(action)

    def once(self, key: Hashable, compute: Callable[[], torch.Tensor]) -> torch.Tensor:
        """Result of `compute`, called once per `key` for the present state and command; terms share it."""
        self.sim.forward()
        if self._memo_stamp != self.sim.stamp:
            self._memo.clear()
            self._memo_stamp = self.sim.stamp
        if key not in self._memo:
            self._memo[key] = compute()
        return self._memo[key]

    def state_dict(self) -> dict[str, Any]:
        """State that outlives episodes and belongs into a checkpoint: steps taken, and the random generator."""
        return {"common_step_counter": self.common_step_counter, "generator": self.generator.get_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over `state_dict` of an environment of this task, of any count; `reset` then begins its next episodes.

        Raises:
            ConfigError: It lacks something.
        """
        if lacking := [name for name in self.state_dict() if name not in state]:
            raise ConfigError(f"the state lacks {', '.join(lacking)}", type(self).__name__, "use a state_dict()")
        self.common_step_counter = int(state["common_step_counter"])
        self.generator.set_state(state["generator"].cpu())

    def render(self) -> None:
        """Do nothing: there is no window."""

    def close(self) -> None:
        """Do nothing: the physics ends with the object."""

    def _setup_scene(self) -> None:
        """Hook: add entities to the scene before it is compiled."""

    def _step(self, action: torch.Tensor) -> StepReturn:
        raise NotImplementedError

    def _set_targets(self) -> None:
        """Set targets from the step's action, before each physics step."""
        raise NotImplementedError

    def _observe(self) -> Observations:
        raise NotImplementedError

    def _observe_final(self) -> Observations:
        raise NotImplementedError

    def _reset_idx(self, env_ids: torch.Tensor) -> None:
        raise NotImplementedError

    def _at_work(self) -> AbstractContextManager[None]:
        """Context in which quaternion functions take this environment's order."""
        return quaternion_order(self.quaternion)

    def _require_started(self) -> None:
        if not self._started:
            raise ConfigError("step before the first reset", type(self).__name__, "call reset() first")

    def _begin(self, env_ids: torch.Tensor) -> None:
        """Start episodes in `env_ids`."""
        self._reset_idx(env_ids)
        self.sim.begin(env_ids)
        self.scene.write_data_to_sim()
        self.sim.forward()

    def _advance(self, constant_over_decimation: bool) -> None:
        """Take the physics steps of one environment step, and count it.

        Args:
            constant_over_decimation: Whether targets are set once, and physics runs through in one call.
        """
        count = self.cfg.decimation if constant_over_decimation else 1
        for _ in range(self.cfg.decimation // count):
            self._set_targets()
            self.scene.write_data_to_sim()
            self.sim.step(count)
            self.scene.update(self.physics_dt)
        self._counts += 1
        self.common_step_counter += 1

    def _take_faults(self) -> torch.Tensor | None:
        """[N] whether an environment diverged in this step; None if none did."""
        if not self.sim.any_fault:
            self.extras["faults"] = self._none
            return None
        faults = torch.from_numpy(self.sim.faults.copy())
        self.sim.clear_faults()
        self.extras["faults"] = faults
        return faults

    def _end_step(self, faults: torch.Tensor | None) -> StepReturn:
        """Finish the episodes in `reset_buf`, and make the step's last changes and observation."""
        self._finish_episodes(faults)
        self._after_resets()
        self.event_manager.apply("interval", dt=self.step_dt)
        self.obs_buf = self._observe()
        self.extras.setdefault("final_obs", self.obs_buf)
        return self.obs_buf, self.reward_buf, self.reset_terminated, self.reset_time_outs, self.extras

    def _after_resets(self) -> None:
        """Update what follows resets, before interval events."""

    def _finish_episodes(self, faults: torch.Tensor | None) -> None:
        """Publish the final observations, and reset the environments in `reset_buf`."""
        if not self.is_finite_horizon:
            self.extras["time_outs"] = self.reset_time_outs
        self.extras.pop("final_obs", None)
        ended = np.flatnonzero(numbers(self.reset_buf))
        if not len(ended):
            return
        final = self._observe_final()
        if faults is not None:
            final = _where(faults, self.obs_buf, final)
        self.extras["final_obs"] = final
        self._begin(torch.from_numpy(ended))
        if faults is not None:
            self.extras["log"]["infrastructure_faults"] = int(faults.sum())

    @property
    def is_finite_horizon(self) -> bool:
        return self.cfg.is_finite_horizon

    def _set_spaces(self, observation: gymnasium.spaces.Dict, action: gymnasium.Space[Any]) -> None:
        self.single_observation_space, self.single_action_space = observation, action
        self.observation_space = batch_space(observation, self.num_envs)
        self.action_space = batch_space(action, self.num_envs)


def box(shape: tuple[int, ...], low: float = -np.inf, high: float = np.inf) -> gymnasium.spaces.Box:
    """A float32 box."""
    return gymnasium.spaces.Box(low, high, shape, np.float32)


def _where(mask: torch.Tensor, a: Any, b: Any) -> Any:
    """`a` in the rows of `mask`, `b` elsewhere, through nested dictionaries."""
    if isinstance(b, dict):
        return {name: _where(mask, a[name], b[name]) for name in b}
    return torch.where(mask.view(-1, *[1] * (b.ndim - 1)), a, b)
