"""Kinematic chain of any robot, read from the compiled model."""

import mujoco
import numpy as np
from numpy.typing import NDArray

from robots.kinematics.chain import Chain
from robots.kinematics.rotations import quat_to_matrix
from simulators.isaac.errors import ConfigError


def chain_of(
    model: mujoco.MjModel, root: str, body: str, tip_pos: NDArray[np.float64], tip_rot: NDArray[np.float64]
) -> Chain:
    """Chain of hinges from body `root`, the base frame, to a tip fixed to `body`; home is amid the limits.

    Args:
        model: The compiled scene.
        root: Name of the base body in the model.
        body: Name of the body that carries the tip.
        tip_pos: [3] m, the tip in the frame of `body`.
        tip_rot: [3, 3], likewise.

    Raises:
        ConfigError: `body` does not hang on `root`, or a joint between them is no limited hinge at its body's origin.
    """
    where = f"body {body}"
    branch: list[int] = []
    link, base = model.body(body).id, model.body(root).id
    while link != base:
        if link == 0:
            raise ConfigError(f"it does not hang on {root}", where, "name a body of the robot")
        branch.insert(0, link)
        link = int(model.body_parentid[link])
    joints, offsets, turns = [], [], []
    pos, rot = np.zeros(3), np.eye(3)
    for link in branch:
        pos, rot = pos + rot @ model.body_pos[link], rot @ quat_to_matrix(model.body_quat[link])
        for joint in range(model.body_jntadr[link], model.body_jntadr[link] + model.body_jntnum[link]):
            hinge = model.jnt_type[joint] == int(mujoco.mjtJoint.mjJNT_HINGE)
            if not hinge or model.jnt_pos[joint].any() or not model.jnt_limited[joint]:
                name = model.joint(joint).name
                raise ConfigError(f"{name} is no limited hinge at its body's origin", where, "use joint actions")
            joints.append(joint)
            offsets.append(pos)
            turns.append(rot)
            pos, rot = np.zeros(3), np.eye(3)
    if not joints:
        raise ConfigError("no joint moves it", where, "name a body of the arm")
    lower, upper = model.jnt_range[joints].T
    return Chain(
        tuple(model.joint(joint).name for joint in joints),
        np.array(offsets),
        np.array(turns),
        model.jnt_axis[joints].copy(),
        pos + rot @ tip_pos,
        rot @ tip_rot,
        lower.copy(),
        upper.copy(),
        np.full(len(joints), np.inf),
        0.5 * (lower + upper),
    )
