"""Terminations: ends of episodes, by a terminal state or by the time limit."""

import logging
from typing import Any

import numpy as np
import torch

from simulators.isaac.cfg import TerminationTermCfg
from simulators.isaac.env_base import EnvBase
from simulators.isaac.managers.base import ManagerBase
from simulators.isaac.simulation import EnvIds, returned, rows

log = logging.getLogger(__name__)


class TerminationManager(ManagerBase):
    """All termination terms.

    Attributes:
        terminated, time_outs: [N] bool of the last step.
        dones: [N] bool, either of them.
    """

    kind = "termination"

    def __init__(self, cfg: Any, env: EnvBase) -> None:
        super().__init__(cfg, env)
        self._cfgs: dict[str, TerminationTermCfg] = {}
        for name, term in self._terms(cfg, TerminationTermCfg):
            if "time_out" in (name, getattr(term.func, "__name__", "")) and not term.time_out:
                said = "termination %s counts the time limit as a failure, whose later reward is 0: set time_out=True"
                if not env.is_finite_horizon:
                    log.warning(said, name)
            self._resolve(name, term)
            self._cfgs[name] = term
        self._none = torch.zeros(self.num_envs, dtype=torch.bool)
        self._term_dones = dict.fromkeys(self._cfgs, self._none)
        self.terminated = self.time_outs = self.dones = self._none

    @property
    def active_terms(self) -> list[str]:
        return list(self._cfgs)

    def get_term(self, name: str) -> torch.Tensor:
        """[N] bool of the last step; raises `ConfigError` if there is none of this name."""
        self.get_term_cfg(name)
        return self._term_dones[name]

    def get_term_cfg(self, term_name: str) -> TerminationTermCfg:
        """Raises `ConfigError` if there is none of this name."""
        return self._named(self._cfgs, term_name)

    def set_term_cfg(self, term_name: str, cfg: TerminationTermCfg) -> None:
        """Replace a term by one that is resolved already; raises as `get_term_cfg`."""
        self.get_term_cfg(term_name)
        self._cfgs[term_name] = cfg

    def compute(self) -> torch.Tensor:
        """[N] whether an episode ends."""
        terminated, time_outs = np.zeros(self.num_envs, bool), np.zeros(self.num_envs, bool)
        for name, term in self._cfgs.items():
            value = self._term_dones[name] = term.func(self._env, **term.params)
            ended = time_outs if term.time_out else terminated
            ended |= returned(value, self.num_envs, f"termination {name}", truths=True)
        self.terminated, self.time_outs = torch.from_numpy(terminated), torch.from_numpy(time_outs)
        self.dones = torch.from_numpy(terminated | time_outs)
        return self.dones

    def truncate(self, faults: torch.Tensor) -> torch.Tensor:
        """Truncate the episodes `faults` [N] bool in spite of the terms; returns [N], whether an episode ends."""
        self._term_dones = {name: value & ~faults for name, value in self._term_dones.items()}
        self.terminated, self.time_outs = self.terminated & ~faults, self.time_outs | faults
        self.dones = self.terminated | self.time_outs
        return self.dones

    def reset(self, env_ids: EnvIds = None) -> dict[str, Any]:
        """Returns `Episode_Termination/<term>`: count of `env_ids` that ended by it."""
        which = rows(env_ids)
        logged = {
            f"Episode_Termination/{name}": int(np.count_nonzero(done.numpy()[which]))
            for name, done in self._term_dones.items()
        }
        super().reset(env_ids)
        return logged
