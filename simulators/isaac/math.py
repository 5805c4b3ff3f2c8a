"""Rotations, frames and sampling, batched in torch, under the names of Isaac Lab's `utils.math`.

Quaternions are [..., 4] unit quaternions in the order that `order` says; by default that of the environment that is
being stepped or reset (`quaternion.present_order`), `xyzw` outside of one. A rotation takes vectors of the second
frame into the first. All functions but those that sample can be called from TorchScript. Formulas: J. Diebel,
"Representing Attitude: Euler Angles, Unit Quaternions, and Rotation Vectors", 2006.
"""

import math
from collections.abc import Sequence

import numpy as np
import torch

from simulators.isaac.quaternion import ORDERS, Order, check_order, present_order

Tensor = torch.Tensor
Shape = Sequence[int] | int


def _constants(order: Order) -> tuple[Tensor, Tensor]:
    """[4] signs of the conjugate, and [16, 4] weights of products of components in a quaternion product."""
    x, y, z, w = (0, 1, 2, 3) if order == "xyzw" else (1, 2, 3, 0)
    sign = torch.full((4,), -1.0)
    sign[w] = 1.0
    product = torch.zeros(4, 4, 4)
    for i, j, k, value in (
        *((w, i, i, 1.0) for i in (w, x, y, z)),
        *((i, w, i, 1.0) for i in (x, y, z)),
        *((i, i, w, -1.0) for i in (x, y, z)),
        *((i, j, k, 1.0) for i, j, k in ((x, y, z), (y, z, x), (z, x, y))),
        *((j, i, k, -1.0) for i, j, k in ((x, y, z), (y, z, x), (z, x, y))),
    ):
        product[i, j, k] = value
    return sign, product.reshape(16, 4)


_CONJUGATE: dict[str, Tensor] = {order: _constants(order)[0] for order in ORDERS}
_PRODUCT: dict[str, Tensor] = {order: _constants(order)[1] for order in ORDERS}


def _euler(order: Order) -> Tensor:
    """[8, 4] weights of products of yaw's, pitch's and roll's cosine or sine in a quaternion."""
    axes = [3, 2, 1, 0] if order == "xyzw" else [0, 3, 2, 1]
    w, z, y, x = (torch.eye(4)[axis] for axis in axes)

    def times(p: Tensor, q: Tensor) -> Tensor:
        return (p[:, None] * q).flatten() @ _PRODUCT[order]

    return torch.stack([times(times(p, q), r) for p in (w, z) for q in (w, y) for r in (w, x)])


_EULER: dict[str, Tensor] = {order: _euler(order) for order in ORDERS}


@torch.jit.ignore
def _order(order: str | None) -> str:
    """The order given, or that of the environment at work; this and the next three are Python in TorchScript too."""
    return order or present_order()


@torch.jit.ignore
def _conjugate(order: str | None) -> Tensor:
    return _CONJUGATE[order or present_order()]


@torch.jit.ignore
def _product(order: str | None) -> Tensor:
    return _PRODUCT[order or present_order()]


@torch.jit.ignore
def _euler_products(order: str | None) -> Tensor:
    return _EULER[order or present_order()]


def _xyz(q: Tensor, order: str | None) -> Tensor:
    return q[..., :3] if _order(order) == "xyzw" else q[..., 1:]


def _w(q: Tensor, order: str | None) -> Tensor:
    """[..., 1]"""
    return q[..., 3:] if _order(order) == "xyzw" else q[..., :1]


def _join(xyz: Tensor, w: Tensor, order: str | None) -> Tensor:
    return torch.cat([xyz, w] if _order(order) == "xyzw" else [w, xyz], dim=-1)


def convert_quat(quat: Tensor, to: str = "xyzw") -> Tensor:
    """`quat`, a tensor or a numpy array, in the order `to`, given in the other one."""
    if not torch.jit.is_scripting():
        check_order(to, "convert_quat")
        if isinstance(quat, np.ndarray):
            return np.roll(quat, -1 if to == "xyzw" else 1, -1)
    return quat.roll(-1, -1) if to == "xyzw" else quat.roll(1, -1)


def normalize(x: Tensor, eps: float = 1e-9) -> Tensor:
    """`x` [..., K] of length one."""
    return x / torch.linalg.vector_norm(x, dim=-1, keepdim=True).clamp(min=eps)


def wrap_to_pi(angles: Tensor) -> Tensor:
    """Angles, rad, moved to [-pi, pi); pi itself stays."""
    wrapped = (angles + math.pi) % (2 * math.pi) - math.pi
    return torch.where((wrapped == -math.pi) & (angles > 0), math.pi, wrapped)


def quat_identity(count: int, order: str | None = None) -> Tensor:
    """[count, 4] no rotation."""
    return _join(torch.zeros(count, 3), torch.ones(count, 1), order)


def quat_unique(q: Tensor, order: str | None = None) -> Tensor:
    """The one of ±q with w >= 0."""
    return torch.where(_w(q, order) < 0, -q, q)


def quat_conjugate(q: Tensor, order: str | None = None) -> Tensor:
    """The inverse of unit quaternions."""
    return q * _conjugate(order).to(q.dtype)


def quat_inv(q: Tensor, order: str | None = None) -> Tensor:
    """The inverse, of quaternions of any length."""
    return quat_conjugate(q, order) / q.square().sum(dim=-1, keepdim=True).clamp(min=1e-9)


def quat_mul(q1: Tensor, q2: Tensor, order: str | None = None) -> Tensor:
    """q1 after q2."""
    products = q1.unsqueeze(-1) * q2.unsqueeze(-2)
    return products.flatten(-2) @ _product(order).to(products.dtype)


def quat_apply(quat: Tensor, vec: Tensor, order: str | None = None) -> Tensor:
    """`vec` [..., 3] rotated."""
    return _rotate(quat, vec, order, 2.0)


def quat_apply_inverse(quat: Tensor, vec: Tensor, order: str | None = None) -> Tensor:
    """`vec` [..., 3] rotated back."""
    return _rotate(quat, vec, order, -2.0)


def _rotate(quat: Tensor, vec: Tensor, order: str | None, twice: float) -> Tensor:
    """v + 2 w (u x v) + 2 u x (u x v); with -2 w for the inverse. Few operations, since each has overhead."""
    if _order(order) == "xyzw":
        xyz, w = quat[..., :3], quat[..., 3:]
    else:
        xyz, w = quat[..., 1:], quat[..., :1]
    if xyz.shape != vec.shape:
        xyz, vec = torch.broadcast_tensors(xyz, vec)
    once = torch.linalg.cross(xyz, vec)
    turned = torch.linalg.cross(xyz, once).mul_(2.0)
    return turned.addcmul_(w, once, value=twice).add_(vec)


quat_rotate = quat_apply
quat_rotate_inverse = quat_apply_inverse


def yaw_quat(quat: Tensor, order: str | None = None) -> Tensor:
    """The part of a rotation that is about the vertical."""
    x, y, z = _xyz(quat, order).unbind(-1)
    w = _w(quat, order)[..., 0]
    yaw = torch.atan2(2 * (w * z + x * y), 1 - 2 * (y * y + z * z))
    zero = torch.zeros_like(yaw)
    return quat_from_euler_xyz(zero, zero, yaw, order)


def quat_apply_yaw(quat: Tensor, vec: Tensor, order: str | None = None) -> Tensor:
    """`vec` rotated about the vertical only."""
    return quat_apply(yaw_quat(quat, order), vec, order)


def quat_from_angle_axis(angle: Tensor, axis: Tensor, order: str | None = None) -> Tensor:
    """Rotations by `angle` [...] rad about `axis` [..., 3]."""
    half = 0.5 * angle.unsqueeze(-1)
    return _join(normalize(axis) * half.sin(), half.cos(), order)


def axis_angle_from_quat(quat: Tensor, eps: float = 1e-6, order: str | None = None) -> Tensor:
    """[..., 3] rotation vectors, rad, of at most pi."""
    quat = quat_unique(quat, order)
    xyz = _xyz(quat, order)
    sine = torch.linalg.vector_norm(xyz, dim=-1, keepdim=True)
    half = torch.atan2(sine, _w(quat, order))
    factor = torch.where(sine > eps, 2.0 * half / sine.clamp(min=eps), 2.0 - half.square() / 3.0)
    return xyz * factor


def quat_error_magnitude(q1: Tensor, q2: Tensor, order: str | None = None) -> Tensor:
    """[...] angle between two orientations, rad, 0 to pi."""
    del order  # The angle of q1 * conj(q2) needs the components' pairing only.
    w = (q1 * q2).sum(dim=-1).abs()
    sine = (1.0 - w.square()).clamp(min=0.0).sqrt()
    return 2.0 * torch.atan2(sine, w)


def quat_box_minus(q1: Tensor, q2: Tensor, order: str | None = None) -> Tensor:
    """[..., 3] rotation vector, rad, that takes q2 to q1, in the outer frame."""
    return axis_angle_from_quat(quat_mul(q1, quat_conjugate(q2, order), order), order=order)


def quat_from_euler_xyz(roll: Tensor, pitch: Tensor, yaw: Tensor, order: str | None = None) -> Tensor:
    """Rotations about the fixed x, y and z axis in turn, rad: the product of three quaternions, yaw's first."""
    half = torch.stack(torch.broadcast_tensors(roll, pitch, yaw), dim=-1) * 0.5
    parts = torch.stack([half.cos(), half.sin()], dim=-1)
    products = parts[..., 2, :, None] * parts[..., 1, None, :]
    products = products.flatten(-2).unsqueeze(-1) * parts[..., 0, None, :]
    return products.flatten(-2) @ _euler_products(order).to(products.dtype)


def euler_xyz_from_quat(
    quat: Tensor, wrap_to_2pi: bool = False, order: str | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Roll, pitch and yaw, rad, in (-pi, pi] or [0, 2 pi): the inverse of `quat_from_euler_xyz`."""
    x, y, z = _xyz(quat, order).unbind(-1)
    w = _w(quat, order)[..., 0]
    roll = torch.atan2(2 * (w * x + y * z), 1 - 2 * (x * x + y * y))
    pitch = torch.asin((2 * (w * y - z * x)).clamp(-1.0, 1.0))
    yaw = torch.atan2(2 * (w * z + x * y), 1 - 2 * (y * y + z * z))
    if wrap_to_2pi:
        return roll % (2 * math.pi), pitch % (2 * math.pi), yaw % (2 * math.pi)
    return roll, pitch, yaw


def matrix_from_quat(quaternions: Tensor, order: str | None = None) -> Tensor:
    """[..., 3, 3]"""
    axes = torch.eye(3, dtype=quaternions.dtype)
    return quat_apply(quaternions.unsqueeze(-2), axes, order).transpose(-1, -2)


def combine_frame_transforms(
    t01: Tensor, q01: Tensor, t12: Tensor | None = None, q12: Tensor | None = None, order: str | None = None
) -> tuple[Tensor, Tensor]:
    """Pose of frame 2 in frame 0, from that of 1 in 0 and of 2 in 1; a missing pose is no motion."""
    t02 = t01 if t12 is None else t01 + quat_apply(q01, t12, order)
    return t02, q01 if q12 is None else quat_mul(q01, q12, order)


def subtract_frame_transforms(
    t01: Tensor, q01: Tensor, t02: Tensor | None = None, q02: Tensor | None = None, order: str | None = None
) -> tuple[Tensor, Tensor]:
    """Pose of frame 2 in frame 1, from those of 1 and 2 in 0; a missing pose is that of frame 0."""
    t12 = quat_apply_inverse(q01, -t01 if t02 is None else t02 - t01, order)
    q10 = quat_conjugate(q01, order)
    return t12, q10 if q02 is None else quat_mul(q10, q02, order)


def compute_pose_error(
    t01: Tensor, q01: Tensor, t02: Tensor, q02: Tensor, rot_error_type: str = "axis_angle", order: str | None = None
) -> tuple[Tensor, Tensor]:
    """From pose 1 to 2, in the outer frame: [..., 3] m, and a rotation vector (rad), or a quaternion for `quat`."""
    rotation = quat_mul(q02, quat_conjugate(q01, order), order)
    return t02 - t01, axis_angle_from_quat(rotation, order=order) if rot_error_type == "axis_angle" else rotation


def scale_transform(x: Tensor, lower: Tensor, upper: Tensor) -> Tensor:
    """`x` moved from [lower, upper] to [-1, 1]."""
    return (2.0 * x - lower - upper) / (upper - lower)


def unscale_transform(x: Tensor, lower: Tensor, upper: Tensor) -> Tensor:
    """`x` moved from [-1, 1] to [lower, upper]."""
    return 0.5 * ((upper - lower) * x + lower + upper)


def saturate(x: Tensor, lower: Tensor, upper: Tensor) -> Tensor:
    """`x` clipped to [lower, upper]."""
    return torch.clamp(x, lower, upper)


def sample_uniform(
    lower: Tensor | float,
    upper: Tensor | float,
    size: Shape,
    device: object = "cpu",
    generator: torch.Generator | None = None,
) -> Tensor:
    """Uniform numbers in [lower, upper) of shape `size`, from `generator` (`env.generator`) or torch's own."""
    shape = (size,) if isinstance(size, int) else tuple(size)
    return torch.rand(shape, generator=generator) * (upper - lower) + lower


def sample_gaussian(
    mean: Tensor | float,
    std: Tensor | float,
    size: Shape,
    device: object = "cpu",
    generator: torch.Generator | None = None,
) -> Tensor:
    """Normal numbers of shape `size`, from `generator` (`env.generator`) or torch's own."""
    shape = (size,) if isinstance(size, int) else tuple(size)
    return torch.randn(shape, generator=generator) * std + mean
