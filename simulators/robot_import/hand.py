"""Hand of a robot, measured: its fingers at both ends, the point between them, and the frame of the end effector."""

from collections.abc import Sequence
from typing import NamedTuple

import mujoco
import numpy as np
from numpy.typing import NDArray

from embodied.errors import ConfigError

Array = NDArray[np.float64]
INSIDE_M = 0.012
"""Distance of the end effector from the finger tips."""
STILL_M = 0.003


class Hand(NamedTuple):
    """A gripper as measured, in the frame of the body that carries it.

    Attributes:
        pos: [3] m, point between the pads.
        rot: [3, 3], x, y, z as columns: z is the approach, y the closing direction.
        low: m, distance of the finger tips beyond the point, along the approach.
        opened, closed: [G] positions of the driven joints.
        linkage_open, linkage_closed: [L] positions of the other joints of the gripper.
        width: (closed, open) m between the pads.
        pads: Names of the two geoms that meet an object.
    """

    pos: Array
    rot: Array
    low: float
    opened: Array
    closed: Array
    linkage_open: Array
    linkage_closed: Array
    width: tuple[float, float]
    pads: tuple[int, int]


def measure(
    model: mujoco.MjModel, palm: str, drivers: Sequence[str], linkage: Sequence[str], site: str, where: str
) -> Hand:
    """Close and open a gripper in the simulator.

    Args:
        model: The robot ready for a scene; written to.
        palm: Body that carries the hand.
        drivers: Driven joints of the gripper.
        linkage: Its other joints.
        site: Site between the pads; empty to find the point.
        where: File, for errors.

    Raises:
        ConfigError: No two fingers move towards each other, or nothing is there to hold between them.
    """
    model.opt.gravity[:] = 0.0
    model.geom_group[model.geom_contype == 0] = 5
    carrier = model.body(palm).id
    ends = [_driven(model, drivers, share) for share in (0.0, 1.0)]
    frames = [_in_body(model, data, carrier)[0] for data in ends]
    travel = np.linalg.norm(frames[1] - frames[0], axis=1)
    moving = np.flatnonzero((model.geom_contype > 0) & (travel > STILL_M))
    if not len(moving):
        raise ConfigError("its fingers do not move", where, "name the gripper's joints to actuators, and check them")
    sides = [pair for at in frames if (pair := _sides(at, frames[1] - frames[0], moving)) is not None]
    if not sides and not site:
        raise ConfigError("one jaw moves alone", where, "give ee=SITE, a site between the pads, z away from the palm")
    if site:
        point, approach = _site(model, ends[0], site, carrier)
    if sides:
        apart = [float(np.linalg.norm(left - right)) for left, right in sides]
    else:  # a jaw that moves against a fixed one
        apart = [float(np.linalg.norm(at[moving].mean(0) - point)) for at in frames]
    opened = int(apart[1] > apart[0])
    closed = ends[1 - opened]
    # A swinging jaw leaves its arc's chord: the closing direction is that of the last quarter of the way.
    near = _in_body(model, _driven(model, drivers, 0.25 if opened else 0.75), carrier)[0]
    across = _closing(near - frames[1 - opened], moving)
    if site:
        across -= (across @ approach) * approach
        across /= np.linalg.norm(across)
    else:
        data = ends[opened]
        at, corners = _in_body(model, data, carrier)
        along = at[moving].mean(0)
        along -= (along @ across) * across
        approach = np.eye(3)[np.abs(along).argmax()] * np.sign(along[np.abs(along).argmax()])
        approach -= (approach @ across) * across
        approach /= np.linalg.norm(approach)
        tips = corners[moving].reshape(-1, 3)
        point = (sides[opened][0] + sides[opened][1]) / 2
        point += ((tips @ approach).max() - INSIDE_M - point @ approach) * approach
    rot = np.stack([np.cross(across, approach), across, approach], axis=1)
    # As wide as the range allows, but with the pads still beside the point.
    for share in (1.0, 0.75, 0.5, 0.35, 0.25):
        data = _driven(model, drivers, share if opened else 1.0 - share)
        if (found := _pads(model, data, carrier, point, across)) is not None:
            break
    else:
        fix = "give ee=SITE, a site between the pads whose z axis points away from the palm"
        raise ConfigError("no pads are beside the end effector", where, fix)
    pads, gap = found
    corners = _in_body(model, data, carrier)[1][model.geom_contype > 0]
    low = max(float((corners.reshape(-1, 3) @ approach).max() - point @ approach), 0.0)
    between = np.zeros(6)
    shut = mujoco.mj_geomDistance(model, closed, *pads, 1.0, between)
    return Hand(
        point,
        rot,
        low,
        _positions(model, data, drivers),
        _positions(model, closed, drivers),
        _positions(model, data, linkage),
        _positions(model, closed, linkage),
        (max(float(shut), 0.0), gap),
        pads,
    )


def _sides(at: Array, shift: Array, moving: NDArray[np.intp]) -> tuple[Array, Array] | None:
    """Middles of the geoms that move one way and of those that move the other; None if all move alike."""
    alike = shift[moving] @ _closing(shift, moving) > 0
    return None if alike.all() else (at[moving[alike]].mean(0), at[moving[~alike]].mean(0))


def _closing(shift: Array, moving: NDArray[np.intp]) -> Array:
    """Unit vector along which the geom that moves most goes, against the one that moves most the other way."""
    most = shift[moving[np.argmax(np.linalg.norm(shift[moving], axis=1))]]
    other = shift[moving[np.argmin(shift[moving] @ most)]]
    across = most - other if most @ other < 0 else most.copy()
    return np.asarray(across / np.linalg.norm(across))


def _site(model: mujoco.MjModel, data: mujoco.MjData, site: str, body: int) -> tuple[Array, Array]:
    """Position and z axis of a site in the frame of a body."""
    index, turn = model.site(site).id, data.xmat[body].reshape(3, 3)
    point = turn.T @ (data.site_xpos[index] - data.xpos[body])
    return point, (turn.T @ data.site_xmat[index].reshape(3, 3))[:, 2]


def _driven(model: mujoco.MjModel, drivers: Sequence[str], share: float) -> mujoco.MjData:
    """The model after its gripper went to a share of its range, 0 for the lower end."""
    data = mujoco.MjData(model)
    for index in range(model.nu):
        data.ctrl[index] = data.qpos[model.jnt_qposadr[model.actuator_trnid[index, 0]]]
    for name in drivers:
        low, high = model.joint(name).range
        data.ctrl[model.actuator(name).id] = low + share * (high - low)
    mujoco.mj_step(model, data, nstep=600)
    mujoco.mj_forward(model, data)
    return data


def _positions(model: mujoco.MjModel, data: mujoco.MjData, names: Sequence[str]) -> Array:
    return np.array([data.qpos[model.joint(name).qposadr[0]] for name in names])


def _in_body(model: mujoco.MjModel, data: mujoco.MjData, body: int) -> tuple[Array, Array]:
    """Centres [N, 3] and corners [N, 8, 3] of all geoms' boxes in the frame of a body."""
    rot = data.geom_xmat.reshape(-1, 3, 3)
    signs = np.array([[x, y, z] for x in (-1, 1) for y in (-1, 1) for z in (-1, 1)], float)
    local = model.geom_aabb[:, None, :3] + signs * model.geom_aabb[:, None, 3:]
    corners = data.geom_xpos[:, None] + np.einsum("nij,nkj->nki", rot, local)
    corners = (corners - data.xpos[body]) @ data.xmat[body].reshape(3, 3)
    return corners.mean(axis=1), corners


def _pads(
    model: mujoco.MjModel, data: mujoco.MjData, body: int, point: Array, across: Array
) -> tuple[tuple[int, int], float] | None:
    """The colliding geoms on both sides of a point and the distance between them, m; None if a side is free."""
    turn, hits, gap = data.xmat[body].reshape(3, 3), [], 0.0
    groups = np.array([1, 1, 1, 1, 1, 0], np.uint8)
    for sign in (-1.0, 1.0):
        found = np.full((1, 1), -1, np.int32)
        start, way = data.xpos[body] + turn @ point, turn @ (sign * across)
        distance = mujoco.mj_ray(model, data, start, way, groups, 1, -1, found)
        if distance < 0:
            return None
        hits.append(int(found.ravel()[0]))
        gap += float(distance)
    return (hits[0], hits[1]), gap
