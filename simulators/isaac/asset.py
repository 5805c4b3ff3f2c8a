"""Base of articulations and rigid objects: a root that is free, moved by writes, or fixed."""

from typing import Any, NoReturn

import mujoco
import numpy as np
import torch
from numpy.typing import NDArray

from simulators.isaac.body_state import ordered
from simulators.isaac.errors import ConfigError, SpecMismatch
from simulators.isaac.math import convert_quat, quat_apply, quat_apply_inverse, quat_conjugate, quat_mul
from simulators.isaac.quaternion import Order
from simulators.isaac.simulation import EnvIds, Simulation, checked_rows, rows


def put(target: torch.Tensor | NDArray[Any], value: Any, env_ids: EnvIds, columns: Any) -> None:
    """Write `value` [n, ...] to some rows and columns; numpy indexes and converts faster than torch.

    Raises:
        ConfigError: One of `env_ids` is no environment.
        SpecMismatch: `value` has another shape.
    """
    array: NDArray[Any] = target.numpy() if isinstance(target, torch.Tensor) else target
    value = value.numpy() if isinstance(value, torch.Tensor) else value
    which = checked_rows(env_ids, len(array))
    at = (which, columns) if isinstance(which, slice) or isinstance(columns, slice) else (which[:, None], columns)
    try:
        array[at] = value
    except (ValueError, TypeError):
        found = f"shape {np.shape(value)}" if isinstance(value, np.ndarray) else f"type {type(value).__name__}"
        raise SpecMismatch(f"a value written has {found}", "a write or target", f"give {array[at].shape}") from None


def to_wxyz(quat: torch.Tensor, order: Order) -> torch.Tensor:
    """Quaternions in MuJoCo's order."""
    return quat if order == "wxyz" else convert_quat(quat, "wxyz")


class Asset:
    """Entity with a root body. The scene binds it to model and simulation once it is compiled.

    Root poses are [n, 7]: position (m, world frame), then a quaternion in the environment's order. Root velocities are
    [n, 6]: linear (m/s), then angular (rad/s), world frame. `n` rows for `env_ids`, or all environments.

    Attributes:
        cfg: As given.
        data: Its state.
        num_instances: N.
    """

    data: Any

    def __init__(self, cfg: Any) -> None:
        self.cfg = cfg
        self._name = ""

    @property
    def num_instances(self) -> int:
        return self._sim.num_envs

    @property
    def device(self) -> str:
        return self._sim.device

    @property
    def root_physx_view(self) -> NoReturn:
        """Refuse: there is no PhysX."""
        fix = "read asset.data, and write with write_..._to_sim or a randomisation event"
        raise ConfigError("there is no PhysX view", f"asset {self._name}", fix)

    def _bind_root(self, sim: Simulation, body: int, order: Order) -> None:
        model = sim.model
        self._sim, self._order, self._body = sim, order, body
        self._ALL_INDICES = torch.arange(sim.num_envs)
        self._qpos, self._qvel = sim.batch.bind("qpos"), sim.batch.bind("qvel")
        joint = int(model.body_jntadr[body])
        free = model.body_jntnum[body] == 1 and model.jnt_type[joint] == int(mujoco.mjtJoint.mjJNT_FREE)
        self._free = (int(model.jnt_qposadr[joint]), int(model.jnt_dofadr[joint])) if free else None
        self._mocap = int(model.body_mocapid[body])
        self._inertial_pos = torch.from_numpy(model.body_ipos[body]).float()
        self._centred = not self._inertial_pos.any()
        self._inertial_quat = ordered(model.body_iquat[body], order)

    def _default_root_state(self) -> torch.Tensor:
        """[N, 13] as built."""
        init, model = self.cfg.init_state, self._sim.model
        quat = ordered(model.body_quat[self._body], self._order).tolist()
        row = [*model.body_pos[self._body].tolist(), *quat, *init.lin_vel, *init.ang_vel]
        return torch.tensor([row], dtype=torch.float32).repeat(self.num_instances, 1)

    def write_root_state_to_sim(self, root_state: torch.Tensor, env_ids: EnvIds = None) -> None:
        """[n, 13] pose of the link and velocity of the centre of mass."""
        self.write_root_link_pose_to_sim(root_state[:, :7], env_ids)
        self.write_root_com_velocity_to_sim(root_state[:, 7:], env_ids)

    def write_root_link_state_to_sim(self, root_state: torch.Tensor, env_ids: EnvIds = None) -> None:
        """[n, 13] pose and velocity of the link."""
        self.write_root_link_pose_to_sim(root_state[:, :7], env_ids)
        self.write_root_link_velocity_to_sim(root_state[:, 7:], env_ids)

    def write_root_com_state_to_sim(self, root_state: torch.Tensor, env_ids: EnvIds = None) -> None:
        """[n, 13] pose and velocity of the centre of mass."""
        self.write_root_com_pose_to_sim(root_state[:, :7], env_ids)
        self.write_root_com_velocity_to_sim(root_state[:, 7:], env_ids)

    def write_root_pose_to_sim(self, root_pose: torch.Tensor, env_ids: EnvIds = None) -> None:
        """The link's pose."""
        self.write_root_link_pose_to_sim(root_pose, env_ids)

    def write_root_velocity_to_sim(self, root_velocity: torch.Tensor, env_ids: EnvIds = None) -> None:
        """The centre of mass's velocity."""
        self.write_root_com_velocity_to_sim(root_velocity, env_ids)

    def write_root_link_pose_to_sim(self, root_pose: torch.Tensor, env_ids: EnvIds = None) -> None:
        """The link's pose.

        Raises:
            ConfigError: The base is fixed and the pose is another than its own.
        """
        which = self._target(root_pose, 7, env_ids)
        pose = root_pose.numpy()
        if self._free is None and self._mocap < 0:
            if np.abs(pose - self.data.default_root_state.numpy()[which, :7]).max(initial=0.0) > 1e-5:
                raise ConfigError("a fixed base was moved", f"asset {self._name}", "write its default pose, or none")
            return
        if self._order == "xyzw":
            pose = pose[:, [0, 1, 2, 6, 3, 4, 5]]
        if self._free is not None:
            start = self._free[0]
            self._qpos[which, start : start + 7] = pose
        else:
            self._sim.batch.bind("mocap_pos")[which, self._mocap] = pose[:, :3]
            self._sim.batch.bind("mocap_quat")[which, self._mocap] = pose[:, 3:]
        self._sim.touch(env_ids)

    def write_root_com_pose_to_sim(self, root_pose: torch.Tensor, env_ids: EnvIds = None) -> None:
        """The centre of mass's pose; raises as `write_root_link_pose_to_sim`."""
        quat = quat_mul(root_pose[:, 3:7], quat_conjugate(self._inertial_quat, self._order), self._order)
        pos = root_pose[:, :3] - quat_apply(quat, self._inertial_pos, self._order)
        self.write_root_link_pose_to_sim(torch.cat([pos, quat], dim=-1), env_ids)

    def write_root_com_velocity_to_sim(self, root_velocity: torch.Tensor, env_ids: EnvIds = None) -> None:
        """The centre of mass's velocity."""
        if self._centred or self._free is None:
            return self.write_root_link_velocity_to_sim(root_velocity, env_ids)
        arm = quat_apply(self._written_quat(env_ids), self._inertial_pos, "wxyz")
        linear = root_velocity[:, :3] - torch.linalg.cross(root_velocity[:, 3:6], arm)
        return self.write_root_link_velocity_to_sim(torch.cat([linear, root_velocity[:, 3:6]], dim=-1), env_ids)

    def write_root_link_velocity_to_sim(self, root_velocity: torch.Tensor, env_ids: EnvIds = None) -> None:
        """The velocity of the link's origin. A root that is not free has none."""
        if self._free is None:
            return
        start, which, velocity = self._free[1], self._target(root_velocity, 6, env_ids), root_velocity.numpy()
        self._qvel[which, start : start + 6] = velocity
        if velocity[:, 3:].any():
            angular = quat_apply_inverse(self._written_quat(env_ids), root_velocity[:, 3:], "wxyz")
            self._qvel[which, start + 3 : start + 6] = angular.numpy()
        self._sim.touch(env_ids)

    def _target(self, value: torch.Tensor, width: int, env_ids: EnvIds) -> Any:
        """Index of environments for a write of their roots; raises as `put`."""
        if not isinstance(value, torch.Tensor) or value.ndim != 2 or value.shape[1] != width:
            found = tuple(value.shape) if isinstance(value, torch.Tensor) else type(value).__name__
            raise SpecMismatch(f"a root written as {found}", f"asset {self._name}", f"give a tensor [n, {width}]")
        return checked_rows(env_ids, self.num_instances)

    def _written_quat(self, env_ids: EnvIds) -> torch.Tensor:
        """[n, 4] wxyz of a free root, as last written."""
        assert self._free is not None
        start = self._free[0] + 3
        return torch.from_numpy(self._qpos[rows(env_ids), start : start + 4].astype(np.float32))

    def _write_defaults(self) -> None:
        state = self._default_root_state()
        if self._free is not None or self._mocap >= 0:
            self.write_root_state_to_sim(state)

    def write_data_to_sim(self) -> None:
        """Write targets to the simulation."""

    def update(self, dt: float) -> None:
        """Do nothing: `data` is computed on access."""

    def reset(self, env_ids: EnvIds = None) -> None:
        """Clear targets of the previous episode."""
