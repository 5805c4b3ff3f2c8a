"""Quaternions of both orders against MuJoCo's functions."""

import inspect
import math

import mujoco
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from embodied.errors import ConfigError
from simulators.isaac import math as m
from simulators.isaac.math import quat_apply, quat_unique
from simulators.isaac.quaternion import present_order, quaternion_order
from simulators.isaac.utils import math as front

ORDERS = ("xyzw", "wxyz")
orders = st.sampled_from(ORDERS)
seeds = st.integers(0, 2**31)


def draw(seed: int, count: int = 5) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Two rows of unit quaternions, wxyz, and vectors."""
    rng = np.random.default_rng(seed)
    q = rng.normal(size=(2, count, 4))
    q /= np.linalg.norm(q, axis=-1, keepdims=True)
    return q[0], q[1], rng.normal(size=(count, 3))


def given_as(quat: np.ndarray, order: str) -> torch.Tensor:
    tensor = torch.from_numpy(quat)
    return tensor if order == "wxyz" else m.convert_quat(tensor, "xyzw")


def as_wxyz(quat: torch.Tensor, order: str) -> np.ndarray:
    return (quat if order == "wxyz" else m.convert_quat(quat, "wxyz")).numpy()


def rotated(quat: np.ndarray, vec: np.ndarray) -> np.ndarray:
    out = np.zeros_like(vec)
    for i in range(len(vec)):
        mujoco.mju_rotVecQuat(out[i], vec[i], quat[i])
    return out


@settings(max_examples=40, deadline=None)
@given(seeds, orders)
def test_products_and_rotations_equal_mujocos(seed, order):
    a, b, vec = draw(seed)
    qa, qb, v = given_as(a, order), given_as(b, order), torch.from_numpy(vec)
    product, inverse = np.zeros_like(a), np.zeros_like(a)
    for i in range(len(a)):
        mujoco.mju_mulQuat(product[i], a[i], b[i])
        mujoco.mju_negQuat(inverse[i], a[i])
    assert np.allclose(as_wxyz(m.quat_mul(qa, qb, order), order), product)
    assert np.allclose(as_wxyz(m.quat_conjugate(qa, order), order), inverse)
    assert np.allclose(as_wxyz(m.quat_inv(2.0 * qa, order), order), inverse / 2.0)
    assert np.allclose(m.quat_apply(qa, v, order), rotated(a, vec))
    assert np.allclose(m.quat_apply_inverse(qa, v, order), rotated(inverse, vec))
    assert np.allclose(m.quat_apply(qa[0], v, order), rotated(np.repeat(a[:1], 5, 0), vec)), "broadcast"
    assert np.allclose((m.matrix_from_quat(qa, order) @ v[..., None])[..., 0], rotated(a, vec))


@settings(max_examples=40, deadline=None)
@given(seeds, orders)
def test_frame_transforms_invert_each_other(seed, order):
    a, b, vec = draw(seed)
    qa, qb, t1, t2 = given_as(a, order), given_as(b, order), torch.from_numpy(vec), torch.from_numpy(vec[::-1].copy())
    t02, q02 = m.combine_frame_transforms(t1, qa, t2, qb, order)
    assert np.allclose(t02, vec + rotated(a, vec[::-1]))
    back = m.subtract_frame_transforms(t1, qa, t02, q02, order)
    assert torch.allclose(back[0], t2) and torch.allclose(back[1], qb)
    assert m.combine_frame_transforms(t1, qa, order=order) == (t1, qa)
    pos, turn = m.compute_pose_error(t1, qa, t02, q02, order=order)
    assert torch.allclose(pos, t02 - t1)
    angle = m.quat_error_magnitude(qa, q02, order)
    assert torch.allclose(turn.norm(dim=-1), angle, atol=1e-6) and (angle <= math.pi + 1e-9).all()
    assert torch.allclose(m.quat_box_minus(q02, qa, order), turn)
    around = m.quat_from_angle_axis(turn.norm(dim=-1), turn, order)
    assert torch.allclose(m.quat_unique(m.quat_mul(around, qa, order), order), m.quat_unique(q02, order), atol=1e-6)


@settings(max_examples=40, deadline=None)
@given(seeds, orders)
def test_euler_angles_equal_mujocos(seed, order):
    angles = np.random.default_rng(seed).uniform(-1.5, 1.5, (4, 3))
    expected = np.zeros((4, 4))
    for row, euler in zip(expected, angles, strict=True):
        mujoco.mju_euler2Quat(row, euler, "XYZ")
    quat = m.quat_from_euler_xyz(*torch.from_numpy(angles).T, order)
    assert np.allclose(np.abs((as_wxyz(quat, order) * expected).sum(-1)), 1.0)
    assert np.allclose(torch.stack(m.euler_xyz_from_quat(quat, order=order), -1), angles)
    yaw = torch.stack(m.euler_xyz_from_quat(m.yaw_quat(quat, order), order=order), -1)
    assert np.allclose(yaw[:, :2], 0.0) and np.allclose(yaw[:, 2], angles[:, 2])


def test_the_order_is_that_of_the_environment_at_work():
    quat = torch.tensor([[0.0, 0.0, 0.0, 1.0]])
    vec = torch.tensor([[1.0, 2.0, 3.0]])
    assert present_order() == "xyzw" and torch.equal(m.quat_apply(quat, vec), vec)
    with quaternion_order("wxyz"):
        assert torch.equal(m.quat_apply(quat, vec), torch.tensor([[-1.0, -2.0, 3.0]]))
        assert torch.equal(m.quat_apply(quat, vec, "xyzw"), vec)
        assert torch.equal(m.quat_identity(1), torch.tensor([[1.0, 0.0, 0.0, 0.0]]))
    assert present_order() == "xyzw" and front.quat_apply is m.quat_apply


def test_angles_wrap_and_values_scale_back():
    angles = torch.tensor([0.0, math.pi, -math.pi, 3.5 * math.pi, -7.0])
    wrapped = m.wrap_to_pi(angles)
    assert (wrapped.abs() <= math.pi + 1e-6).all() and torch.allclose(wrapped.cos(), angles.cos(), atol=1e-5)
    low, high = torch.tensor([-2.0]), torch.tensor([4.0])
    x = torch.tensor([[-2.0], [1.0], [4.0]])
    assert m.scale_transform(x, low, high).flatten().tolist() == [-1.0, 0.0, 1.0]
    assert torch.equal(m.unscale_transform(m.scale_transform(x, low, high), low, high), x)
    assert m.saturate(2 * x, low, high).flatten().tolist() == [-2.0, 2.0, 4.0]
    assert torch.allclose(
        m.axis_angle_from_quat(torch.tensor([[1e-9, 0.0, 0.0, 1.0]])), torch.tensor([[2e-9, 0.0, 0.0]])
    )


@pytest.mark.parametrize("sample", [m.sample_uniform, m.sample_gaussian])
def test_samples_repeat(sample):
    def drawn():
        return sample(1.0, 2.0, (1000, 2), generator=torch.Generator().manual_seed(3))

    assert torch.equal(drawn(), drawn()) and drawn().shape == (1000, 2)
    assert sample(torch.zeros(3), torch.ones(3), (5, 3), "cpu").shape == (5, 3) and sample(0.0, 1.0, 4).shape == (4,)


SCRIPTED = [
    name
    for name, function in vars(m).items()
    if inspect.isfunction(function) and function.__module__ == m.__name__ and not name.startswith(("_", "sample"))
]


@pytest.mark.parametrize("name", SCRIPTED)
def test_torchscript_can_call_it(name):
    torch.jit.script(getattr(m, name))


@torch.jit.script
def turned(quat: torch.Tensor, vec: torch.Tensor) -> torch.Tensor:
    return quat_apply(quat_unique(quat), vec)


def test_scripted_functions_follow_the_order_of_the_environment():
    half = torch.tensor([[1.0, 0.0, 0.0, 0.0]])
    vec = torch.tensor([[0.0, 0.0, 1.0]])
    for order, z in (("xyzw", -1.0), ("wxyz", 1.0)):
        with quaternion_order(order):
            assert turned(half, vec).tolist() == [[0.0, 0.0, z]]
            assert torch.equal(turned(half, vec), m.quat_apply(half, vec))


def test_forms_of_isaac_lab():
    quat = m.quat_from_euler_xyz(torch.tensor([-0.5]), torch.tensor([0.25]), torch.tensor([-3.0]))
    angles = m.euler_xyz_from_quat(quat, wrap_to_2pi=True)
    torch.testing.assert_close(torch.cat(angles), torch.tensor([2 * np.pi - 0.5, 0.25, 2 * np.pi - 3.0]))
    assert torch.equal(m.matrix_from_quat(quaternions=quat), m.matrix_from_quat(quat))
    assert m.convert_quat(torch.tensor([1.0, 2.0, 3.0, 4.0])).tolist() == [2.0, 3.0, 4.0, 1.0]
    assert m.convert_quat(np.array([[1.0, 2.0, 3.0, 4.0]]), to="wxyz").tolist() == [[4.0, 1.0, 2.0, 3.0]]
    with pytest.raises(ConfigError, match="did you mean xyzw"):
        m.convert_quat(quat, to="xyzz")
