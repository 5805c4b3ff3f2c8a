"""The state of an articulation as torch tensors."""

from collections.abc import Sequence

import numpy as np
import torch

from simulators.isaac.body_state import BodyState, single
from simulators.isaac.names import as_index
from simulators.isaac.quaternion import Order
from simulators.isaac.simulation import Simulation, fresh


class ArticulationData(BodyState):
    """State of N robots with J joints and B bodies, float32; see `BodyState` for the bodies.

    Positions and velocities are in rad and rad/s for hinges, m and m/s for slides; efforts in N m and N.

    Attributes:
        joint_names, body_names: In the order of the tensors.
        default_joint_pos, default_joint_vel: [N, J] of `init_state`.
        default_root_state: [N, 13] pose of the link and velocity of the centre of mass.
        default_mass: [N, B] kg.
        joint_pos_limits, soft_joint_pos_limits: [N, J, 2].
        joint_vel_limits, joint_effort_limits: [N, J]; infinite for joints without.
        joint_stiffness, joint_damping, joint_armature: [N, J] as simulated.
        joint_pos_target, joint_vel_target, joint_effort_target: [N, J] as last set.
    """

    joint_names: list[str]
    body_names: list[str]
    default_root_state: torch.Tensor
    soft_joint_pos_limits: torch.Tensor

    def __init__(self, sim: Simulation, bodies: Sequence[int], joints: Sequence[int], order: Order) -> None:
        super().__init__(sim, bodies, order)
        model, num_envs = sim.model, sim.num_envs
        ids = np.asarray(joints, int)
        self._qpos_ids, self._qvel_ids = model.jnt_qposadr[ids].tolist(), model.jnt_dofadr[ids].tolist()
        self._qpos, self._qvel = sim.array("qpos"), sim.array("qvel")
        self._qpos_index, self._qvel_index = as_index(self._qpos_ids), as_index(self._qvel_ids)
        limits = np.where(model.jnt_limited[ids, None].astype(bool), model.jnt_range[ids], [[-np.inf, np.inf]])
        self.joint_pos_limits = _rows(limits, num_envs)
        self.joint_armature = _rows(model.dof_armature[self._qvel_ids], num_envs)
        self.default_mass = _rows(model.body_mass[list(bodies)], num_envs)
        zeros = [torch.zeros(num_envs, len(ids)) for _ in range(7)]
        self.default_joint_pos, self.default_joint_vel, self.joint_stiffness, self.joint_damping = zeros[:4]
        self.joint_pos_target, self.joint_vel_target, self.joint_effort_target = zeros[4:]
        self.joint_vel_limits = torch.full((num_envs, len(ids)), torch.inf)
        self.joint_effort_limits = torch.full((num_envs, len(ids)), torch.inf)

    def set_gains(self, driven: list[int], actuators: list[int]) -> None:
        """Read stiffness, damping and effort limits of the joints `driven` from their actuators."""
        model = self._sim.model
        bias, limited = model.actuator_biasprm[actuators], model.actuator_forcelimited[actuators].astype(bool)
        self.joint_stiffness[:, driven] = torch.from_numpy(-bias[:, 1]).float()
        self.joint_damping[:, driven] = torch.from_numpy(-bias[:, 2]).float()
        effort = np.where(limited, model.actuator_forcerange[actuators, 1], np.inf)
        self.joint_effort_limits[:, driven] = torch.from_numpy(effort).float()

    def soften(self, factor: float) -> torch.Tensor:
        """[N, J, 2] limits, `factor` of their range about its middle."""
        middle = self.joint_pos_limits.mean(dim=-1, keepdim=True)
        soft = middle + factor * (self.joint_pos_limits - middle)
        return torch.where(torch.isfinite(self.joint_pos_limits), soft, self.joint_pos_limits)

    default_root_pose = property(lambda self: self.default_root_state[:, :7])
    default_root_vel = property(lambda self: self.default_root_state[:, 7:])
    default_joint_pos_limits = property(lambda self: self.joint_pos_limits)
    soft_joint_vel_limits = property(lambda self: self.joint_vel_limits)

    @fresh
    def joint_pos(self) -> torch.Tensor:
        return single(self._qpos[:, self._qpos_index])

    @fresh
    def joint_vel(self) -> torch.Tensor:
        return single(self._qvel[:, self._qvel_index])

    @fresh
    def joint_acc(self) -> torch.Tensor:
        """rad/s² or m/s², of the last physics step."""
        return single(self._sim.array("qacc")[:, self._qvel_index])

    @fresh
    def applied_torque(self) -> torch.Tensor:
        """N m or N that the actuators applied in the last physics step, limits included."""
        return single(self._sim.array("qfrc_actuator")[:, self._qvel_index])


def _rows(numbers: np.ndarray, num_envs: int) -> torch.Tensor:
    """float32 [num_envs, ...]"""
    row = torch.from_numpy(np.ascontiguousarray(numbers)).float()
    return row.expand(num_envs, *row.shape).clone()
