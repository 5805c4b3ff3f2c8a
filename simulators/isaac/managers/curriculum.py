"""Curricula: terms that change the task in the course of training."""

from typing import Any

import torch

from simulators.isaac.cfg import CurriculumTermCfg
from simulators.isaac.env_base import EnvBase
from simulators.isaac.managers.base import ManagerBase
from simulators.isaac.simulation import EnvIds


class CurriculumManager(ManagerBase):
    """All curriculum terms."""

    kind = "curriculum"

    def __init__(self, cfg: Any, env: EnvBase) -> None:
        super().__init__(cfg, env)
        self._cfgs: dict[str, CurriculumTermCfg] = {}
        self._state: dict[str, Any] = {}
        for name, term in self._terms(cfg, CurriculumTermCfg):
            self._resolve(name, term, given=2)
            self._cfgs[name] = term

    @property
    def active_terms(self) -> list[str]:
        return list(self._cfgs)

    def compute(self, env_ids: EnvIds = None) -> None:
        """Call every term, before `env_ids` are reset."""
        which = slice(None) if env_ids is None else env_ids
        for name, term in self._cfgs.items():
            self._state[name] = term.func(self._env, which, **term.params)

    def reset(self, env_ids: EnvIds = None) -> dict[str, Any]:
        """Returns `Curriculum/<term>`, and `Curriculum/<term>/<key>` of terms that returned a dictionary."""
        logged: dict[str, Any] = {}
        for name, state in self._state.items():
            for key, value in state.items() if isinstance(state, dict) else [("", state)]:
                if value is not None:
                    number = value.item() if isinstance(value, torch.Tensor) else value
                    logged[f"Curriculum/{name}/{key}" if key else f"Curriculum/{name}"] = number
        super().reset(env_ids)
        return logged
