"""Quaternions in numpy, for the terms that every step and every reset calls. wxyz, as MuJoCo has them, unless said."""

import numpy as np
from numpy.typing import NDArray

from simulators.isaac.quaternion import Order

Array = NDArray[np.floating]


def reorder(quat: Array, given: Order, wanted: Order) -> Array:
    """[..., 4] in another order of components; not copied where it is the same."""
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


def from_euler(angles: Array) -> Array:
    """[n, 4] rotations about the fixed x, y and z axis in turn, by angles [n, 3] rad (Diebel 2006, section 5.6)."""
    half = 0.5 * angles.T
    (c, e, g), (s, f, h) = np.cos(half), np.sin(half)
    product = (
        c * e * g + s * f * h,
        s * e * g - c * f * h,
        c * f * g + s * e * h,
        c * e * h - s * f * g,
    )
    return np.stack(product, axis=-1)


def angle_between(p: Array, q: Array) -> Array:
    """[n] rad, 0 to pi, between orientations. q need not be of length one, as float32 numbers are not."""
    cosine = (p * q).sum(axis=1)
    sine = np.sqrt(np.maximum((q * q).sum(axis=1, dtype=np.float64) - cosine * cosine, 0.0))
    return 2.0 * np.arctan2(sine, np.abs(cosine))
