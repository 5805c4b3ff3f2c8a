"""Positions in a robot's root frame, computed once per state however many terms of a task ask for them."""

from typing import TYPE_CHECKING

import torch

from simulators.isaac.math import quat_apply_inverse

if TYPE_CHECKING:
    from simulators.isaac.env import ManagerBasedRLEnv


def in_root_frame(env: "ManagerBasedRLEnv", robot: str, entity: str, body: int = 0) -> torch.Tensor:
    """[N, 3] position (m) of a body of `entity`, its root if none is named, in the frame of the root of `robot`."""

    def compute() -> torch.Tensor:
        root = env.scene[robot].data
        return quat_apply_inverse(root.root_quat_w, env.scene[entity].data.body_pos_w[:, body] - root.root_pos_w)

    return env.once(("in_root_frame", robot, entity, body), compute)
