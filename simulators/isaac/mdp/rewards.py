"""Reward terms. Each returns [N]; the reward manager multiplies by weight and step time."""

import numpy as np
import torch

from simulators.isaac.body_state import single
from simulators.isaac.cfg import JointedEntityCfg, SceneEntityCfg
from simulators.isaac.env import ManagerBasedRLEnv
from simulators.isaac.kernels import row_squares
from simulators.isaac.mdp.entities import EE_FRAME, OBJECT, ROBOT
from simulators.isaac.mdp.frames import angle_to, distance, in_root_frame


def is_alive(env: ManagerBasedRLEnv) -> torch.Tensor:
    """1 unless the episode has just terminated."""
    return (~env.termination_manager.terminated).float()


def is_terminated(env: ManagerBasedRLEnv) -> torch.Tensor:
    """1 if the episode has just terminated, other than by its time limit."""
    return env.termination_manager.terminated.float()


def lin_vel_z_l2(env: ManagerBasedRLEnv, asset_cfg: SceneEntityCfg = ROBOT) -> torch.Tensor:
    """Square of the root's vertical velocity, (m/s)², root frame."""
    return env.scene[asset_cfg.name].data.root_lin_vel_b[:, 2].square()


def ang_vel_xy_l2(env: ManagerBasedRLEnv, asset_cfg: SceneEntityCfg = ROBOT) -> torch.Tensor:
    """Sum of the squares of the root's roll and pitch rates, (rad/s)², root frame."""
    return env.scene[asset_cfg.name].data.root_ang_vel_b[:, :2].square().sum(dim=1)


def flat_orientation_l2(env: ManagerBasedRLEnv, asset_cfg: SceneEntityCfg = ROBOT) -> torch.Tensor:
    """Sum of the squares of gravity's horizontal components in the root frame: 0 if level."""
    return env.scene[asset_cfg.name].data.projected_gravity_b[:, :2].square().sum(dim=1)


def base_height_l2(env: ManagerBasedRLEnv, target_height: float, asset_cfg: SceneEntityCfg = ROBOT) -> torch.Tensor:
    """Square of the root's height above `target_height`, m²."""
    return (env.scene[asset_cfg.name].data.root_pos_w[:, 2] - target_height).square()


def joint_torques_l2(env: ManagerBasedRLEnv, asset_cfg: JointedEntityCfg = ROBOT) -> torch.Tensor:
    """Sum of the squares of the torques applied to the chosen joints."""
    return env.scene[asset_cfg.name].data.applied_torque[:, asset_cfg.joint_ids].square().sum(dim=1)


def joint_vel_l1(env: ManagerBasedRLEnv, asset_cfg: JointedEntityCfg = ROBOT) -> torch.Tensor:
    """Sum of the speeds of the chosen joints."""
    return env.scene[asset_cfg.name].data.joint_vel[:, asset_cfg.joint_ids].abs().sum(dim=1)


def joint_vel_l2(env: ManagerBasedRLEnv, asset_cfg: JointedEntityCfg = ROBOT) -> torch.Tensor:
    """Sum of the squares of the velocities of the chosen joints."""
    speed = env.scene[asset_cfg.name].data.joint_vel.numpy()[:, asset_cfg.joint_ids]
    return torch.from_numpy(row_squares(speed, np.zeros((1, speed.shape[1]), speed.dtype)))


def joint_acc_l2(env: ManagerBasedRLEnv, asset_cfg: JointedEntityCfg = ROBOT) -> torch.Tensor:
    """Sum of the squares of the accelerations of the chosen joints."""
    return env.scene[asset_cfg.name].data.joint_acc[:, asset_cfg.joint_ids].square().sum(dim=1)


def joint_deviation_l1(env: ManagerBasedRLEnv, asset_cfg: JointedEntityCfg = ROBOT) -> torch.Tensor:
    """Sum of the chosen joints' distances from their default positions."""
    data = env.scene[asset_cfg.name].data
    return (data.joint_pos[:, asset_cfg.joint_ids] - data.default_joint_pos[:, asset_cfg.joint_ids]).abs().sum(dim=1)


def joint_pos_limits(env: ManagerBasedRLEnv, asset_cfg: JointedEntityCfg = ROBOT) -> torch.Tensor:
    """Sum of the chosen joints' distances beyond their soft limits."""
    data = env.scene[asset_cfg.name].data
    position, limits = data.joint_pos[:, asset_cfg.joint_ids], data.soft_joint_pos_limits[:, asset_cfg.joint_ids]
    return ((limits[..., 0] - position).clamp(min=0.0) + (position - limits[..., 1]).clamp(min=0.0)).sum(dim=1)


def action_rate_l2(env: ManagerBasedRLEnv) -> torch.Tensor:
    """Sum of the squares of the raw action's change since the step before."""
    return torch.from_numpy(row_squares(env.action_manager.action.numpy(), env.action_manager.prev_action.numpy()))


def action_l2(env: ManagerBasedRLEnv) -> torch.Tensor:
    """Sum of the squares of the raw action."""
    return env.action_manager.action.square().sum(dim=1)


def position_command_error(env: ManagerBasedRLEnv, command_name: str, asset_cfg: SceneEntityCfg) -> torch.Tensor:
    """Distance (m) of the chosen body from the commanded position."""
    goal = env.command_manager.get_command(command_name).numpy()[:, :3]
    body = in_root_frame(env, asset_cfg.name, asset_cfg.name, asset_cfg.body_ids[0]).numpy()
    return torch.from_numpy(distance(body, goal))


def position_command_error_tanh(
    env: ManagerBasedRLEnv, std: float, command_name: str, asset_cfg: SceneEntityCfg
) -> torch.Tensor:
    """1 - tanh(distance / std) of the chosen body from the commanded position; `std` in m."""
    return _near(position_command_error(env, command_name, asset_cfg), std)


def orientation_command_error(env: ManagerBasedRLEnv, command_name: str, asset_cfg: SceneEntityCfg) -> torch.Tensor:
    """Angle (rad, 0 to pi) between the chosen body's and the commanded orientation."""
    goal = env.command_manager.get_command(command_name)[:, 3:7]
    return single(angle_to(env, asset_cfg.name, asset_cfg.body_ids[0], goal))


def object_is_lifted(
    env: ManagerBasedRLEnv, minimal_height: float, object_cfg: SceneEntityCfg = OBJECT
) -> torch.Tensor:
    """1 if the object is higher than `minimal_height` (m, world frame)."""
    return single(env.scene[object_cfg.name].data.root_pos_w.numpy()[:, 2] > minimal_height)


def object_ee_distance(
    env: ManagerBasedRLEnv,
    std: float,
    object_cfg: SceneEntityCfg = OBJECT,
    ee_frame_cfg: SceneEntityCfg = EE_FRAME,
) -> torch.Tensor:
    """1 - tanh(distance / std) between end effector and object; `std` in m."""
    ee_w = env.scene[ee_frame_cfg.name].data.target_pos_w.numpy()[:, 0]
    away = distance(env.scene[object_cfg.name].data.root_pos_w.numpy(), ee_w)
    return _near(torch.from_numpy(away), std)


def object_to_goal(
    env: ManagerBasedRLEnv, command_name: str, robot_cfg: SceneEntityCfg, object_cfg: SceneEntityCfg
) -> torch.Tensor:
    """[N] distance (m) of the object from the commanded position (robot's root frame)."""

    def compute() -> torch.Tensor:
        goal = env.command_manager.get_command(command_name).numpy()[:, :3]
        return torch.from_numpy(distance(in_root_frame(env, robot_cfg.name, object_cfg.name).numpy(), goal))

    return env.once(("object_to_goal", command_name, robot_cfg.name, object_cfg.name), compute)


def object_goal_distance(
    env: ManagerBasedRLEnv,
    std: float,
    minimal_height: float,
    command_name: str,
    robot_cfg: SceneEntityCfg = ROBOT,
    object_cfg: SceneEntityCfg = OBJECT,
) -> torch.Tensor:
    """1 - tanh(distance / std) between object and commanded position (`std` in m), 0 unless the object is lifted."""
    near = _near(object_to_goal(env, command_name, robot_cfg, object_cfg), std).numpy()
    near *= env.scene[object_cfg.name].data.root_pos_w.numpy()[:, 2] > minimal_height
    return torch.from_numpy(near)


def _near(distance: torch.Tensor, std: float) -> torch.Tensor:
    """1 - tanh(distance / std), a new tensor."""
    return torch.from_numpy(1.0 - np.tanh(distance.numpy() / std))
