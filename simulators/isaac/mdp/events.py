"""Event terms that write states: `env_ids` are the environments concerned, None for all."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from simulators.isaac.cfg import SceneEntityCfg
from simulators.isaac.math import quat_from_euler_xyz, quat_mul
from simulators.isaac.mdp.entities import ROBOT
from simulators.isaac.mdp.sampling import Ids, Range, all_ids, axis_ranges, sample_ranges

if TYPE_CHECKING:
    from simulators.isaac.env import ManagerBasedRLEnv


def reset_scene_to_default(env: "ManagerBasedRLEnv", env_ids: Ids, reset_joint_targets: bool = False) -> None:
    """Put every articulation and object into its default state; joint targets too if asked to."""
    ids = all_ids(env, env_ids)
    origins = env.scene.env_origins[ids]
    for asset in (*env.scene.rigid_objects.values(), *env.scene.articulations.values()):
        state = asset.data.default_root_state[ids]
        state[:, :3] += origins
        asset.write_root_pose_to_sim(state[:, :7], env_ids=ids)
        asset.write_root_velocity_to_sim(state[:, 7:], env_ids=ids)
    for robot in env.scene.articulations.values():
        position, velocity = robot.data.default_joint_pos[ids], robot.data.default_joint_vel[ids]
        robot.write_joint_state_to_sim(position, velocity, env_ids=ids)
        if reset_joint_targets:
            robot.set_joint_position_target(position, env_ids=ids)
            robot.set_joint_velocity_target(velocity, env_ids=ids)


def reset_root_state_uniform(
    env: "ManagerBasedRLEnv",
    env_ids: Ids,
    pose_range: dict[str, Range],
    velocity_range: dict[str, Range],
    asset_cfg: SceneEntityCfg = ROBOT,
) -> None:
    """Put a root at its default pose and velocity plus uniform offsets.

    Args:
        pose_range: Offsets along `x`, `y`, `z` (m) and turns `roll`, `pitch`, `yaw` (rad), after the default's.
        velocity_range: Of the same axes, m/s and rad/s, world frame.

    Raises:
        ConfigError: An axis has another name.
    """
    asset, ids = env.scene[asset_cfg.name], all_ids(env, env_ids)
    pose = sample_ranges(env, axis_ranges(pose_range, "pose_range"), len(ids))
    speed = sample_ranges(env, axis_ranges(velocity_range, "velocity_range"), len(ids))
    default = asset.data.default_root_state[ids]
    position = default[:, :3] + env.scene.env_origins[ids] + pose[:, :3]
    quat = quat_mul(default[:, 3:7], quat_from_euler_xyz(pose[:, 3], pose[:, 4], pose[:, 5]))
    asset.write_root_pose_to_sim(torch.cat([position, quat], dim=1), env_ids=ids)
    asset.write_root_velocity_to_sim(default[:, 7:] + speed, env_ids=ids)


def reset_joints_by_scale(
    env: "ManagerBasedRLEnv",
    env_ids: Ids,
    position_range: Range,
    velocity_range: Range,
    asset_cfg: SceneEntityCfg = ROBOT,
) -> None:
    """Set the chosen joints to their defaults times uniform factors, within the soft limits."""
    _reset_joints(env, env_ids, position_range, velocity_range, asset_cfg, torch.mul)


def reset_joints_by_offset(
    env: "ManagerBasedRLEnv",
    env_ids: Ids,
    position_range: Range,
    velocity_range: Range,
    asset_cfg: SceneEntityCfg = ROBOT,
) -> None:
    """Set the chosen joints to their defaults plus uniform offsets, within the soft limits."""
    _reset_joints(env, env_ids, position_range, velocity_range, asset_cfg, torch.add)


def push_by_setting_velocity(
    env: "ManagerBasedRLEnv", env_ids: Ids, velocity_range: dict[str, Range], asset_cfg: SceneEntityCfg = ROBOT
) -> None:
    """Add a uniform velocity (m/s, rad/s, world frame) to a root's, as a push would.

    Raises:
        ConfigError: An axis has another name.
    """
    asset, ids = env.scene[asset_cfg.name], all_ids(env, env_ids)
    speed = sample_ranges(env, axis_ranges(velocity_range, "velocity_range"), len(ids))
    asset.write_root_velocity_to_sim(asset.data.root_vel_w[ids] + speed, env_ids=ids)


def _reset_joints(
    env: "ManagerBasedRLEnv",
    env_ids: Ids,
    position_range: Range,
    velocity_range: Range,
    asset_cfg: SceneEntityCfg,
    change: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
) -> None:
    asset, ids, joints = env.scene[asset_cfg.name], all_ids(env, env_ids), asset_cfg.joint_ids
    data = asset.data
    position, velocity = data.default_joint_pos[ids][:, joints], data.default_joint_vel[ids][:, joints]
    limits = data.soft_joint_pos_limits[ids][:, joints]
    ranges = torch.tensor([position_range, velocity_range]).repeat_interleave(position.shape[1], dim=0)
    drawn_position, drawn_velocity = sample_ranges(env, ranges, len(ids)).chunk(2, dim=1)
    position = change(position, drawn_position).clamp(limits[..., 0], limits[..., 1])
    asset.write_joint_state_to_sim(position, change(velocity, drawn_velocity), joint_ids=joints, env_ids=ids)
