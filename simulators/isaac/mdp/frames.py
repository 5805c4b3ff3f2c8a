"""Poses of bodies in a robot's root frame, computed once per state for all terms."""

import numpy as np
import torch
from numpy.typing import NDArray

from simulators.isaac.body_state import single
from simulators.isaac.env_base import EnvBase
from simulators.isaac.kernels import row_squares
from simulators.isaac.math import quat_apply_inverse
from simulators.isaac.rotations import angle_between, multiply, reorder


def in_root_frame(env: EnvBase, robot: str, entity: str, body: int = 0) -> torch.Tensor:
    """[N, 3] position (m) of a body of `entity`, its root if none is named, in the frame of the root of `robot`."""

    def compute() -> torch.Tensor:
        root, pos = env.scene[robot].data, single(env.scene[entity].data.body_pos(body))
        return pos if root.at_origin else quat_apply_inverse(root.root_quat_w, pos - root.root_pos_w)

    return env.once(("in_root_frame", robot, entity, body), compute)


def distance(a: NDArray[np.floating], b: NDArray[np.floating]) -> NDArray[np.floating]:
    """[N] between points [N, 3]."""
    return np.sqrt(row_squares(a, b))


def angle_to(env: EnvBase, robot: str, body: int, goal: torch.Tensor) -> NDArray[np.floating]:
    """[N] angle (rad, 0 to pi) of a body of `robot` to orientations [N, 4] in its root frame."""
    data = env.scene[robot].data
    wanted = reorder(goal.numpy(), env.quaternion, "wxyz")
    if not data.at_origin:
        wanted = multiply(data.body_quat_wxyz(0), wanted)
    return angle_between(data.body_quat_wxyz(body), wanted)
