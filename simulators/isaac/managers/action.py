"""Actions: split among terms, processed once per step, applied before every physics step."""

import math
from typing import Any, ClassVar

import torch

from simulators.isaac.cfg import ActionTermCfg
from simulators.isaac.env_base import EnvBase
from simulators.isaac.errors import SpecMismatch
from simulators.isaac.kernels import total
from simulators.isaac.managers.base import ManagerBase, ManagerTermBase
from simulators.isaac.simulation import EnvIds, as_action, numbers, rows


class ActionTerm(ManagerTermBase):
    """A part of the action that drives an asset.

    Attributes:
        constant_over_decimation: Whether `apply_actions` would set the same targets in every physics step of an
            environment step. If that holds for all terms, they are applied once and physics runs through in one call.
    """

    constant_over_decimation: ClassVar[bool] = False

    def __init__(self, cfg: ActionTermCfg, env: EnvBase) -> None:
        super().__init__(cfg, env)
        self._asset = env.scene[cfg.asset_name]

    @property
    def action_dim(self) -> int:
        """D of this term."""
        raise NotImplementedError

    @property
    def raw_actions(self) -> torch.Tensor:
        """[N, D] as given."""
        raise NotImplementedError

    @property
    def processed_actions(self) -> torch.Tensor:
        """[N, ...] as applied."""
        raise NotImplementedError

    def process_actions(self, actions: torch.Tensor) -> None:
        """Take the step's raw actions [N, D]."""
        raise NotImplementedError

    def apply_actions(self) -> None:
        """Set the asset's targets, before each physics step."""
        raise NotImplementedError


class ActionManager(ManagerBase):
    """All action terms, in order.

    Attributes:
        action, prev_action: [N, D] raw actions of this step and of the one before; zero at an episode's start.
        constant_over_decimation: Whether that holds for every term.
    """

    kind = "action"

    def __init__(self, cfg: Any, env: EnvBase) -> None:
        super().__init__(cfg, env)
        self._by_name: dict[str, ActionTerm] = {}
        for name, term in self._terms(cfg, ActionTermCfg):
            self._by_name[name] = self._made(name, term, ActionTerm)
        self._stateful = list(self._by_name.values())
        self.action = torch.zeros(self.num_envs, self.total_action_dim)
        self.prev_action = torch.zeros_like(self.action)
        self.constant_over_decimation = all(term.constant_over_decimation for term in self._by_name.values())
        edges = [0]
        for width in self.action_term_dim:
            edges.append(edges[-1] + width)
        self._slices = [slice(*edges[i : i + 2]) for i in range(len(self._by_name))]
        self._parts = [
            (term, self.action[:, part]) for term, part in zip(self._by_name.values(), self._slices, strict=True)
        ]
        self._action, self._prev_action = self.action.numpy(), self.prev_action.numpy()

    @property
    def total_action_dim(self) -> int:
        return sum(self.action_term_dim)

    @property
    def action_term_dim(self) -> list[int]:
        return [term.action_dim for term in self._by_name.values()]

    @property
    def active_terms(self) -> list[str]:
        return list(self._by_name)

    def get_term(self, name: str) -> ActionTerm:
        """Raises `ConfigError` if there is none of this name."""
        return self._named(self._by_name, name)

    def process_action(self, action: torch.Tensor) -> None:
        """Take the step's action [N, D].

        Raises:
            SpecMismatch: Its shape is another, or a number is not finite.
        """
        if not isinstance(action, torch.Tensor) or action.dtype is not torch.float32:
            action = as_action(action, "action_manager")
        if tuple(action.shape) != tuple(self.action.shape):
            parts = ", ".join(f"{name} {term.action_dim}" for name, term in self._by_name.items())
            what = f"an action of shape {tuple(action.shape)}"
            raise SpecMismatch(what, f"actions: {parts}", f"give {tuple(self.action.shape)}")
        given = numbers(action)
        if not math.isfinite(total(given)):
            self._refuse(action)
        self._prev_action[:] = self._action
        self._action[:] = given
        for term, part in self._parts:
            term.process_actions(part)

    def apply_action(self) -> None:
        """Let every term set its targets."""
        for term in self._by_name.values():
            term.apply_actions()

    def reset(self, env_ids: EnvIds = None) -> dict[str, Any]:
        which = rows(env_ids)
        self._action[which] = 0.0
        self._prev_action[which] = 0.0
        return super().reset(env_ids)

    def _refuse(self, action: torch.Tensor) -> None:
        """Name the first number that is not finite; a sum may also overflow."""
        wrong = (~torch.isfinite(action)).nonzero()
        if not len(wrong):
            return
        env, column = wrong[0].tolist()
        for part, name in zip(self._slices, self._by_name, strict=True):
            if part.start <= column < part.stop:
                what = f"action {column - part.start} of environment {env} is {action[env, column].item()}"
                raise SpecMismatch(what, f"action {name}", "give finite numbers")
