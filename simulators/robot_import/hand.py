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
    ends = [_at_end(model, drivers, upper) for upper in (False, True)]
    carrier = model.body(palm).id
    frames = [_in_body(model, data, carrier) for data in ends]
    shift = frames[1][0] - frames[0][0]
    below = model.geom_contype > 0
    moving = np.flatnonzero(below & (np.linalg.norm(shift, axis=1) > STILL_M))
    if len(moving) < 2:
        raise ConfigError("its fingers do not move", where, "name the gripper's joints to actuators, and check them")
    # The geom that moves most, and the one that moves most against it, give the closing direction.
    first = moving[np.argmax(np.linalg.norm(shift[moving], axis=1))]
    second = moving[np.argmin(shift[moving] @ shift[first])]
    across = shift[first] - shift[second] if shift[first] @ shift[second] < 0 else shift[first]
    sides = shift[moving] @ across > 0
    apart = [abs((at[moving[sides]].mean(0) - at[moving[~sides]].mean(0)) @ across) if (~sides).any() else 0.0
             for at, _ in frames]  # fmt: skip
    opened = int(apart[1] > apart[0])
    data, (at, corners) = ends[opened], frames[opened]
    if site:
        index = model.site(site).id
        base, turn = data.xpos[carrier], data.xmat[carrier].reshape(3, 3)
        point = turn.T @ (data.site_xpos[index] - base)
        approach = (turn.T @ data.site_xmat[index].reshape(3, 3))[:, 2]
        across = across - (across @ approach) * approach
        across /= np.linalg.norm(across)
    else:
        across /= np.linalg.norm(across)
        middle = at[moving].mean(0)
        approach = middle - (middle @ across) * across
        approach /= np.linalg.norm(approach)
        approach = np.eye(3)[np.abs(approach).argmax()] * np.sign(approach[np.abs(approach).argmax()])
        approach -= (approach @ across) * across
        approach /= np.linalg.norm(approach)
        tips = corners[moving].reshape(-1, 3)
        point = middle + ((tips @ approach).max() - INSIDE_M - middle @ approach) * approach
        point -= ((point - (at[moving[sides]].mean(0) + at[moving[~sides]].mean(0)) / 2) @ across) * across
    rot = np.stack([np.cross(across, approach), across, approach], axis=1)
    low = max(float((corners[moving].reshape(-1, 3) @ approach).max() - point @ approach), 0.0)
    pads, gap = _pads(model, data, carrier, point, across, where)
    closed = ends[1 - opened]
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


def _at_end(model: mujoco.MjModel, drivers: Sequence[str], upper: bool) -> mujoco.MjData:
    """The model after its gripper went to one end."""
    data = mujoco.MjData(model)
    for index in range(model.nu):
        data.ctrl[index] = data.qpos[model.jnt_qposadr[model.actuator_trnid[index, 0]]]
    for name in drivers:
        data.ctrl[model.actuator(name).id] = model.joint(name).range[int(upper)]
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
    model: mujoco.MjModel, data: mujoco.MjData, body: int, point: Array, across: Array, where: str
) -> tuple[tuple[int, int], float]:
    """The colliding geoms on both sides of a point, and the distance between them, m."""
    turn, hits, gap = data.xmat[body].reshape(3, 3), [], 0.0
    groups = np.array([1, 1, 1, 1, 1, 0], np.uint8)
    for sign in (-1.0, 1.0):
        found = np.full((1, 1), -1, np.int32)
        start, way = data.xpos[body] + turn @ point, turn @ (sign * across)
        distance = mujoco.mj_ray(model, data, start, way, groups, 1, -1, found)
        if distance < 0:
            fix = "give ee=SITE, a site between the pads whose z axis points away from the palm"
            raise ConfigError("no pads are beside the end effector", where, fix)
        hits.append(int(found.ravel()[0]))
        gap += float(distance)
    return (hits[0], hits[1]), gap
