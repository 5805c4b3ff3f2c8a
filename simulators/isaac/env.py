"""Manager-based environments."""

from typing import Any

import gymnasium
import numpy as np
import torch

from simulators.isaac.cfg import ManagerBasedRLEnvCfg
from simulators.isaac.env_base import EnvBase, Observations, StepReturn, box
from simulators.isaac.managers import (
    ActionManager,
    CommandManager,
    CurriculumManager,
    EventManager,
    ObservationManager,
    RecorderManager,
    RewardManager,
    TerminationManager,
)


class ManagerBasedRLEnv(EnvBase):
    """N environments made of terms; see `EnvBase`.

    A step processes the action; (applies it, steps the physics) `decimation` times; counts; computes terminations and
    rewards; publishes the final observation; resets ended episodes; updates commands; calls interval events; observes.

    Raises:
        ConfigError: The configuration misses something or names something unknown.
    """

    cfg: ManagerBasedRLEnvCfg

    def __init__(self, cfg: ManagerBasedRLEnvCfg, render_mode: str | None = None, **kwargs: Any) -> None:
        super().__init__(cfg, render_mode, **kwargs)
        with torch.no_grad(), self._at_work():
            self.load_managers()

    def load_managers(self) -> None:
        """Make the managers, in order of dependence, and call the startup events."""
        self.event_manager = EventManager(self.cfg.events, self)
        self.command_manager = CommandManager(self.cfg.commands, self)
        self.recorder_manager = RecorderManager()
        self.action_manager = ActionManager(self.cfg.actions, self)
        self.observation_manager = ObservationManager(self.cfg.observations, self)
        self.termination_manager = TerminationManager(self.cfg.terminations, self)
        self.reward_manager = RewardManager(self.cfg.rewards, self)
        self.curriculum_manager = CurriculumManager(self.cfg.curriculum, self)
        self._make_spaces()
        self.event_manager.apply("prestartup")
        self.event_manager.apply("startup")

    def state_dict(self) -> dict[str, Any]:
        """As `EnvBase.state_dict`, with the weights of rewards, which curricula change."""
        manager = self.reward_manager
        return super().state_dict() | {
            "reward_weights": {name: manager.get_term_cfg(name).weight for name in manager.active_terms}
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """As `EnvBase.load_state_dict`; weights of terms that this task does not have are left out."""
        super().load_state_dict(state)
        for name in self.reward_manager.active_terms:
            term = self.reward_manager.get_term_cfg(name)
            term.weight = state["reward_weights"].get(name, term.weight)
            self.reward_manager.set_term_cfg(name, term)

    def _step(self, action: torch.Tensor) -> StepReturn:
        self.action_manager.process_action(action)
        self._advance(self.action_manager.constant_over_decimation)
        self.reset_buf = self.termination_manager.compute()
        faults = self._take_faults()
        if faults is not None:
            self.reset_buf = self.termination_manager.truncate(faults)
        self.reset_terminated = self.termination_manager.terminated
        self.reset_time_outs = self.termination_manager.time_outs
        self.reward_buf = self.reward_manager.compute(self.step_dt)
        if faults is not None:
            self.reward_manager.discard(faults)
            self.reward_buf[faults] = 0.0
        self.reward_manager.check()
        return self._end_step(faults)

    def _set_targets(self) -> None:
        self.action_manager.apply_action()

    def _after_resets(self) -> None:
        self.command_manager.compute(self.step_dt)

    def _observe(self) -> Observations:
        return self.observation_manager.compute(update_history=True)

    def _observe_final(self) -> Observations:
        return self.observation_manager.compute(update_history=False)

    def _reset_idx(self, env_ids: torch.Tensor) -> None:
        """Reset entities and managers of `env_ids`, and log their episodes."""
        self.command_manager.measure()
        self.curriculum_manager.compute(env_ids)
        self.scene.reset(env_ids)
        self.event_manager.apply("reset", env_ids, global_env_step_count=self.common_step_counter)
        log: dict[str, Any] = {}
        for manager in (
            self.observation_manager,
            self.action_manager,
            self.reward_manager,
            self.curriculum_manager,
            self.command_manager,
            self.event_manager,
            self.termination_manager,
        ):
            log.update(manager.reset(env_ids))
        self.extras["log"] = log
        self._counts[env_ids.numpy()] = 0

    def _make_spaces(self) -> None:
        groups: dict[str, gymnasium.Space[Any]] = {}
        manager = self.observation_manager
        for group, names in manager.active_terms.items():
            if manager.group_obs_concatenate[group]:
                groups[group] = box(manager.group_obs_dim[group])
                continue
            terms: dict[str, gymnasium.Space[Any]] = {}
            for name, shape in zip(names, manager.group_obs_dim[group], strict=True):
                term = manager.get_term_cfg(group, name)
                # A scale comes after the clip.
                limits = term.clip if term.clip is not None and term.scale is None else (-np.inf, np.inf)
                terms[name] = box(shape, *limits)
            groups[group] = gymnasium.spaces.Dict(terms)
        self._set_spaces(gymnasium.spaces.Dict(groups), box((self.action_manager.total_action_dim,)))
