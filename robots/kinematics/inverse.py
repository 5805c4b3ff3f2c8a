"""One step of inverse kinematics by damped least squares, for B postures at once.

The step is n + J^T (J J^T + damping^2 I)^-1 (e - J n) with the pose error e and a pull n towards the home posture,
which so acts in the null space only, but for the damping (S. R. Buss, "Introduction to Inverse Kinematics with
Jacobian Transpose, Pseudoinverse and Damped Least Squares methods", 2009).
"""

import numpy as np
from numpy.typing import NDArray

from robots.kinematics.chain import Chain
from robots.kinematics.forward import jacobian

try:
    from robots.kinematics import compiled
except ImportError:  # numba is an extra: without it the numpy functions do the same, slower
    compiled = None  # type: ignore[assignment]

Array = NDArray[np.float64]


def rotation_error(rot: Array, target: Array) -> Array:
    """[B, 3] rotation vector (rad, base frame) that turns `rot` [B, 3, 3] towards `target`, exact to first order.

    Half the sum of the cross products of the columns (J. Luh, M. Walker, R. Paul, "Resolved-acceleration control of
    mechanical manipulators", 1980): no singularity, sin of the angle for large ones.
    """
    return 0.5 * np.cross(rot, target, axis=1).sum(axis=2)


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
    if compiled is not None:
        return compiled.damped_step(chain, q, target_pos, target_rot, damping, pull)
    return damped_step_numpy(chain, q, target_pos, target_rot, damping, pull)


def damped_step_numpy(
    chain: Chain, q: Array, target_pos: Array, target_rot: Array, damping: float, pull: float
) -> Array:
    """`damped_step` without numba."""
    pos, rot, jac = jacobian(chain, q)
    error = np.concatenate([target_pos - pos, rotation_error(rot, target_rot)], axis=1)
    home = pull * (chain.home - q)
    error -= np.einsum("bij,bj->bi", jac, home)
    gram = jac @ jac.transpose(0, 2, 1) + damping**2 * np.eye(6)
    step = home + np.einsum("bij,bi->bj", jac, np.linalg.solve(gram, error[..., None])[..., 0])
    return np.clip(q + step, chain.lower, chain.upper)
