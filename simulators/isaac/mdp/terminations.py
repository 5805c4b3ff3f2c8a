"""Termination terms. Each returns [N] bool."""

import torch

from simulators.isaac.cfg import JointedEntityCfg, SceneEntityCfg
from simulators.isaac.env import ManagerBasedRLEnv
from simulators.isaac.mdp.entities import OBJECT, ROBOT
from simulators.isaac.mdp.rewards import object_to_goal


def time_out(env: ManagerBasedRLEnv) -> torch.Tensor:
    """The episode has reached its time limit."""
    return torch.from_numpy(env.episode_length_buf.numpy() >= env.max_episode_length)


def command_resample(env: ManagerBasedRLEnv, command_name: str, num_resamples: int = 1) -> torch.Tensor:
    """The command is about to be drawn anew and was drawn `num_resamples` times."""
    command = env.command_manager.get_term(command_name)
    return (command.time_left <= env.step_dt) & (command.command_counter == num_resamples)


def bad_orientation(env: ManagerBasedRLEnv, limit_angle: float, asset_cfg: SceneEntityCfg = ROBOT) -> torch.Tensor:
    """The root's z axis is further than `limit_angle` (rad) from the vertical."""
    gravity = env.scene[asset_cfg.name].data.projected_gravity_b
    return torch.acos(-gravity[:, 2]) > limit_angle


def root_height_below_minimum(
    env: ManagerBasedRLEnv, minimum_height: float, asset_cfg: SceneEntityCfg = ROBOT
) -> torch.Tensor:
    """The root is lower than `minimum_height` (m, world frame)."""
    return torch.from_numpy(env.scene[asset_cfg.name].data.root_pos_w.numpy()[:, 2] < minimum_height)


def joint_pos_out_of_limit(env: ManagerBasedRLEnv, asset_cfg: JointedEntityCfg = ROBOT) -> torch.Tensor:
    """A chosen joint is beyond its soft limits."""
    data = env.scene[asset_cfg.name].data
    position, limits = data.joint_pos[:, asset_cfg.joint_ids], data.soft_joint_pos_limits[:, asset_cfg.joint_ids]
    return ((position > limits[..., 1]) | (position < limits[..., 0])).any(dim=1)


def joint_pos_out_of_manual_limit(
    env: ManagerBasedRLEnv, bounds: tuple[float, float], asset_cfg: JointedEntityCfg = ROBOT
) -> torch.Tensor:
    """A chosen joint is beyond `bounds` (rad or m)."""
    position = env.scene[asset_cfg.name].data.joint_pos[:, asset_cfg.joint_ids]
    return ((position > bounds[1]) | (position < bounds[0])).any(dim=1)


def joint_vel_out_of_manual_limit(
    env: ManagerBasedRLEnv, max_velocity: float, asset_cfg: JointedEntityCfg = ROBOT
) -> torch.Tensor:
    """A chosen joint is faster than `max_velocity` (rad/s or m/s)."""
    return (env.scene[asset_cfg.name].data.joint_vel[:, asset_cfg.joint_ids].abs() > max_velocity).any(dim=1)


def object_reached_goal(
    env: ManagerBasedRLEnv,
    command_name: str = "object_pose",
    threshold: float = 0.02,
    robot_cfg: SceneEntityCfg = ROBOT,
    object_cfg: SceneEntityCfg = OBJECT,
) -> torch.Tensor:
    """The object is nearer than `threshold` (m) to the commanded position."""
    return object_to_goal(env, command_name, robot_cfg, object_cfg) < threshold
