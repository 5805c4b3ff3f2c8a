"""Commands: goals that are drawn at a reset and again from time to time."""

from typing import Any, ClassVar

import numpy as np
import torch

from simulators.isaac.cfg import CommandTermCfg
from simulators.isaac.checks import check_range
from simulators.isaac.env_base import EnvBase
from simulators.isaac.managers.base import ManagerBase, ManagerTermBase
from simulators.isaac.simulation import EnvIds, rows

ROUNDING_S = 1e-6
"""Tolerance of summed step times, s: a command of 4 s lasts 120 steps of 1/30 s."""


class CommandTerm(ManagerTermBase):
    """A goal of each environment.

    Attributes:
        metrics: Name to [N]; their means over the environments that are reset are logged, then they are zeroed.
        time_left: [N] s until the command is drawn anew; to be read only.
        command_counter: [N] commands drawn in this episode.
        metrics_from_state: Whether `_update_metrics` depends on the present state and command alone. It is then called
            at the end of episodes and on access to `metrics`, instead of in every step.
    """

    metrics_from_state: ClassVar[bool] = False

    def __init__(self, cfg: CommandTermCfg, env: EnvBase) -> None:
        super().__init__(cfg, env)
        self._metrics: dict[str, torch.Tensor] = {}
        # Stamp of the state of lazy metrics; None until the command manager has the finished term.
        self._measured: int | None = None
        # Times of the next draws, s on the term's clock, and the earliest: until then a step compares one number.
        self._clock, self._earliest = 0.0, 0.0
        self._due = torch.zeros(self.num_envs, dtype=torch.float64)
        self.command_counter = torch.zeros(self.num_envs, dtype=torch.long)

    @property
    def metrics(self) -> dict[str, torch.Tensor]:
        if self._measured is not None:
            sim = self._env.sim
            sim.forward()
            if self._measured != sim.stamp:
                self._measured = sim.stamp
                with self._env._at_work():
                    self._update_metrics()
        return self._metrics

    @property
    def time_left(self) -> torch.Tensor:
        return (self._due - self._clock).float()

    @property
    def command(self) -> torch.Tensor:
        """[N, D]"""
        raise NotImplementedError

    def _update_metrics(self) -> None:
        """Refresh `metrics`, once per step."""
        raise NotImplementedError

    def _resample_command(self, env_ids: Any) -> None:
        """Draw commands for `env_ids`."""
        raise NotImplementedError

    def _update_command(self) -> None:
        """Change the commands with time, once per step."""
        raise NotImplementedError

    def reset(self, env_ids: EnvIds = None) -> dict[str, float]:
        """Draw commands, and return the metrics of the episodes before."""
        which = rows(env_ids)
        logged = {}
        for name, metric in self._metrics.items():
            values = metric.numpy()
            ended = values[which].tolist()
            logged[name] = sum(ended) / max(len(ended), 1)
            values[which] = 0.0
        self.command_counter.numpy()[which] = 0
        self._resample(torch.arange(self.num_envs)[which] if isinstance(which, slice) else env_ids)
        return logged

    def compute(self, dt: float) -> None:
        """A step of `dt` s."""
        if not self.metrics_from_state:
            self._update_metrics()
        self._clock += dt
        if self._earliest <= self._clock + ROUNDING_S:
            self._resample(torch.from_numpy(np.flatnonzero(self._due.numpy() <= self._clock + ROUNDING_S)))
        self._update_command()

    def _resample(self, env_ids: Any) -> None:
        if len(env_ids) == 0:
            return
        low, high = self.cfg.resampling_time_range
        drawn = torch.rand(len(env_ids), generator=self._env.generator).numpy()
        due, which = self._due.numpy(), rows(env_ids)
        due[which] = self._clock + (drawn * (high - low) + low)
        self._earliest = float(due.min())
        self._resample_command(env_ids)
        self._env.sim.stamp += 1  # Results of the previous command are stale.
        self.command_counter.numpy()[which] += 1


class CommandManager(ManagerBase):
    """All commands."""

    kind = "command"

    def __init__(self, cfg: Any, env: EnvBase) -> None:
        super().__init__(cfg, env)
        self._by_name: dict[str, CommandTerm] = {}
        for name, term in self._terms(cfg, CommandTermCfg):
            check_range(term.resampling_time_range, f"resampling_time_range of command {name}", 0.0)
            self._by_name[name] = self._made(name, term, CommandTerm)
            if term.class_type.metrics_from_state:
                self._by_name[name]._measured = -1

    @property
    def active_terms(self) -> list[str]:
        return list(self._by_name)

    def get_term(self, name: str) -> CommandTerm:
        """Raises `ConfigError` if there is none of this name."""
        return self._named(self._by_name, name)

    def get_command(self, name: str) -> torch.Tensor:
        """[N, D] the present command; raises as `get_term`."""
        return self.get_term(name).command

    def compute(self, dt: float) -> None:
        """A step of `dt` s."""
        for term in self._by_name.values():
            term.compute(dt)

    def measure(self) -> None:
        """Update the metrics that are a function of the state, before the reset."""
        for term in self._by_name.values():
            if term.metrics_from_state:
                _ = term.metrics

    def reset(self, env_ids: EnvIds = None) -> dict[str, Any]:
        """Draw commands; returns `Metrics/<command>/<metric>`."""
        logged: dict[str, Any] = {}
        for name, term in self._by_name.items():
            for metric, value in term.reset(env_ids=env_ids).items():
                logged[f"Metrics/{name}/{metric}"] = value
        return logged
