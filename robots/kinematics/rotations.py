"""Rotations as 3x3 matrices: from quaternions, axis and angle, and rotation vectors; the error between two."""

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def quat_to_matrix(quat: Array) -> Array:
    """[3, 3] rotation of a quaternion [4] wxyz of any length but zero."""
    w, x, y, z = quat / np.linalg.norm(quat)
    return np.array(
        [
            [1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)],
            [2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)],
            [2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)],
        ]
    )


def axis_rotation(axis: Array, angle: Array) -> Array:
    """Rotations [B, 3, 3] by `angle` [B] rad about a unit `axis` [3] (Rodrigues' formula)."""
    x, y, z = axis
    cross = np.array([[0.0, -z, y], [z, 0.0, -x], [-y, x, 0.0]])
    sin, cos = np.sin(angle)[:, None, None], np.cos(angle)[:, None, None]
    return np.eye(3) + sin * cross + (1.0 - cos) * (cross @ cross)


def rotvec_to_matrix(vectors: Array) -> Array:
    """[B, 3, 3] rotations of rotation vectors [B, 3] rad (Rodrigues' formula)."""
    angle = np.linalg.norm(vectors, axis=1)[:, None, None]
    x, y, z = (vectors / np.maximum(angle[:, 0], 1e-12)).T
    zero = np.zeros(len(vectors))
    cross = np.array([[zero, -z, y], [z, zero, -x], [-y, x, zero]]).transpose(2, 0, 1)
    return np.eye(3) + np.sin(angle) * cross + (1.0 - np.cos(angle)) * (cross @ cross)


def rotation_error(rot: Array, target: Array) -> Array:
    """[B, 3] rotation vector (rad, base frame) that turns `rot` [B, 3, 3] towards `target`, exact to first order.

    Half the sum of the cross products of the columns (J. Luh, M. Walker, R. Paul, "Resolved-acceleration control of
    mechanical manipulators", 1980): no singularity, sin of the angle for large ones.
    """
    return 0.5 * np.cross(rot, target, axis=1).sum(axis=2)
