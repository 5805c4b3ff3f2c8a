"""Events: terms that change states or physics at the start, at resets, or from time to time."""

import difflib
from typing import Any

import torch

from simulators.isaac.cfg import EventTermCfg
from simulators.isaac.checks import check_range
from simulators.isaac.env_base import EnvBase
from simulators.isaac.errors import ConfigError, nearest
from simulators.isaac.managers.base import ManagerBase
from simulators.isaac.simulation import EnvIds

MODES = ("prestartup", "startup", "reset", "interval")


class EventManager(ManagerBase):
    """All events by mode."""

    kind = "event"

    def __init__(self, cfg: Any, env: EnvBase) -> None:
        super().__init__(cfg, env)
        self._cfgs: dict[str, dict[str, EventTermCfg]] = {}
        # Due times of interval events, s on the manager's clock, and the earliest of them: until then a step compares
        # one number.
        self._clock = 0.0
        self._due: dict[str, torch.Tensor] = {}
        self._earliest: dict[str, float] = {}
        self._last: dict[str, torch.Tensor] = {}
        for name, term in self._terms(cfg, EventTermCfg):
            self._check(name, term)
            self._resolve(name, term, given=2)
            self._cfgs.setdefault(term.mode, {})[name] = term
            if term.mode == "interval":
                count = 1 if term.is_global_time else self.num_envs
                self._due[name] = torch.zeros(count, dtype=torch.float64)
                self._draw(name, term, slice(None))
            elif term.mode == "reset" and term.min_step_count_between_reset:
                self._last[name] = torch.full((self.num_envs,), -1, dtype=torch.long)

    @property
    def active_terms(self) -> dict[str, list[str]]:
        """Mode to names."""
        return {mode: list(terms) for mode, terms in self._cfgs.items()}

    @property
    def available_modes(self) -> list[str]:
        return list(self._cfgs)

    def get_term_cfg(self, term_name: str) -> EventTermCfg:
        """Raises `ConfigError` if there is none of this name."""
        return self._mode_of(term_name)[term_name]

    def set_term_cfg(self, term_name: str, cfg: EventTermCfg) -> None:
        """Replace a term by one that is resolved already; raises as `get_term_cfg`."""
        self._mode_of(term_name)[term_name] = cfg

    def apply(
        self,
        mode: str,
        env_ids: EnvIds = None,
        dt: float | None = None,
        global_env_step_count: int | None = None,
    ) -> None:
        """Call the events of `mode`: `interval` those that are due after `dt` more seconds, others for `env_ids`."""
        if mode == "interval":
            self._clock += dt or 0.0
        for name, term in self._cfgs.get(mode, {}).items():
            if mode == "interval":
                self._apply_interval(name, term)
            elif mode == "reset" and name in self._last:
                self._apply_rarely(name, term, env_ids, global_env_step_count or 0)
            else:
                term.func(self._env, env_ids, **term.params)

    def reset(self, env_ids: EnvIds = None) -> dict[str, Any]:
        for name, term in self._cfgs.get("interval", {}).items():
            if not term.is_global_time:
                self._draw(name, term, slice(None) if env_ids is None else env_ids)
        return super().reset(env_ids)

    def _apply_interval(self, name: str, term: EventTermCfg) -> None:
        if self._clock < self._earliest[name] - 1e-6:
            return
        ids = (self._due[name] <= self._clock + 1e-6).nonzero().flatten()
        self._draw(name, term, ids)
        term.func(self._env, None if term.is_global_time else ids, **term.params)

    def _apply_rarely(self, name: str, term: EventTermCfg, env_ids: EnvIds, step: int) -> None:
        last = self._last[name]
        ids = torch.arange(self.num_envs)[env_ids if env_ids is not None else slice(None)]
        ids = ids[(last[ids] < 0) | (step - last[ids] >= term.min_step_count_between_reset)]
        if len(ids):
            last[ids] = step
            term.func(self._env, ids, **term.params)

    def _draw(self, name: str, term: EventTermCfg, which: Any) -> None:
        low, high = term.interval_range_s or (0.0, 0.0)
        due = self._due[name]
        drawn = torch.rand(due[which].shape, generator=self._env.generator, dtype=torch.float64)
        due[which] = self._clock + drawn * (high - low) + low
        self._earliest[name] = float(due.min())

    def _check(self, name: str, term: EventTermCfg) -> None:
        if not isinstance(term.mode, str):
            raise ConfigError("mode is missing", f"event {name}", "choose prestartup, startup, reset or interval")
        if term.mode not in MODES and (near := difflib.get_close_matches(term.mode, MODES, 1, 0.7)):
            # Other modes are the user's own; one that looks like a known mode would never be called.
            raise ConfigError(f"mode {term.mode!r} is unknown", f"event {name}", f"did you mean {near[0]}?")
        if term.mode == "interval" and term.interval_range_s is not None:
            check_range(term.interval_range_s, f"interval_range_s of event {name}", 0.0)
        if term.mode == "interval" and term.interval_range_s is None:
            raise ConfigError("interval_range_s is missing", f"event {name}", "give the shortest and longest time, s")

        for field, mode, unset in (
            ("interval_range_s", "interval", None),
            ("is_global_time", "interval", False),
            ("min_step_count_between_reset", "reset", 0),
        ):
            if term.mode != mode and getattr(term, field) != unset:
                raise ConfigError(f"{field} means nothing in mode {term.mode}", f"event {name}", "leave it out")

    def _mode_of(self, name: str) -> dict[str, EventTermCfg]:
        for terms in self._cfgs.values():
            if name in terms:
                return terms
        known = [term for terms in self._cfgs.values() for term in terms]
        raise ConfigError(f"no event is called {name!r}", "event_manager", nearest(name, known))
