"""Free objects in a scene: where their numbers lie, and how starts place them."""

import mujoco
import numpy as np

from simulators.task import Array, Fields


class FreeObject:
    """A body with a free joint of its own name."""

    def __init__(self, model: mujoco.MjModel, name: str) -> None:
        joint = model.joint(name)
        at, velocity = int(joint.qposadr[0]), int(joint.dofadr[0])
        self._pos, self._quat = slice(at, at + 3), slice(at + 3, at + 7)
        self._z = at + 2
        self._vel = slice(velocity, velocity + 3)

    def pos(self, fields: Fields) -> Array:
        """[B, 3] m."""
        return fields["qpos"][:, self._pos]

    def height(self, fields: Fields) -> Array:
        """[B] z, m."""
        return fields["qpos"][:, self._z]

    def quat(self, fields: Fields) -> Array:
        """[B, 4] wxyz with w >= 0, so that one rotation has one value."""
        quat = fields["qpos"][:, self._quat]
        return np.where(quat[:, :1] < 0.0, -quat, quat)

    def vel(self, fields: Fields) -> Array:
        """[B, 3] m/s."""
        return fields["qvel"][:, self._vel]

    def place(self, qpos: Array, xy: Array, yaw: Array) -> None:
        """Put it at `xy` [M, 2] m, at the height it has in the model, turned by `yaw` [M] rad."""
        qpos[:, self._pos.start : self._z] = xy
        qpos[:, self._quat] = 0.0
        qpos[:, self._quat.start], qpos[:, self._quat.stop - 1] = np.cos(yaw / 2), np.sin(yaw / 2)
