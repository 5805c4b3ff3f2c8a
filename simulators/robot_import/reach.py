"""Reach of an arm with its hand pointing down: a home posture and the workspace, by inverse kinematics."""

from collections.abc import Callable
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from embodied.errors import ConfigError
from robots.kinematics.chain import Chain
from robots.kinematics.forward import forward, frames, jacobian
from robots.kinematics.inverse import damped_step

Array = NDArray[np.float64]
DOWN = (np.diag([1.0, -1.0, -1.0]), np.diag([-1.0, 1.0, -1.0]))
"""Rotations of a hand that points down and closes along y."""
NEAR_M, TILT = 3e-3, 0.02
TABLE_M = 0.8
"""Farthest x of the workspace, on the table."""


def reach_of(chain: Chain) -> float:
    """Largest horizontal distance of the tip from the base, m, of many random postures."""
    pos, _ = forward(chain, np.random.default_rng(0).uniform(*_range(chain), (4000, len(chain))))
    return float(np.quantile(np.linalg.norm(pos[:, :2], axis=1), 0.999))


def find_home(chain: Chain, seeds: Array, reach: float, contacts: Callable[[Array], int], where: str) -> Array:
    """[N] rad, a posture in which the hand points down before the base, closing along y.

    Of all that are found, those with fewest contacts count, then the highest elbow, the widest margin to the limits
    and the smallest angles.

    Args:
        chain: The arm.
        seeds: [S, N] rad, postures to begin with besides random ones.
        reach: As `reach_of` gives it.
        contacts: Number of contacts in a posture.
        where: File, for errors.

    Raises:
        ConfigError: None is found.
    """
    rng = np.random.default_rng(0)
    begin = np.concatenate([seeds, rng.uniform(*_range(chain), (300, len(chain)))])
    found = []
    for rotation in DOWN:
        for far, high in ((0.58, 0.3), (0.5, 0.2), (0.65, 0.25)):
            goal = np.broadcast_to([far * reach, 0.0, high * reach], (len(begin), 3))
            q = _solve(chain, begin, goal, rotation, 150)
            _, turned = forward(chain, q)
            right = _reached(chain, q, goal) & (np.abs(turned[:, 1, 1] - rotation[1, 1]) < TILT)
            found.append(q[right])
        if any(map(len, found)):
            break
    postures = np.concatenate(found)
    if not len(postures):
        fix = "give home=[...] of a posture in which it does, or a base that stands with z up"
        raise ConfigError("no posture was found in which the hand points down and closes along y", where, fix)
    _, _, jac = jacobian(chain, postures)
    dexterity = np.linalg.svd(jac, compute_uv=False)[:, -1]
    margin = np.minimum(postures - chain.lower, chain.upper - postures).min(axis=1)
    height = frames(chain, postures)[2][:, :, 2] / reach
    worth = height.min(1) + height.mean(1) + 0.2 * np.minimum(margin, 1.0) + dexterity
    order = np.argsort(0.1 * np.abs(postures).max(axis=1) - worth)[:40]
    best: Array = min((postures[k] for k in order), key=contacts)
    return best


def find_workspace(chain: Chain, home: Array, reach: float, lowest: float, where: str) -> Array:
    """[2, 3] m, the largest box that the hand reaches everywhere from home, pointing down; `lowest` is its bottom, m.

    Raises:
        ConfigError: It reaches nothing.
    """
    rotation = forward(chain, home[None])[1][0]
    xs = np.arange(0.1 * reach, min(reach, TABLE_M), 0.05 * reach)
    ys = np.arange(0.0, 0.75 * reach, 0.06 * reach)
    zs = np.linspace(lowest, lowest + 0.6 * reach, 7)
    grid = np.stack(np.meshgrid(xs, [*-ys[:0:-1], *ys], zs, indexing="ij"), axis=-1)
    goal = grid.reshape(-1, 3)
    q = _solve(chain, np.broadcast_to(home, (len(goal), len(chain))).copy(), goal, rotation, 80)
    ok = _reached(chain, q, goal).reshape(grid.shape[:3])
    middle, best, box = len(ys) - 1, 0.0, None
    for a, b in combinations(range(len(xs)), 2):
        for w in range(1, len(ys)):
            high = ok[a : b + 1, middle - w : middle + w + 1].all(axis=(0, 1))
            top = int(np.argmin(high)) if not high.all() else len(zs)
            size = (xs[b] - xs[a]) * ys[w] * (zs[top - 1] - zs[0]) if top > 1 else 0.0
            if size > best:
                best, box = size, np.array([[xs[a], -ys[w], zs[0]], [xs[b], ys[w], zs[top - 1]]])
    if box is None:
        raise ConfigError("the hand reaches no box above the table, pointing down", where, "give home=[...]")
    return box


def _range(chain: Chain) -> tuple[Array, Array]:
    """Joint limits, at most half a turn either way."""
    return np.maximum(chain.lower, -np.pi), np.minimum(chain.upper, np.pi)


def _solve(chain: Chain, q: Array, goal: Array, rotation: Array, steps: int) -> Array:
    turned = np.broadcast_to(rotation, (len(q), 3, 3)).copy()
    for _ in range(steps):
        q = damped_step(chain, q, goal.copy(), turned, pull=0.0)
    return q


def _reached(chain: Chain, q: Array, goal: Array) -> NDArray[np.bool_]:
    """Whether the tip is at `goal` [B, 3] and points down."""
    pos, rot = forward(chain, q)
    near: NDArray[np.bool_] = (np.linalg.norm(pos - goal, axis=1) < NEAR_M) & (rot[:, 2, 2] < TILT - 1.0)
    return near
