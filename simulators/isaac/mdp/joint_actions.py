"""Action terms on joints: affine in the raw action, or one bit."""

import numpy as np
import torch

from embodied.errors import ConfigError
from simulators.isaac.cfg import ActionTermCfg
from simulators.isaac.checks import check_limits, check_vector
from simulators.isaac.configclass import MISSING, configclass
from simulators.isaac.env import ManagerBasedRLEnv
from simulators.isaac.managers import ActionTerm
from simulators.isaac.names import as_index, resolve_matching_names_values
from simulators.isaac.simulation import EnvIds, numbers, rows


def _require_joints(names: list[str]) -> None:
    if not names:
        raise ConfigError("no joint is named", "joint_names", "name at least one")


class JointAction(ActionTerm):
    """offset + scale * raw action, then clipped, for some joints of an articulation.

    Attributes:
        raw_actions: [N, D] of the policy.
        processed_actions: [N, D] in the joints' units.

    Raises:
        ConfigError: No joint has a name, or scale, offset or clip are given for joints that the term does not have.
    """

    cfg: "JointActionCfg"

    def __init__(self, cfg: "JointActionCfg", env: ManagerBasedRLEnv) -> None:
        super().__init__(cfg, env)
        ids, self._joint_names = self._asset.find_joints(cfg.joint_names, preserve_order=cfg.preserve_order)
        _require_joints(self._joint_names)
        self._joint_ids: list[int] | slice = as_index(ids)
        self._raw = torch.zeros(self.num_envs, self.action_dim, device=self.device)
        self._scale = self._numbers(cfg.scale, 1.0, "scale")
        self._offset = self._numbers(cfg.offset, 0.0, "offset")
        self._limits = self._clip_limits(cfg.clip)
        self._processed = self._offset.expand(self.num_envs, -1).clone()

    @property
    def action_dim(self) -> int:
        return len(self._joint_names)

    @property
    def raw_actions(self) -> torch.Tensor:
        return self._raw

    @property
    def processed_actions(self) -> torch.Tensor:
        return self._processed

    def process_actions(self, actions: torch.Tensor) -> None:
        raw, processed = self._raw.numpy(), self._processed.numpy()
        raw[:] = numbers(actions)
        np.multiply(raw, self._scale.numpy(), out=processed)
        processed += self._offset.numpy()
        if self._limits is not None:
            np.clip(processed, *self._limits.numpy(), out=processed)

    def reset(self, env_ids: EnvIds = None) -> None:
        self._raw.numpy()[rows(env_ids)] = 0.0

    def _numbers(self, given: float | dict[str, float], default: float, where: str) -> torch.Tensor:
        """[1, D] of one number, or of one per joint by regular expression."""
        if not isinstance(given, dict):
            given = {".*": given}
        values = torch.full((1, self.action_dim), default, device=self.device)
        ids, _, found = resolve_matching_names_values(given, self._joint_names, where=where)
        check_vector(found, len(found), where)
        values[:, ids] = torch.tensor(found, dtype=torch.float32, device=self.device)
        return values

    def _clip_limits(self, clip: dict[str, tuple[float, float]] | None) -> torch.Tensor | None:
        """[2, D] lower and upper limits of the processed action."""
        if clip is None:
            return None
        limits = torch.tensor([[-torch.inf], [torch.inf]], device=self.device).repeat(1, self.action_dim)
        if not isinstance(clip, dict):
            raise ConfigError(f"{clip!r} is no dictionary", "clip", "give limits by joint name")
        ids, _, found = resolve_matching_names_values(clip, self._joint_names, where="clip")
        for pair in found:
            check_limits(pair, "clip")
        limits[:, ids] = torch.tensor(found, dtype=torch.float32, device=self.device).T
        return limits


class JointPositionAction(JointAction):
    """Position targets."""

    constant_over_decimation = True
    cfg: "JointPositionActionCfg"

    def __init__(self, cfg: "JointPositionActionCfg", env: ManagerBasedRLEnv) -> None:
        super().__init__(cfg, env)
        if cfg.use_default_offset:
            self._offset = self._asset.data.default_joint_pos[:, self._joint_ids].clone()

    def apply_actions(self) -> None:
        self._asset.set_joint_position_target(self._processed, joint_ids=self._joint_ids)


class RelativeJointPositionAction(JointAction):
    """Position targets relative to the present joint positions, at every physics step."""

    cfg: "RelativeJointPositionActionCfg"

    def __init__(self, cfg: "RelativeJointPositionActionCfg", env: ManagerBasedRLEnv) -> None:
        super().__init__(cfg, env)
        if cfg.use_zero_offset:
            self._offset = torch.zeros_like(self._offset)

    def apply_actions(self) -> None:
        target = self._processed + self._asset.data.joint_pos[:, self._joint_ids]
        self._asset.set_joint_position_target(target, joint_ids=self._joint_ids)


class JointVelocityAction(JointAction):
    """Velocity targets."""

    constant_over_decimation = True
    cfg: "JointVelocityActionCfg"

    def __init__(self, cfg: "JointVelocityActionCfg", env: ManagerBasedRLEnv) -> None:
        super().__init__(cfg, env)
        if cfg.use_default_offset:
            self._offset = self._asset.data.default_joint_vel[:, self._joint_ids].clone()

    def apply_actions(self) -> None:
        self._asset.set_joint_velocity_target(self._processed, joint_ids=self._joint_ids)


class JointEffortAction(JointAction):
    """Torques (N m) or forces (N)."""

    constant_over_decimation = True

    def apply_actions(self) -> None:
        self._asset.set_joint_effort_target(self._processed, joint_ids=self._joint_ids)


class BinaryJointPositionAction(ActionTerm):
    """One number per environment: below 0 (or False) closes, anything else opens.

    Raises:
        ConfigError: No joint has a name, or the open or close command leaves a joint out.
    """

    constant_over_decimation = True
    cfg: "BinaryJointPositionActionCfg"

    def __init__(self, cfg: "BinaryJointPositionActionCfg", env: ManagerBasedRLEnv) -> None:
        super().__init__(cfg, env)
        ids, self._joint_names = self._asset.find_joints(cfg.joint_names)
        _require_joints(self._joint_names)
        self._joint_ids: list[int] | slice = as_index(ids)
        self._raw = torch.zeros(self.num_envs, 1, device=self.device)
        self._open = self._command(cfg.open_command_expr, "open_command_expr")
        self._close = self._command(cfg.close_command_expr, "close_command_expr")
        self._processed = self._open.repeat(self.num_envs, 1)

    @property
    def action_dim(self) -> int:
        return 1

    @property
    def raw_actions(self) -> torch.Tensor:
        return self._raw

    @property
    def processed_actions(self) -> torch.Tensor:
        return self._processed

    def process_actions(self, actions: torch.Tensor) -> None:
        given = numbers(actions)
        self._raw.numpy()[:] = given
        closes = ~given if given.dtype == bool else given < 0
        self._processed.numpy()[:] = np.where(closes, self._close.numpy(), self._open.numpy())

    def apply_actions(self) -> None:
        self._asset.set_joint_position_target(self._processed, joint_ids=self._joint_ids)

    def reset(self, env_ids: EnvIds = None) -> None:
        self._raw.numpy()[rows(env_ids)] = 0.0

    def _command(self, given: dict[str, float], where: str) -> torch.Tensor:
        if not isinstance(given, dict):
            raise ConfigError(f"{given!r} is no dictionary", where, "give positions by joint name")
        ids, _, found = resolve_matching_names_values(given, self._joint_names, where=where)
        check_vector(found, len(found), where)
        if len(ids) != len(self._joint_names):
            left = ", ".join(name for i, name in enumerate(self._joint_names) if i not in ids)
            raise ConfigError(f"no command for {left}", where, "give every joint of the term one")
        values = torch.zeros(len(ids), device=self.device)
        values[ids] = torch.tensor(found, dtype=torch.float32, device=self.device)
        return values


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
