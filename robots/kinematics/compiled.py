"""The damped step compiled with numba: `inverse.damped_step_numpy` row by row, ten times faster at small batches."""

import numpy as np
from numba import njit
from numpy.typing import NDArray

from robots.kinematics.chain import Chain

Array = NDArray[np.float64]


def damped_step(chain: Chain, q: Array, target_pos: Array, target_rot: Array, damping: float, pull: float) -> Array:
    """As `inverse.damped_step_numpy`."""
    out = np.empty((len(q), len(chain)))
    q, target_pos, target_rot = (np.ascontiguousarray(values) for values in (q, target_pos, target_rot))
    _damped_steps(
        chain.offset_pos, chain.offset_rot, chain.axis, chain.tip_pos, chain.tip_rot, chain.lower, chain.upper,
        chain.home, q, target_pos, target_rot, damping, pull, out,
    )  # fmt: skip
    return out


@njit(cache=True)
def _multiply(a: Array, b: Array, out: Array) -> None:
    for i in range(3):
        for j in range(3):
            out[i, j] = a[i, 0] * b[0, j] + a[i, 1] * b[1, j] + a[i, 2] * b[2, j]


@njit(cache=True)
def _damped_steps(
    offset_pos: Array, offset_rot: Array, axis: Array, tip_pos: Array, tip_rot: Array, lower: Array, upper: Array,
    home: Array, qs: Array, target_pos: Array, target_rot: Array, damping: float, pull: float, out: Array,
) -> None:  # fmt: skip
    joints = axis.shape[0]
    jac, anchors = np.empty((6, joints)), np.empty((joints, 3))
    rot, turned, spin = np.empty((3, 3)), np.empty((3, 3)), np.empty((3, 3))
    pos, error, pulled = np.empty(3), np.empty(6), np.empty(joints)
    gram = np.empty((6, 6))
    for b in range(qs.shape[0]):
        q = qs[b]
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
            s, c = np.sin(q[k]), np.cos(q[k])
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
        goal = target_rot[b]
        for i in range(3):
            n, m = (i + 1) % 3, (i + 2) % 3
            error[i] = target_pos[b, i] - pos[i]
            error[3 + i] = 0.0
            for j in range(3):
                error[3 + i] += 0.5 * (turned[n, j] * goal[m, j] - turned[m, j] * goal[n, j])
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
            step = pulled[k]
            for i in range(6):
                step += jac[i, k] * error[i]
            out[b, k] = min(max(q[k] + step, lower[k]), upper[k])
