"""Forward kinematics and the geometric Jacobian of a serial chain, for B postures at once."""

import numpy as np
from numpy.typing import NDArray

from robots.kinematics.chain import Chain
from robots.kinematics.rotations import axis_rotation

Array = NDArray[np.float64]


def forward(chain: Chain, q: Array) -> tuple[Array, Array]:
    """Pose of the tip.

    Args:
        chain: N joints.
        q: [B, N] rad.

    Returns:
        Position [B, 3] m and rotation [B, 3, 3] in the base frame.
    """
    pos, rot, _, _ = frames(chain, q)
    return pos, rot


def jacobian(chain: Chain, q: Array) -> tuple[Array, Array, Array]:
    """Pose of the tip and its geometric Jacobian.

    Args:
        chain: N joints.
        q: [B, N] rad.

    Returns:
        Position [B, 3], rotation [B, 3, 3], and [B, 6, N]: linear (m/rad) above angular velocity per joint velocity,
        in the base frame.
    """
    pos, rot, anchors, axes = frames(chain, q)
    linear = np.cross(axes, pos[:, None] - anchors)
    return pos, rot, np.concatenate([linear, axes], axis=2).transpose(0, 2, 1).copy()


def frames(chain: Chain, q: Array) -> tuple[Array, Array, Array, Array]:
    """Tip position and rotation, and of each joint the anchor [B, N, 3] and the axis [B, N, 3] in the base frame."""
    count = len(q)
    pos, rot = np.zeros((count, 3)), np.broadcast_to(np.eye(3), (count, 3, 3))
    anchors, axes = np.empty((count, len(chain), 3)), np.empty((count, len(chain), 3))
    for j in range(len(chain)):
        pos = pos + rot @ chain.offset_pos[j]
        rot = rot @ chain.offset_rot[j]
        anchors[:, j], axes[:, j] = pos, rot @ chain.axis[j]
        rot = rot @ axis_rotation(chain.axis[j], q[:, j])
    return pos + rot @ chain.tip_pos, rot @ chain.tip_rot, anchors, axes
