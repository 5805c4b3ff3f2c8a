"""Observations: groups of terms, each with modifiers, noise, clip, scale and history, in this order."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from simulators.isaac.cfg import ObservationGroupCfg, ObservationTermCfg
from simulators.isaac.checks import check_limits, check_whole
from simulators.isaac.configclass import items
from simulators.isaac.env_base import EnvBase
from simulators.isaac.errors import ConfigError, SpecMismatch, nearest
from simulators.isaac.managers.base import ManagerBase, ManagerTermBase, check_params
from simulators.isaac.noise import NoiseCfg, apply_noise
from simulators.isaac.simulation import EnvIds, numbers, rows

Observations = dict[str, torch.Tensor | dict[str, torch.Tensor]]
Apply = Callable[[torch.Tensor], torch.Tensor]


@dataclass
class Term:
    """Resolved term: its steps after the function, and its history.

    Attributes:
        history: [N, H, ...] of the last H values, if it keeps any.
        started: [N] whether an environment's history has values of this episode.
    """

    cfg: ObservationTermCfg
    steps: list[Apply]
    shape: tuple[int, ...] = ()
    history: torch.Tensor | None = None
    started: torch.Tensor | None = None


class ObservationManager(ManagerBase):
    """All observation groups.

    Attributes:
        group_obs_dim: Group to the shape of its tensor, or to the shapes of its terms.
        group_obs_term_dim: Group to the shapes of its terms.
        group_obs_concatenate: Group to whether it is one tensor.
    """

    kind = "observation"

    def __init__(self, cfg: Any, env: EnvBase) -> None:
        super().__init__(cfg, env)
        self._groups: dict[str, tuple[ObservationGroupCfg, dict[str, Term]]] = {}
        # Columns of each term in the groups that concatenate rows: most of them.
        self._columns: dict[str, list[slice]] = {}
        self.group_obs_dim: dict[str, Any] = {}
        self.group_obs_term_dim: dict[str, list[tuple[int, ...]]] = {}
        self.group_obs_concatenate: dict[str, bool] = {}
        for name, group in self._terms(cfg, ObservationGroupCfg):
            self._groups[name] = group, self._prepare(name, group)
            self.group_obs_concatenate[name] = group.concatenate_terms
            shapes = self.group_obs_term_dim[name] = [term.shape for term in self._groups[name][1].values()]
            self.group_obs_dim[name] = self._joined(name, group, shapes) if group.concatenate_terms else shapes
            if group.concatenate_terms and all(len(shape) == 1 for shape in shapes):
                ends = np.cumsum([0, *(width for (width,) in shapes)]).tolist()
                self._columns[name] = [slice(*pair) for pair in pairwise(ends)]

    @property
    def active_terms(self) -> dict[str, list[str]]:
        """Group to names."""
        return {name: list(terms) for name, (_, terms) in self._groups.items()}

    def get_term_cfg(self, group_name: str, term_name: str) -> ObservationTermCfg:
        """Raises `ConfigError` if there is none of this name."""
        if group_name not in self._groups:
            raise ConfigError(
                f"no group is called {group_name!r}", "observation_manager", nearest(group_name, self._groups)
            )
        terms = self._groups[group_name][1]
        if term_name not in terms:
            raise ConfigError(f"no term is called {term_name!r}", f"group {group_name}", nearest(term_name, terms))
        return terms[term_name].cfg

    def compute(self, update_history: bool = False) -> Observations:
        """Every group: a tensor [N, ...], or its terms by name. `update_history` makes this a step of the histories."""
        return {name: self.compute_group(name, update_history) for name in self._groups}

    def compute_group(self, group_name: str, update_history: bool = False) -> torch.Tensor | dict[str, torch.Tensor]:
        """One group, as new tensors that the caller may keep."""
        group, terms = self._groups[group_name]
        if group_name in self._columns:
            return self._side_by_side(group_name, update_history)
        values = []
        for term in terms.values():
            values.append(self._value(term, update_history))
        if not group.concatenate_terms:
            return {name: value.clone() for name, value in zip(terms, values, strict=True)}
        return torch.cat(values, dim=group.concatenate_dim + 1 if group.concatenate_dim >= 0 else group.concatenate_dim)

    def reset(self, env_ids: EnvIds = None) -> dict[str, Any]:
        for _, terms in self._groups.values():
            for term in terms.values():
                if term.started is not None:
                    term.started[rows(env_ids)] = False
        return super().reset(env_ids)

    def _value(self, term: Term, update_history: bool) -> torch.Tensor:
        value = term.cfg.func(self._env, **term.cfg.params)
        for apply in term.steps:
            value = apply(value)
        return value if term.history is None else self._remember(term, value, update_history)

    def _side_by_side(self, group_name: str, update_history: bool) -> torch.Tensor:
        """A group of rows, each term in its columns."""
        joined = np.empty((self.num_envs, *self.group_obs_dim[group_name]), np.float32)
        for term, columns in zip(self._groups[group_name][1].values(), self._columns[group_name], strict=True):
            joined[:, columns] = numbers(self._value(term, update_history))
        return torch.from_numpy(joined)

    def _remember(self, term: Term, value: torch.Tensor, update: bool) -> torch.Tensor:
        """Append `value` to the history, and fill the history of new episodes with it; returns the history."""
        assert term.history is not None and term.started is not None
        history = torch.cat([term.history[:, 1:], value[:, None]], dim=1)
        if not term.started.all():
            begins = ~term.started
            history[begins] = value[begins, None].expand_as(history[begins])
        if update:
            term.history.copy_(history)
            term.started[:] = True
        return history.flatten(1) if term.cfg.flatten_history_dim else history

    def _prepare(self, group_name: str, group: ObservationGroupCfg) -> dict[str, Term]:
        known = ObservationGroupCfg.__dataclass_fields__
        members = {name: cfg for name, cfg in items(group) if name not in known}
        terms: dict[str, Term] = {}
        for name, cfg in self._terms(members, ObservationTermCfg):
            self._resolve(f"{name} of group {group_name}", cfg)
            if group.history_length is not None:
                cfg.history_length, cfg.flatten_history_dim = group.history_length, group.flatten_history_dim
            terms[name] = self._shaped(f"observation {name} of group {group_name}", cfg, group)
        return terms

    def _shaped(self, where: str, cfg: ObservationTermCfg, group: ObservationGroupCfg) -> Term:
        """Call the term once for its shape; [N] numbers become a column of a concatenated group.

        Raises:
            SpecMismatch: The result is not [N, ...].
        """
        check_whole(cfg.history_length, 0, 10_000, "history_length", where)
        value = cfg.func(self._env, **cfg.params)
        if isinstance(cfg.func, ManagerTermBase):
            cfg.func.reset(env_ids=None)
        if not isinstance(value, torch.Tensor) or value.ndim < 1 or len(value) != self.num_envs:
            shape = tuple(value.shape) if isinstance(value, torch.Tensor) else type(value).__name__
            raise SpecMismatch(f"it returns {shape}", where, f"return a tensor [{self.num_envs}, ...]")
        term = Term(cfg, self._steps(where, cfg, group.enable_corruption, value))
        if group.concatenate_terms and value.ndim == 1:
            term.steps.append(lambda data: data.unsqueeze(-1))
        for apply in term.steps:
            value = apply(value)
        term.shape = tuple(value.shape[1:])
        if cfg.history_length > 0:
            term.history = torch.zeros(self.num_envs, cfg.history_length, *term.shape)
            term.started = torch.zeros(self.num_envs, dtype=torch.bool)
            shape = (cfg.history_length, *term.shape)
            term.shape = (term.history[0].numel(),) if cfg.flatten_history_dim else shape
        return term

    def _steps(self, where: str, cfg: ObservationTermCfg, corrupt: bool, value: torch.Tensor) -> list[Apply]:
        """Steps after the function: modifiers, noise, clip, scale. Each returns a new tensor."""
        steps: list[Apply] = []
        if value.dtype != torch.float32:
            steps.append(lambda data: data.to(torch.float32))
        for modifier in cfg.modifiers or []:
            check_params(modifier.func, modifier.params, 1, f"modifier of {where}")
            steps.append(lambda data, m=modifier: m.func(data, **m.params))  # type: ignore[misc]
        if cfg.noise is not None and not isinstance(cfg.noise, NoiseCfg):
            raise ConfigError(f"noise is {cfg.noise!r}", where, "give a NoiseCfg")
        if corrupt and cfg.noise is not None:
            noise, env = cfg.noise, self._env
            steps.append(lambda data: apply_noise(noise, data, env.generator))
        if cfg.clip is not None:
            low, high = check_limits(cfg.clip, f"clip of {where}")
            steps.append(lambda data: data.clamp(low, high))
        if cfg.scale is not None:
            try:
                scale = torch.as_tensor(cfg.scale, dtype=torch.float32)
            except (TypeError, ValueError, RuntimeError):
                what = f"scale is {cfg.scale!r}"
                raise ConfigError(what, where, "give one number, or one per element") from None
            try:
                torch.broadcast_to(scale, value.shape)
            except RuntimeError:
                what = f"a scale of {tuple(scale.shape)} for values of {tuple(value.shape[1:])}"
                raise ConfigError(what, where, "give one number, or one per element") from None
            steps.append(lambda data: data * scale)
        return steps

    def _joined(self, name: str, group: ObservationGroupCfg, shapes: list[tuple[int, ...]]) -> tuple[int, ...]:
        """Shape of a concatenated group, without the axis of environments."""
        dim = group.concatenate_dim + 1 if group.concatenate_dim >= 0 else group.concatenate_dim
        try:
            return tuple(torch.cat([torch.zeros(1, *shape) for shape in shapes], dim=dim).shape[1:])
        except (RuntimeError, IndexError):
            what = f"terms of shapes {shapes} do not concatenate"
            raise ConfigError(what, f"observation group {name}", "set concatenate_terms to False") from None
