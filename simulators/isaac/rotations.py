"""Quaternions in numpy, for terms called in every step and reset; MuJoCo's order wxyz unless stated otherwise.

Functions that would take numpy a dozen operations are compiled: after physics, the overhead of each exceeds its
arithmetic.
"""

import numpy as np
from numba import njit
from numpy.typing import NDArray

from simulators.isaac.quaternion import Order

Array = NDArray[np.floating]


def reorder(quat: Array, given: Order, wanted: Order) -> Array:
    """[..., 4] in another order of components; not copied if the order is the same."""
    if given == wanted:
        return quat
    return quat[..., [3, 0, 1, 2] if wanted == "wxyz" else [1, 2, 3, 0]]


def multiply(p: Array, q: Array) -> Array:
    """[n, 4] the rotation p after q."""
    a, b, c, d = p.T
    w, x, y, z = q.T
    product = (
        a * w - b * x - c * y - d * z,
        a * x + b * w + c * z - d * y,
        a * y - b * z + c * w + d * x,
        a * z + b * y - c * x + d * w,
    )
    return np.stack(product, axis=-1)


@njit(cache=True)
def from_euler(angles: Array) -> Array:
    """[n, 4] rotations about the fixed x, y and z axis in turn, by angles [n, 3] rad (Diebel 2006, as in `math`)."""
    quat = np.empty((angles.shape[0], 4), angles.dtype)
    for i in range(angles.shape[0]):
        roll, pitch, yaw = 0.5 * angles[i, 0], 0.5 * angles[i, 1], 0.5 * angles[i, 2]
        c, e, g, s, f, h = np.cos(roll), np.cos(pitch), np.cos(yaw), np.sin(roll), np.sin(pitch), np.sin(yaw)
        quat[i, 0] = c * e * g + s * f * h
        quat[i, 1] = s * e * g - c * f * h
        quat[i, 2] = c * f * g + s * e * h
        quat[i, 3] = c * e * h - s * f * g
    return quat


@njit(cache=True)
def angle_between(p: Array, q: Array) -> Array:
    """[n] rad, 0 to pi, between orientations. q need not be of length one, as float32 numbers are not."""
    angle = np.empty(p.shape[0])
    for i in range(p.shape[0]):
        cosine = length = 0.0
        for j in range(4):
            cosine += p[i, j] * q[i, j]
            length += np.float64(q[i, j]) * q[i, j]
        angle[i] = 2.0 * np.arctan2(np.sqrt(max(length - cosine * cosine, 0.0)), abs(cosine))
    return angle
