"""Action terms on joints: affine in the raw action, or one bit."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from simulators.isaac.cfg import ActionTermCfg
from simulators.isaac.checks import check_limits, check_vector
from simulators.isaac.configclass import MISSING, configclass
from simulators.isaac.env import ManagerBasedRLEnv
from simulators.isaac.errors import ConfigError
from simulators.isaac.managers import ActionTerm
from simulators.isaac.names import as_index, resolve_matching_names_values
from simulators.isaac.simulation import EnvIds, numbers, rows


class JointTerm(ActionTerm):
    """Action term on some joints of an articulation.

    Attributes:
        raw_actions: [N, D] of the policy.
        processed_actions: [N, J] in the joints' units, which a subclass sets first.

    Raises:
        ConfigError: No joint has a name.
    """

    _processed: torch.Tensor

    def __init__(self, cfg: Any, env: ManagerBasedRLEnv, preserve_order: bool = False) -> None:
        super().__init__(cfg, env)
        ids, self._joint_names = self._asset.find_joints(cfg.joint_names, preserve_order=preserve_order)
        if not self._joint_names:
            raise ConfigError("no joint is named", "joint_names", "name at least one")
        self._joint_ids: list[int] | slice = as_index(ids)
        self._raw = torch.zeros(self.num_envs, self.action_dim, device=self.device)

    @property
    def action_dim(self) -> int:
        return len(self._joint_names)

    @property
    def raw_actions(self) -> torch.Tensor:
        return self._raw

    @property
    def processed_actions(self) -> torch.Tensor:
        return self._processed

    def reset(self, env_ids: EnvIds = None) -> None:
        self._raw.numpy()[rows(env_ids)] = 0.0

    def _by_joint(
        self, given: Any, where: str, fix: str, check: Callable[[Any, str], Any]
    ) -> tuple[list[int], torch.Tensor]:
        """Indices of the joints that the expressions of `given` match, and the float32 values for them, checked."""
        if not isinstance(given, dict):
            raise ConfigError(f"{given!r} is no dictionary", where, fix)
        ids, _, found = resolve_matching_names_values(given, self._joint_names, where=where)
        check(found, where)
        return ids, torch.tensor(found, dtype=torch.float32, device=self.device)


class JointAction(JointTerm):
    """offset + scale * raw action, then clipped, for some joints of an articulation.

    Raises:
        ConfigError: No joint has a name, or scale, offset or clip are given for joints that the term does not have.
    """

    cfg: "JointActionCfg"

    def __init__(self, cfg: "JointActionCfg", env: ManagerBasedRLEnv) -> None:
        super().__init__(cfg, env, cfg.preserve_order)
        self._scale = self._numbers(cfg.scale, 1.0, "scale")
        offset = self._numbers(cfg.offset, 0.0, "offset")
        self._limits = self._clip_limits(cfg.clip)
        self._processed = offset.expand(self.num_envs, -1).clone()
        default = self._default_offset()
        self._offset = offset if default is None else default

    def _default_offset(self) -> torch.Tensor | None:
        """Offset that the configuration chooses in place of `offset`; None for `offset` itself."""
        return None

    def process_actions(self, actions: torch.Tensor) -> None:
        raw, processed = self._raw.numpy(), self._processed.numpy()
        raw[:] = numbers(actions)
        np.multiply(raw, self._scale.numpy(), out=processed)
        processed += self._offset.numpy()
        if self._limits is not None:
            np.clip(processed, *self._limits.numpy(), out=processed)

    def _numbers(self, given: float | dict[str, float], default: float, where: str) -> torch.Tensor:
        """[1, D] of one number, or of one per joint by regular expression."""
        by_name = given if isinstance(given, dict) else {".*": given}
        values = torch.full((1, self.action_dim), default, device=self.device)
        ids, found = self._by_joint(by_name, where, "", _check_numbers)
        values[:, ids] = found
        return values

    def _clip_limits(self, clip: dict[str, tuple[float, float]] | None) -> torch.Tensor | None:
        """[2, D] lower and upper limits of the processed action."""
        if clip is None:
            return None
        limits = torch.tensor([[-torch.inf], [torch.inf]], device=self.device).repeat(1, self.action_dim)
        ids, found = self._by_joint(clip, "clip", "give limits by joint name", _check_pairs)
        limits[:, ids] = found.T
        return limits


class JointPositionAction(JointAction):
    """Position targets."""

    constant_over_decimation = True
    cfg: "JointPositionActionCfg"

    def _default_offset(self) -> torch.Tensor | None:
        defaults = self._asset.data.default_joint_pos
        return defaults[:, self._joint_ids].clone() if self.cfg.use_default_offset else None

    def apply_actions(self) -> None:
        self._asset.set_joint_position_target(self._processed, joint_ids=self._joint_ids)


class RelativeJointPositionAction(JointAction):
    """Position targets relative to the present joint positions, at every physics step."""

    cfg: "RelativeJointPositionActionCfg"

    def _default_offset(self) -> torch.Tensor | None:
        return torch.zeros(1, self.action_dim) if self.cfg.use_zero_offset else None

    def apply_actions(self) -> None:
        target = self._processed + self._asset.data.joint_pos[:, self._joint_ids]
        self._asset.set_joint_position_target(target, joint_ids=self._joint_ids)


class JointVelocityAction(JointAction):
    """Velocity targets."""

    constant_over_decimation = True
    cfg: "JointVelocityActionCfg"

    def _default_offset(self) -> torch.Tensor | None:
        defaults = self._asset.data.default_joint_vel
        return defaults[:, self._joint_ids].clone() if self.cfg.use_default_offset else None

    def apply_actions(self) -> None:
        self._asset.set_joint_velocity_target(self._processed, joint_ids=self._joint_ids)


class JointEffortAction(JointAction):
    """Torques (N m) or forces (N)."""

    constant_over_decimation = True

    def apply_actions(self) -> None:
        self._asset.set_joint_effort_target(self._processed, joint_ids=self._joint_ids)


class BinaryJointPositionAction(JointTerm):
    """One number per environment: below 0 (or False) closes, anything else opens.

    Raises:
        ConfigError: No joint has a name, or the open or close command leaves a joint out.
    """

    constant_over_decimation = True
    cfg: "BinaryJointPositionActionCfg"
    action_dim = 1

    def __init__(self, cfg: "BinaryJointPositionActionCfg", env: ManagerBasedRLEnv) -> None:
        super().__init__(cfg, env)
        self._open = self._command(cfg.open_command_expr, "open_command_expr")
        self._close = self._command(cfg.close_command_expr, "close_command_expr")
        self._processed = self._open.repeat(self.num_envs, 1)

    def process_actions(self, actions: torch.Tensor) -> None:
        given = numbers(actions)
        self._raw.numpy()[:] = given
        closes = ~given if given.dtype == bool else given < 0
        self._processed.numpy()[:] = np.where(closes, self._close.numpy(), self._open.numpy())

    def apply_actions(self) -> None:
        self._asset.set_joint_position_target(self._processed, joint_ids=self._joint_ids)

    def _command(self, given: dict[str, float], where: str) -> torch.Tensor:
        ids, found = self._by_joint(given, where, "give positions by joint name", _check_numbers)
        if left := [name for i, name in enumerate(self._joint_names) if i not in ids]:
            raise ConfigError(f"no command for {', '.join(left)}", where, "give every joint of the term one")
        values = torch.zeros(len(ids), device=self.device)
        values[ids] = found
        return values


def _check_numbers(values: list[Any], where: str) -> None:
    check_vector(values, len(values), where)


def _check_pairs(values: list[Any], where: str) -> None:
    for pair in values:
        check_limits(pair, where)


@configclass
class JointActionCfg(ActionTermCfg):
    """Joints by names or regular expressions; `scale` and `offset` as numbers or by joint."""

    joint_names: list[str] = MISSING
    scale: float | dict[str, float] = 1.0
    offset: float | dict[str, float] = 0.0
    preserve_order: bool = False


@configclass
class JointPositionActionCfg(JointActionCfg):
    """Position targets; by default around the default positions, in place of `offset`."""

    class_type: type[ActionTerm] = JointPositionAction
    use_default_offset: bool = True


@configclass
class RelativeJointPositionActionCfg(JointActionCfg):
    """Position targets around the present positions; by default without `offset`."""

    class_type: type[ActionTerm] = RelativeJointPositionAction
    use_zero_offset: bool = True


@configclass
class JointVelocityActionCfg(JointActionCfg):
    """Velocity targets; by default around the default velocities, in place of `offset`."""

    class_type: type[ActionTerm] = JointVelocityAction
    use_default_offset: bool = True


@configclass
class JointEffortActionCfg(JointActionCfg):
    """Torques or forces."""

    class_type: type[ActionTerm] = JointEffortAction


@configclass
class BinaryJointPositionActionCfg(ActionTermCfg):
    """Position targets of an open or a closed gripper, by regular expressions of joint names."""

    class_type: type[ActionTerm] = BinaryJointPositionAction
    joint_names: list[str] = MISSING
    open_command_expr: dict[str, float] = MISSING
    close_command_expr: dict[str, float] = MISSING
