"""Command terms: goals of the policy, drawn at resets and again from time to time."""

from collections.abc import Sequence

import numpy as np
import torch

from simulators.isaac.cfg import CommandTermCfg
from simulators.isaac.checks import Range, check_range
from simulators.isaac.configclass import MISSING, configclass
from simulators.isaac.env import ManagerBasedRLEnv
from simulators.isaac.managers import CommandTerm
from simulators.isaac.math import combine_frame_transforms, quat_identity
from simulators.isaac.mdp.frames import angle_to, distance, in_root_frame
from simulators.isaac.mdp.sampling import sample_ranges
from simulators.isaac.rotations import from_euler, reorder
from simulators.isaac.simulation import rows

POSE_AXES = ("pos_x", "pos_y", "pos_z", "roll", "pitch", "yaw")


class UniformPoseCommand(CommandTerm):
    """A pose of a body in the robot's root frame: position (m) and Euler angles (rad) uniform in their ranges.

    Attributes:
        command: [N, 7] position, then quaternion in the configured order.
        pose_command_w: [N, 7] the same in the world frame.
        metrics: `position_error` (m) and `orientation_error` (rad) of the body, [N] each.
    """

    cfg: "UniformPoseCommandCfg"
    metrics_from_state = True

    def __init__(self, cfg: "UniformPoseCommandCfg", env: ManagerBasedRLEnv) -> None:
        super().__init__(cfg, env)
        for axis in POSE_AXES:
            check_range(getattr(cfg.ranges, axis), f"ranges.{axis}")
        self.robot = env.scene[cfg.asset_name]
        self.body_idx = self.robot.find_bodies(cfg.body_name)[0][0]
        self.pose_command_b = torch.zeros(self.num_envs, 7, device=self.device)
        self.pose_command_b[:, 3:] = quat_identity(self.num_envs)
        self.metrics["position_error"] = torch.zeros(self.num_envs, device=self.device)
        self.metrics["orientation_error"] = torch.zeros(self.num_envs, device=self.device)

    @property
    def command(self) -> torch.Tensor:
        return self.pose_command_b

    @property
    def pose_command_w(self) -> torch.Tensor:
        data, command = self.robot.data, self.pose_command_b
        goal = combine_frame_transforms(data.root_pos_w, data.root_quat_w, command[:, :3], command[:, 3:])
        return torch.cat(goal, dim=1)

    def _update_metrics(self) -> None:
        env, name, body = self._env, self.cfg.asset_name, self.body_idx
        pos = in_root_frame(env, name, name, body).numpy()
        self.metrics["position_error"].numpy()[:] = distance(pos, self.pose_command_b.numpy()[:, :3])
        self.metrics["orientation_error"].numpy()[:] = angle_to(env, name, body, self.pose_command_b[:, 3:])

    def _resample_command(self, env_ids: Sequence[int] | torch.Tensor) -> None:
        drawn = sample_ranges(self._env, [getattr(self.cfg.ranges, axis) for axis in POSE_AXES], len(env_ids))
        quat = from_euler(drawn[:, 3:])
        if self.cfg.make_quat_unique:
            quat[quat[:, 0] < 0.0] *= -1.0
        pose = np.concatenate([drawn[:, :3], reorder(quat, "wxyz", self._env.quaternion)], axis=1)
        self.pose_command_b.numpy()[rows(env_ids)] = pose

    def _update_command(self) -> None:
        """The pose stays in the root frame: nothing moves it between draws."""


class NullCommand(CommandTerm):
    """No command, [N, 0]."""

    cfg: "NullCommandCfg"

    def __init__(self, cfg: "NullCommandCfg", env: ManagerBasedRLEnv) -> None:
        super().__init__(cfg, env)
        self._none = torch.zeros(self.num_envs, 0, device=self.device)

    @property
    def command(self) -> torch.Tensor:
        return self._none

    def _update_metrics(self) -> None:
        """There is nothing to measure."""

    def _resample_command(self, env_ids: Sequence[int] | torch.Tensor) -> None:
        """There is nothing to draw."""

    def _update_command(self) -> None:
        """There is nothing to move."""


@configclass
class UniformPoseCommandCfg(CommandTermCfg):
    """Poses of `body_name` of `asset_name`; `make_quat_unique` chooses the one of ±q with w >= 0."""

    @configclass
    class Ranges:
        """Lowest and highest of each axis, m and rad, root frame; roll about x, then pitch about y, then yaw about z
        of the fixed frame."""

        pos_x: Range = MISSING
        pos_y: Range = MISSING
        pos_z: Range = MISSING
        roll: Range = MISSING
        pitch: Range = MISSING
        yaw: Range = MISSING

    class_type: type = UniformPoseCommand
    asset_name: str = MISSING
    body_name: str = MISSING
    make_quat_unique: bool = False
    ranges: Ranges = MISSING


@configclass
class NullCommandCfg(CommandTermCfg):
    """No command."""

    class_type: type = NullCommand
    resampling_time_range: Range = (1.0e9, 1.0e9)
