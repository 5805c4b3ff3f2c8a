"""Event terms that write states: `env_ids` are the environments concerned, None for all."""

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray

from simulators.isaac.asset import Asset
from simulators.isaac.cfg import JointedEntityCfg, SceneEntityCfg
from simulators.isaac.checks import Range
from simulators.isaac.env import ManagerBasedRLEnv
from simulators.isaac.mdp.entities import ROBOT
from simulators.isaac.mdp.sampling import Ids, all_ids, axis_ranges, sample_ranges
from simulators.isaac.rotations import from_euler, multiply, reorder

Array = NDArray[np.float32]


def reset_scene_to_default(env: ManagerBasedRLEnv, env_ids: Ids, reset_joint_targets: bool = False) -> None:
    """Put every articulation and object into its default state; joint targets too if asked to."""
    ids = all_ids(env, env_ids)
    rows = ids.numpy()
    origins = env.scene.env_origins.numpy()[rows]
    for asset in (*env.scene.rigid_objects.values(), *env.scene.articulations.values()):
        state = asset.data.default_root_state.numpy()[rows]
        state[:, :3] += origins
        _write_root(asset, state, ids)
    for robot in env.scene.articulations.values():
        data = robot.data
        position = torch.from_numpy(data.default_joint_pos.numpy()[rows])
        velocity = torch.from_numpy(data.default_joint_vel.numpy()[rows])
        robot.write_joint_state_to_sim(position, velocity, env_ids=ids)
        if reset_joint_targets:
            robot.set_joint_position_target(position, env_ids=ids)
            robot.set_joint_velocity_target(velocity, env_ids=ids)


def reset_root_state_uniform(
    env: ManagerBasedRLEnv,
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
    ranges = [*axis_ranges(pose_range, "pose_range"), *axis_ranges(velocity_range, "velocity_range")]
    drawn, rows = sample_ranges(env, ranges, len(ids)), ids.numpy()
    state = asset.data.default_root_state.numpy()[rows]
    state[:, :3] += env.scene.env_origins.numpy()[rows] + drawn[:, :3]
    turn = drawn[:, 3:6]
    if turn.any():
        quat = multiply(reorder(state[:, 3:7], env.quaternion, "wxyz"), from_euler(turn))
        state[:, 3:7] = reorder(quat, "wxyz", env.quaternion)
    state[:, 7:] += drawn[:, 6:]
    _write_root(asset, state, ids)


def reset_joints_by_scale(
    env: ManagerBasedRLEnv,
    env_ids: Ids,
    position_range: Range,
    velocity_range: Range,
    asset_cfg: JointedEntityCfg = ROBOT,
) -> None:
    """Set the chosen joints to their defaults times uniform factors, within the soft limits."""
    _reset_joints(env, env_ids, position_range, velocity_range, asset_cfg, np.multiply)


def reset_joints_by_offset(
    env: ManagerBasedRLEnv,
    env_ids: Ids,
    position_range: Range,
    velocity_range: Range,
    asset_cfg: JointedEntityCfg = ROBOT,
) -> None:
    """Set the chosen joints to their defaults plus uniform offsets, within the soft limits."""
    _reset_joints(env, env_ids, position_range, velocity_range, asset_cfg, np.add)


def push_by_setting_velocity(
    env: ManagerBasedRLEnv, env_ids: Ids, velocity_range: dict[str, Range], asset_cfg: SceneEntityCfg = ROBOT
) -> None:
    """Add a uniform velocity (m/s, rad/s, world frame) to a root's, as a push would.

    Raises:
        ConfigError: An axis has another name.
    """
    asset, ids = env.scene[asset_cfg.name], all_ids(env, env_ids)
    speed = sample_ranges(env, axis_ranges(velocity_range, "velocity_range"), len(ids))
    asset.write_root_velocity_to_sim(asset.data.root_vel_w[ids] + torch.from_numpy(speed), env_ids=ids)


def _reset_joints(
    env: ManagerBasedRLEnv,
    env_ids: Ids,
    position_range: Range,
    velocity_range: Range,
    asset_cfg: JointedEntityCfg,
    change: Callable[[Array, Array], Array],
) -> None:
    asset, ids, joints = env.scene[asset_cfg.name], all_ids(env, env_ids), asset_cfg.joint_ids
    data, rows = asset.data, ids.numpy()
    defaults = data.default_joint_pos.numpy()[rows][:, joints], data.default_joint_vel.numpy()[rows][:, joints]
    limits, count = data.soft_joint_pos_limits.numpy()[rows][:, joints], defaults[0].shape[1]
    drawn = sample_ranges(env, [position_range] * count + [velocity_range] * count, len(ids))
    position = np.clip(change(defaults[0], drawn[:, :count]), limits[..., 0], limits[..., 1])
    velocity = change(defaults[1], drawn[:, count:])
    joint_ids = None if joints == slice(None) else joints
    asset.write_joint_state_to_sim(torch.from_numpy(position), torch.from_numpy(velocity), joint_ids, ids)


def _write_root(asset: Asset, state: Array, ids: torch.Tensor) -> None:
    """Pose and velocity [n, 13] of a root."""
    tensor = torch.from_numpy(state)
    asset.write_root_pose_to_sim(tensor[:, :7], env_ids=ids)
    asset.write_root_velocity_to_sim(tensor[:, 7:], env_ids=ids)
