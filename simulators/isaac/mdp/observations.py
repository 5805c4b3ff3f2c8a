"""Observation terms. Each returns [N, width], one row per environment."""

import torch

from simulators.isaac.cfg import JointedEntityCfg, SceneEntityCfg
from simulators.isaac.env import ManagerBasedRLEnv
from simulators.isaac.math import quat_unique, scale_transform
from simulators.isaac.mdp.entities import OBJECT, ROBOT
from simulators.isaac.mdp.frames import in_root_frame


def base_pos_z(env: ManagerBasedRLEnv, asset_cfg: SceneEntityCfg = ROBOT) -> torch.Tensor:
    """[N, 1] height of the root, m, world frame."""
    return env.scene[asset_cfg.name].data.root_pos_w[:, 2:3]


def base_lin_vel(env: ManagerBasedRLEnv, asset_cfg: SceneEntityCfg = ROBOT) -> torch.Tensor:
    """[N, 3] linear velocity of the root, m/s, root frame."""
    return env.scene[asset_cfg.name].data.root_lin_vel_b


def base_ang_vel(env: ManagerBasedRLEnv, asset_cfg: SceneEntityCfg = ROBOT) -> torch.Tensor:
    """[N, 3] angular velocity of the root, rad/s, root frame."""
    return env.scene[asset_cfg.name].data.root_ang_vel_b


def projected_gravity(env: ManagerBasedRLEnv, asset_cfg: SceneEntityCfg = ROBOT) -> torch.Tensor:
    """[N, 3] direction of gravity in the root frame."""
    return env.scene[asset_cfg.name].data.projected_gravity_b


def root_pos_w(env: ManagerBasedRLEnv, asset_cfg: SceneEntityCfg = ROBOT) -> torch.Tensor:
    """[N, 3] position of the root from its environment's origin, m."""
    return env.scene[asset_cfg.name].data.root_pos_w - env.scene.env_origins


def root_quat_w(
    env: ManagerBasedRLEnv, make_quat_unique: bool = False, asset_cfg: SceneEntityCfg = ROBOT
) -> torch.Tensor:
    """[N, 4] orientation of the root in the configured order; `make_quat_unique` chooses the one of ±q with w >= 0."""
    quat = env.scene[asset_cfg.name].data.root_quat_w
    return quat_unique(quat) if make_quat_unique else quat


def root_lin_vel_w(env: ManagerBasedRLEnv, asset_cfg: SceneEntityCfg = ROBOT) -> torch.Tensor:
    """[N, 3] linear velocity of the root, m/s, world frame."""
    return env.scene[asset_cfg.name].data.root_lin_vel_w


def root_ang_vel_w(env: ManagerBasedRLEnv, asset_cfg: SceneEntityCfg = ROBOT) -> torch.Tensor:
    """[N, 3] angular velocity of the root, rad/s, world frame."""
    return env.scene[asset_cfg.name].data.root_ang_vel_w


def body_pose_w(env: ManagerBasedRLEnv, asset_cfg: SceneEntityCfg = ROBOT) -> torch.Tensor:
    """[N, 7 * bodies] poses of the chosen bodies, position (m) from the environment's origin, then quaternion."""
    poses = env.scene[asset_cfg.name].data.body_pose_w[:, asset_cfg.body_ids].clone()
    poses[..., :3] -= env.scene.env_origins[:, None]
    return poses.flatten(1)


def joint_pos(env: ManagerBasedRLEnv, asset_cfg: JointedEntityCfg = ROBOT) -> torch.Tensor:
    """[N, J] positions of the chosen joints, rad or m."""
    return env.scene[asset_cfg.name].data.joint_pos[:, asset_cfg.joint_ids]


def joint_pos_rel(env: ManagerBasedRLEnv, asset_cfg: JointedEntityCfg = ROBOT) -> torch.Tensor:
    """[N, J] positions of the chosen joints from their defaults, rad or m."""
    data = env.scene[asset_cfg.name].data
    joints = asset_cfg.joint_ids
    return torch.from_numpy(data.joint_pos.numpy()[:, joints] - data.default_joint_pos.numpy()[:, joints])


def joint_pos_limit_normalized(env: ManagerBasedRLEnv, asset_cfg: JointedEntityCfg = ROBOT) -> torch.Tensor:
    """[N, J] positions of the chosen joints, -1 at the lower and 1 at the upper soft limit."""
    data = env.scene[asset_cfg.name].data
    lower, upper = data.soft_joint_pos_limits[:, asset_cfg.joint_ids].unbind(-1)
    return scale_transform(data.joint_pos[:, asset_cfg.joint_ids], lower, upper)


def joint_vel(env: ManagerBasedRLEnv, asset_cfg: JointedEntityCfg = ROBOT) -> torch.Tensor:
    """[N, J] velocities of the chosen joints, rad/s or m/s."""
    return env.scene[asset_cfg.name].data.joint_vel[:, asset_cfg.joint_ids]


def joint_vel_rel(env: ManagerBasedRLEnv, asset_cfg: JointedEntityCfg = ROBOT) -> torch.Tensor:
    """[N, J] velocities of the chosen joints from their defaults, rad/s or m/s."""
    data = env.scene[asset_cfg.name].data
    joints = asset_cfg.joint_ids
    return torch.from_numpy(data.joint_vel.numpy()[:, joints] - data.default_joint_vel.numpy()[:, joints])


def joint_effort(env: ManagerBasedRLEnv, asset_cfg: JointedEntityCfg = ROBOT) -> torch.Tensor:
    """[N, J] torques (N m) or forces (N) applied to the chosen joints."""
    return env.scene[asset_cfg.name].data.applied_torque[:, asset_cfg.joint_ids]


def last_action(env: ManagerBasedRLEnv, action_name: str | None = None) -> torch.Tensor:
    """[N, D] the last raw action, of one term if it is named."""
    manager = env.action_manager
    return manager.action if action_name is None else manager.get_term(action_name).raw_actions


def generated_commands(env: ManagerBasedRLEnv, command_name: str) -> torch.Tensor:
    """[N, C] the present command."""
    return env.command_manager.get_command(command_name)


def current_time_s(env: ManagerBasedRLEnv) -> torch.Tensor:
    """[N, 1] time since the episode's start, s."""
    return env.episode_length_buf.unsqueeze(1) * env.step_dt


def remaining_time_s(env: ManagerBasedRLEnv) -> torch.Tensor:
    """[N, 1] time to the episode's end, s."""
    return env.max_episode_length_s - env.episode_length_buf.unsqueeze(1) * env.step_dt


def object_position_in_robot_root_frame(
    env: ManagerBasedRLEnv, robot_cfg: SceneEntityCfg = ROBOT, object_cfg: SceneEntityCfg = OBJECT
) -> torch.Tensor:
    """[N, 3] position of the object, m, in the robot's root frame."""
    return in_root_frame(env, robot_cfg.name, object_cfg.name)
