"""Rewards: the sum of terms, each times its weight and the step's duration."""

from typing import TYPE_CHECKING, Any

import torch

from embodied.errors import ConfigError, nearest
from simulators.isaac.cfg import RewardTermCfg
from simulators.isaac.managers.base import ManagerBase
from simulators.isaac.simulation import EnvIds

if TYPE_CHECKING:
    from simulators.isaac.env import ManagerBasedRLEnv


class RewardManager(ManagerBase):
    """All reward terms. A term of weight 0 is not called."""

    kind = "reward"

    def __init__(self, cfg: Any, env: "ManagerBasedRLEnv") -> None:
        super().__init__(cfg, env)
        self._names: list[str] = []
        self._cfgs: list[RewardTermCfg] = []
        for name, term in self._terms(cfg, RewardTermCfg):
            if isinstance(term.weight, bool) or not isinstance(term.weight, (int, float)):
                raise ConfigError(f"weight is {term.weight!r}", f"reward {name}", "give a number")
            self._resolve(name, term)
            self._names.append(name)
            self._cfgs.append(term)
        shape = (len(self._names), self.num_envs)
        self._raw, self._weighted, self._sums = torch.zeros(shape), torch.zeros(shape), torch.zeros(shape)
        self._rows = [self._raw[i] for i in range(len(self._names))]
        self._weights: list[float] = []
        self._factors = torch.zeros(shape[0], 1)
        self._dt = 0.0

    @property
    def active_terms(self) -> list[str]:
        return self._names

    @property
    def _step_reward(self) -> torch.Tensor:
        """[N, T] weighted terms of the last step, per second."""
        return self._weighted.T / self._dt if self._dt else self._weighted.T

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
            self._weights, self._dt = weights, dt
            self._factors[:, 0] = torch.tensor(weights) * dt
            for row, weight in zip(self._rows, weights, strict=True):
                if weight == 0.0:
                    row.zero_()
        for row, term in zip(self._rows, self._cfgs, strict=True):
            if term.weight != 0.0:
                row.copy_(term.func(env, **term.params))
        torch.mul(self._raw, self._factors, out=self._weighted)
        self._sums += self._weighted
        return self._weighted.sum(dim=0)

    def discard(self, env_ids: Any) -> None:
        """Take the last step's rewards of `env_ids` out of the sums: their physics failed."""
        self._sums[:, env_ids] -= self._weighted[:, env_ids]
        self._weighted[:, env_ids] = 0.0

    def reset(self, env_ids: EnvIds = None) -> dict[str, Any]:
        """Returns `Episode_Reward/<term>`: the mean sum over an episode, per second of its longest duration."""
        which = slice(None) if env_ids is None else env_ids
        means = (self._sums[:, which].mean(dim=1) / self._env.max_episode_length_s).tolist()
        self._sums[:, which] = 0.0
        super().reset(env_ids)
        return {f"Episode_Reward/{name}": mean for name, mean in zip(self._names, means, strict=True)}

    def _index(self, name: str) -> int:
        if name not in self._names:
            raise ConfigError(f"no reward is called {name!r}", "reward_manager", nearest(name, self._names))
        return self._names.index(name)
