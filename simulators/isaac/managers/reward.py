"""Rewards: the sum of terms, each times its weight and the step's duration."""

import math
from typing import Any

import numpy as np
import torch

from simulators.isaac.cfg import RewardTermCfg
from simulators.isaac.checks import is_number
from simulators.isaac.env_base import EnvBase
from simulators.isaac.errors import ConfigError, SpecMismatch, nearest
from simulators.isaac.kernels import total, weigh
from simulators.isaac.managers.base import ManagerBase
from simulators.isaac.simulation import EnvIds, returned, rows


class RewardManager(ManagerBase):
    """All reward terms. A term of weight 0 is not called."""

    kind = "reward"

    def __init__(self, cfg: Any, env: EnvBase) -> None:
        super().__init__(cfg, env)
        self._names: list[str] = []
        self._cfgs: list[RewardTermCfg] = []
        for name, term in self._terms(cfg, RewardTermCfg):
            _check_weight(term.weight, name)
            self._resolve(name, term)
            self._names.append(name)
            self._cfgs.append(term)
        shape = (len(self._names), self.num_envs)
        self._raw, self._weighted, self._sums = (np.zeros(shape, np.float32) for _ in range(3))
        self._weights: list[float] = []
        self._factors = np.zeros((shape[0], 1), np.float32)
        self._logged = [f"Episode_Reward/{name}" for name in self._names]
        self._places = [f"reward {name}" for name in self._names]
        self._dt = 0.0

    @property
    def active_terms(self) -> list[str]:
        return self._names

    @property
    def _step_reward(self) -> torch.Tensor:
        """[N, T] weighted terms of the last step, per second."""
        return torch.from_numpy(self._weighted.T / (self._dt or 1.0))

    def get_term_cfg(self, term_name: str) -> RewardTermCfg:
        """Raises `ConfigError` if there is none of this name."""
        return self._cfgs[self._index(term_name)]

    def set_term_cfg(self, term_name: str, cfg: RewardTermCfg) -> None:
        """Replace a term by one that is resolved already; raises as `get_term_cfg`."""
        self._cfgs[self._index(term_name)] = cfg

    def compute(self, dt: float) -> torch.Tensor:
        """[N] reward of a step of `dt` s."""
        env = self._env
        weights = [term.weight for term in self._cfgs]
        if weights != self._weights or dt != self._dt:
            for weight, name in zip(weights, self._names, strict=True):
                _check_weight(weight, name)
            self._weights, self._dt = weights, dt
            self._factors[:, 0] = np.multiply(weights, dt)
            self._raw[self._factors[:, 0] == 0.0] = 0.0
        for i, term in enumerate(self._cfgs):
            if term.weight != 0.0:
                self._raw[i] = returned(term.func(env, **term.params), self.num_envs, self._places[i])
        return torch.from_numpy(weigh(self._raw, self._factors, self._weighted, self._sums))

    def check(self) -> None:
        """Raise `SpecMismatch` with the term's name if a reward of the last step is not finite."""
        if not math.isfinite(total(self._weighted)):
            first = int(np.flatnonzero(~np.isfinite(self._weighted).all(axis=1))[0])
            raise SpecMismatch("its result times its weight is not finite", self._places[first], "mend the term")

    def discard(self, env_ids: Any) -> None:
        """Take the last step's rewards of `env_ids` out of the sums: their physics failed."""
        which = rows(env_ids)
        lost = self._weighted[:, which]
        kept = np.zeros_like(lost)
        np.subtract(self._sums[:, which], lost, out=kept, where=np.isfinite(lost))
        self._sums[:, which] = kept
        self._weighted[:, which] = 0.0

    def reset(self, env_ids: EnvIds = None) -> dict[str, Any]:
        """Returns `Episode_Reward/<term>`: the mean sum over an episode, per second of its longest duration."""
        which = rows(env_ids)
        ended = self._sums[:, which]
        seconds = max(ended.shape[1], 1) * self._env.max_episode_length_s
        means = [sum(row) / seconds for row in ended.tolist()]
        self._sums[:, which] = 0.0
        super().reset(env_ids)
        return dict(zip(self._logged, means, strict=True))

    def _index(self, name: str) -> int:
        if name not in self._names:
            raise ConfigError(f"no reward is called {name!r}", "reward_manager", nearest(name, self._names))
        return self._names.index(name)


def _check_weight(weight: Any, name: str) -> None:
    if not is_number(weight) or not math.isfinite(weight):
        raise ConfigError(f"weight is {weight!r}", f"reward {name}", "give a finite number")
