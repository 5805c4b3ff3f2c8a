"""Poses and velocities of bodies, as Isaac Lab defines them, from MuJoCo's fields."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from simulators.isaac.math import normalize, quat_apply, quat_apply_inverse, quat_mul
from simulators.isaac.names import as_index
from simulators.isaac.quaternion import Order
from simulators.isaac.simulation import Simulation, fresh


def single(numbers: NDArray[Any]) -> torch.Tensor:
    """A float32 copy."""
    return torch.from_numpy(numbers.astype(np.float32))


def ordered(quat_wxyz: NDArray[Any], order: Order) -> torch.Tensor:
    """float32 quaternions in `order`."""
    if order == "wxyz":
        return single(quat_wxyz)
    quat = np.empty(quat_wxyz.shape, np.float32)
    quat[..., :3], quat[..., 3] = quat_wxyz[..., 1:], quat_wxyz[..., 0]
    return torch.from_numpy(quat)


def joined(first: str, second: str) -> fresh:
    """Property of two others side by side."""
    return fresh(lambda self: torch.cat([getattr(self, first), getattr(self, second)], dim=-1))


def in_root(vector: str) -> fresh:
    """Property of a vector of the world frame in the root's."""
    return fresh(lambda self: self._to_root(getattr(self, vector)))


def alias(name: str) -> property:
    """Property equal to another."""
    return property(lambda self: getattr(self, name))


def linear(velocity: str) -> property:
    """First three numbers of another property."""
    return property(lambda self: getattr(self, velocity)[..., :3])


def angular(velocity: str) -> property:
    """Numbers of another property after the first three."""
    return property(lambda self: getattr(self, velocity)[..., 3:])


class BodyState:
    """State of B bodies, the root first. Tensors are float32, [N, B, ...] for bodies, [N, ...] for the root.

    `link` is the frame of the body as modelled, `com` the same axes turned to the inertia's and moved to the centre of
    mass. Suffix `_w`: in the world frame; `_b`: in the root's link frame. Poses are position (m), then quaternion;
    velocities are linear (m/s, of the named point), then angular (rad/s). Without `link` or `com`, poses are the link's
    and velocities the centre of mass's.

    Attributes:
        at_origin: Whether the root's frame is the world's, for good.
    """

    def __init__(self, sim: Simulation, ids: Sequence[int], order: Order) -> None:
        self._sim, self._order, self._cache = sim, order, dict[str, Any]()
        self._ids = as_index(list(ids))
        self._body_ids = list(ids)
        self._root = ids[0]
        self._xpos, self._xquat = sim.array("xpos"), sim.array("xquat")
        model = sim.model
        self._tree = torch.from_numpy(model.body_rootid[list(ids)]).long()
        self._tree_root = int(self._tree[0])
        self._inertial_quat = ordered(model.body_iquat[list(ids)], order)
        moves = model.body_weldid[self._root] != 0 or model.body_mocapid[self._root] >= 0
        # The pose of a root that is fixed in the world.
        self._fixed = None if moves else (self._live_root_pos(), self._live_root_quat())
        self.at_origin = (
            not moves
            and not self._xpos[:, self._root].any()
            and bool((self._xquat[:, self._root] == [1.0, 0.0, 0.0, 0.0]).all())
        )
        gravity = torch.from_numpy(model.opt.gravity.copy()).float()
        self.GRAVITY_VEC_W = normalize(gravity).repeat(sim.num_envs, 1)
        self.FORWARD_VEC_B = torch.tensor([[1.0, 0.0, 0.0]]).repeat(sim.num_envs, 1)

    # Root -------------------------------------------------------------------------------------------------------------

    @fresh
    def root_link_pos_w(self) -> torch.Tensor:
        return self._live_root_pos() if self._fixed is None else self._fixed[0].clone()

    @fresh
    def root_link_quat_w(self) -> torch.Tensor:
        return self._live_root_quat() if self._fixed is None else self._fixed[1].clone()

    root_link_pose_w = joined("root_link_pos_w", "root_link_quat_w")

    @fresh
    def root_link_vel_w(self) -> torch.Tensor:
        return self._velocity("xpos", self._root, self._tree_root)

    @fresh
    def root_com_pos_w(self) -> torch.Tensor:
        return single(self._sim.array("xipos")[:, self._root])

    @fresh
    def root_com_quat_w(self) -> torch.Tensor:
        return quat_mul(self.root_link_quat_w, self._inertial_quat[0], self._order)

    root_com_pose_w = joined("root_com_pos_w", "root_com_quat_w")

    @fresh
    def root_com_vel_w(self) -> torch.Tensor:
        return self._velocity("xipos", self._root, self._tree_root)

    root_state_w = joined("root_link_pose_w", "root_com_vel_w")
    root_link_state_w = joined("root_link_pose_w", "root_link_vel_w")
    root_com_state_w = joined("root_com_pose_w", "root_com_vel_w")
    root_link_lin_vel_b = in_root("root_link_lin_vel_w")
    root_com_lin_vel_b = in_root("root_com_lin_vel_w")
    root_com_ang_vel_b = in_root("root_com_ang_vel_w")

    @fresh
    def projected_gravity_b(self) -> torch.Tensor:
        """[N, 3] direction of gravity."""
        return self._to_root(self.GRAVITY_VEC_W)

    @fresh
    def heading_w(self) -> torch.Tensor:
        """[N] angle about the vertical of the root's x axis, rad."""
        forward = quat_apply(self.root_link_quat_w, self.FORWARD_VEC_B, self._order)
        return torch.atan2(forward[:, 1], forward[:, 0])

    # Bodies -----------------------------------------------------------------------------------------------------------

    @fresh
    def body_link_pos_w(self) -> torch.Tensor:
        return single(self._xpos[:, self._ids])

    @fresh
    def body_link_quat_w(self) -> torch.Tensor:
        return ordered(self._xquat[:, self._ids], self._order)

    body_link_pose_w = joined("body_link_pos_w", "body_link_quat_w")

    @fresh
    def body_link_vel_w(self) -> torch.Tensor:
        return self._velocity("xpos", self._ids, self._tree)

    @fresh
    def body_com_pos_w(self) -> torch.Tensor:
        return single(self._sim.array("xipos")[:, self._ids])

    @fresh
    def body_com_quat_w(self) -> torch.Tensor:
        return quat_mul(self.body_link_quat_w, self._inertial_quat, self._order)

    body_com_pose_w = joined("body_com_pos_w", "body_com_quat_w")

    @fresh
    def body_com_vel_w(self) -> torch.Tensor:
        return self._velocity("xipos", self._ids, self._tree)

    body_state_w = joined("body_link_pose_w", "body_com_vel_w")
    body_link_state_w = joined("body_link_pose_w", "body_link_vel_w")
    body_com_state_w = joined("body_com_pose_w", "body_com_vel_w")
    # Parts and aliases ------------------------------------------------------------------------------------------------

    root_link_lin_vel_w = linear("root_link_vel_w")
    root_link_ang_vel_w = angular("root_link_vel_w")
    root_com_lin_vel_w = linear("root_com_vel_w")
    root_com_ang_vel_w = angular("root_com_vel_w")
    root_link_ang_vel_b = alias("root_com_ang_vel_b")
    root_pose_w = alias("root_link_pose_w")
    root_pos_w = alias("root_link_pos_w")
    root_quat_w = alias("root_link_quat_w")
    root_vel_w = alias("root_com_vel_w")
    root_lin_vel_w = alias("root_com_lin_vel_w")
    root_ang_vel_w = alias("root_com_ang_vel_w")
    root_lin_vel_b = alias("root_com_lin_vel_b")
    root_ang_vel_b = alias("root_com_ang_vel_b")
    body_link_lin_vel_w = linear("body_link_vel_w")
    body_link_ang_vel_w = angular("body_link_vel_w")
    body_com_lin_vel_w = linear("body_com_vel_w")
    body_com_ang_vel_w = angular("body_com_vel_w")
    body_pose_w = alias("body_link_pose_w")
    body_pos_w = alias("body_link_pos_w")
    body_quat_w = alias("body_link_quat_w")
    body_vel_w = alias("body_com_vel_w")
    body_lin_vel_w = alias("body_com_lin_vel_w")
    body_ang_vel_w = alias("body_com_ang_vel_w")

    def _live_root_pos(self) -> torch.Tensor:
        return single(self._xpos[:, self._root])

    def _live_root_quat(self) -> torch.Tensor:
        return ordered(self._xquat[:, self._root], self._order)

    def body_pos(self, body: int) -> NDArray[np.float64]:
        """[N, 3] m, world frame, of the link of one body: live, until the next step."""
        self._sim.forward()
        return self._xpos[:, self._body_ids[body]]

    def body_quat_wxyz(self, body: int) -> NDArray[np.float64]:
        """[N, 4] likewise, its orientation in MuJoCo's order."""
        self._sim.forward()
        return self._xquat[:, self._body_ids[body]]

    def _to_root(self, vectors: torch.Tensor) -> torch.Tensor:
        return quat_apply_inverse(self.root_link_quat_w, vectors, self._order)

    def _velocity(self, point: str, ids: Any, tree: Any) -> torch.Tensor:
        """Velocity of bodies at one of their points; MuJoCo's `cvel` is that at the centre of mass of their tree."""
        field = self._sim.field
        cvel, centre = field("cvel"), field("subtree_com")
        spatial = cvel[:, ids]
        angular, linear = spatial[..., :3], spatial[..., 3:]
        arm = field(point)[:, ids] - centre[:, tree]
        return torch.cat([linear + torch.linalg.cross(angular, arm), angular], dim=-1).float()
