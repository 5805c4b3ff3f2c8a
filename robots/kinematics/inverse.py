"""One step of inverse kinematics by damped least squares, for B postures at once.

The step is n + J^T (J J^T + damping^2 I)^-1 (e - J n) with the pose error e and a pull n towards the home posture,
which so acts in the null space only, but for the damping (S. R. Buss, "Introduction to Inverse Kinematics with
Jacobian Transpose, Pseudoinverse and Damped Least Squares methods", 2009).

The same arithmetic runs compiled by numba, an extra, one posture at a time, and in numpy, all postures at once. Both
do the same operations in the same order, so that both give the same bits, for any B.
"""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robots.kinematics.chain import Chain

try:
    from numba import njit
except ImportError:
    njit = None  # type: ignore[assignment]

Array = NDArray[np.float64]
Arrays = tuple[Array, ...]
_compiled: Any = njit(cache=True) if njit is not None else lambda function: function
_inlined: Any = njit(inline="always") if njit is not None else lambda function: function


def damped_step(
    chain: Chain, q: Array, target_pos: Array, target_rot: Array, damping: float = 0.03, pull: float = 0.1
) -> Array:
    """Joint positions one step nearer to a pose of the tip, within the joint limits.

    Args:
        chain: N joints.
        q: [B, N] rad, the present posture.
        target_pos: [B, 3] m, in the base frame.
        target_rot: [B, 3, 3], in the base frame.
        damping: Keeps the step bounded near singular postures.
        pull: Share of the way to the home posture that is taken in the null space.

    Returns:
        [B, N] rad.
    """
    if njit is None:
        return damped_step_numpy(chain, q, target_pos, target_rot, damping, pull)
    out = np.empty((len(q), len(chain)))
    q, target_pos, target_rot = (np.ascontiguousarray(values) for values in (q, target_pos, target_rot))
    _solve_rows(_geometry(chain), chain.lower, chain.upper, q, target_pos, target_rot, damping, pull, out)
    return out


def damped_step_numpy(
    chain: Chain, q: Array, target_pos: Array, target_rot: Array, damping: float, pull: float
) -> Array:
    """`damped_step` without numba, to the last bit."""
    count = len(q)
    out = np.empty((len(chain), count))
    # numpy's own sines may differ from those of the C library, which numba takes, in the last bit.
    sin, cos = (np.array([[f(angle) for angle in row] for row in q.T.tolist()]) for f in (math.sin, math.cos))
    n = len(chain)
    shapes = ((6, n), (n, 3), (3, 3), (3, 3), (3, 3), (3,), (6,), (n,), (6, 6))
    work = tuple(np.empty((*shape, count)) for shape in shapes)
    pos, rot = target_pos.T, target_rot.transpose(1, 2, 0)
    getattr(_solve, "py_func", _solve)(_geometry(chain), q.T, sin, cos, pos, rot, damping, pull, work, out)
    return np.minimum(np.maximum(out.T, chain.lower), chain.upper)


def _geometry(chain: Chain) -> Arrays:
    return chain.offset_pos, chain.offset_rot, chain.axis, chain.tip_pos, chain.tip_rot, chain.home


@_compiled
def _multiply(a: Array, b: Array, out: Array) -> None:
    """Product of two 3x3 matrices."""
    for i in range(3):
        for j in range(3):
            out[i, j] = a[i, 0] * b[0, j] + a[i, 1] * b[1, j] + a[i, 2] * b[2, j]


@_inlined
def _solve(
    geometry: Arrays, q: Array, sin: Array, cos: Array, goal_pos: Array, goal_rot: Array, damping: float, pull: float,
    work: Arrays, out: Array,
) -> None:  # fmt: skip
    """Write unclipped joint positions [N] to `out`; every number is a scalar (numba) or a vector [B] (numpy)."""
    offset_pos, offset_rot, axis, tip_pos, tip_rot, home = geometry
    jac, anchors, rot, turned, spin, pos, error, pulled, gram = work
    joints = axis.shape[0]
    for i in range(3):
        pos[i] = 0.0
        for j in range(3):
            rot[i, j] = 1.0 if i == j else 0.0
    for k in range(joints):
        for i in range(3):
            pos[i] += rot[i, 0] * offset_pos[k, 0] + rot[i, 1] * offset_pos[k, 1] + rot[i, 2] * offset_pos[k, 2]
        _multiply(rot, offset_rot[k], turned)
        x, y, z = axis[k, 0], axis[k, 1], axis[k, 2]
        for i in range(3):
            anchors[k, i] = pos[i]
            jac[3 + i, k] = turned[i, 0] * x + turned[i, 1] * y + turned[i, 2] * z
        s, c = sin[k], cos[k]
        v = 1.0 - c
        spin[0, 0], spin[0, 1], spin[0, 2] = c + x * x * v, x * y * v - z * s, x * z * v + y * s
        spin[1, 0], spin[1, 1], spin[1, 2] = x * y * v + z * s, c + y * y * v, y * z * v - x * s
        spin[2, 0], spin[2, 1], spin[2, 2] = x * z * v - y * s, y * z * v + x * s, c + z * z * v
        _multiply(turned, spin, rot)
    for i in range(3):
        pos[i] += rot[i, 0] * tip_pos[0] + rot[i, 1] * tip_pos[1] + rot[i, 2] * tip_pos[2]
    _multiply(rot, tip_rot, turned)

    for k in range(joints):
        rx, ry, rz = pos[0] - anchors[k, 0], pos[1] - anchors[k, 1], pos[2] - anchors[k, 2]
        jac[0, k] = jac[4, k] * rz - jac[5, k] * ry
        jac[1, k] = jac[5, k] * rx - jac[3, k] * rz
        jac[2, k] = jac[3, k] * ry - jac[4, k] * rx
        pulled[k] = pull * (home[k] - q[k])
    for i in range(3):
        n, m = (i + 1) % 3, (i + 2) % 3
        error[i] = goal_pos[i] - pos[i]
        error[3 + i] = 0.0
        for j in range(3):
            error[3 + i] += 0.5 * (turned[n, j] * goal_rot[m, j] - turned[m, j] * goal_rot[n, j])
    for i in range(6):
        for k in range(joints):
            error[i] -= jac[i, k] * pulled[k]

    # Cholesky factor of J J^T + damping^2 I in the lower triangle, then the two triangular solves, in place.
    for i in range(6):
        for j in range(i + 1):
            total = damping * damping if i == j else 0.0
            for k in range(joints):
                total += jac[i, k] * jac[j, k]
            for k in range(j):
                total -= gram[i, k] * gram[j, k]
            gram[i, j] = np.sqrt(total) if i == j else total / gram[j, j]
    for i in range(6):
        for k in range(i):
            error[i] -= gram[i, k] * error[k]
        error[i] /= gram[i, i]
    for i in range(5, -1, -1):
        for k in range(i + 1, 6):
            error[i] -= gram[k, i] * error[k]
        error[i] /= gram[i, i]

    for k in range(joints):
        for i in range(6):
            pulled[k] += jac[i, k] * error[i]
        out[k] = q[k] + pulled[k]


@_compiled
def _solve_rows(
    geometry: Arrays, lower: Array, upper: Array, q: Array, goal_pos: Array, goal_rot: Array, damping: float,
    pull: float, out: Array,
) -> None:  # fmt: skip
    """`_solve` for each row of B, clipped; for numba."""
    n = q.shape[1]
    sin, cos = np.empty(n), np.empty(n)
    work = (
        np.empty((6, n)), np.empty((n, 3)), np.empty((3, 3)), np.empty((3, 3)), np.empty((3, 3)), np.empty(3),
        np.empty(6), np.empty(n), np.empty((6, 6)),
    )  # fmt: skip
    for b in range(q.shape[0]):
        for k in range(n):
            sin[k], cos[k] = np.sin(q[b, k]), np.cos(q[b, k])
        _solve(geometry, q[b], sin, cos, goal_pos[b], goal_rot[b], damping, pull, work, out[b])
        for k in range(n):
            out[b, k] = min(max(out[b, k], lower[k]), upper[k])
