"""Free and articulated objects in a scene: their addresses in the simulator's fields; placement of free ones."""

from collections.abc import Sequence

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
        """Place it at `xy` [M, 2] m, at its height in the model, turned by `yaw` [M] rad; written to `qpos` [M, nq]."""
        qpos[:, self._pos.start : self._z] = xy
        qpos[:, self._quat] = 0.0
        qpos[:, self._quat.start], qpos[:, self._quat.stop - 1] = np.cos(yaw / 2), np.sin(yaw / 2)


class JointedObject:
    """A part that moves along or about one joint, such as a button or a drawer, and the point where a hand takes it.

    `pos` needs `site_xpos` among the task's fields, which every arm has.

    Args:
        model: The compiled scene.
        joint: Name of its slide or hinge.
        site: Name of the site at the point.
    """

    def __init__(self, model: mujoco.MjModel, joint: str, site: str) -> None:
        self._at, self._speed = int(model.joint(joint).qposadr[0]), int(model.joint(joint).dofadr[0])
        self._site = model.site(site).id

    def pos(self, fields: Fields) -> Array:
        """[B, 3] m, the point."""
        return fields["site_xpos"][:, self._site]

    def moved(self, fields: Fields) -> Array:
        """[B] m or rad along the joint."""
        return fields["qpos"][:, self._at]

    def speed(self, fields: Fields) -> Array:
        """[B] m/s or rad/s along the joint."""
        return fields["qvel"][:, self._speed]


def positions(objects: Sequence[FreeObject], fields: Fields) -> Array:
    """[B, K, 3] m of K objects."""
    return np.stack([thing.pos(fields) for thing in objects], axis=1)


def spaced(u: Array, low: float, high: float, gap: float) -> Array:
    """[M, K] ascending numbers between `low` and `high` at least `gap` apart, from uniform numbers [M, K].

    All such arrangements are equally likely: sorted uniform numbers divide the interval less the gaps.
    """
    gaps = gap * np.arange(u.shape[1])
    places: Array = low + (high - low - gaps[-1]) * np.sort(u, axis=1) + gaps
    return places


def shuffled(u: Array, values: Array) -> Array:
    """`values` [M, K, ...], each row in an order drawn by uniform numbers `u` [M, K]."""
    return values[np.arange(len(u))[:, None], np.argsort(u, axis=1)]
