"""Randomised values of episodes, drawn from their seeds alone."""

from collections.abc import Callable, Mapping
from typing import Any

import mujoco
import numpy as np
from numpy.typing import NDArray

from embodied import noise
from simulators.randomise.ranges import Extent, Ranges
from simulators.task import Array, between

Drawn = dict[str, NDArray[Any]]

# Purposes of the keyed noise, one for each value, so that randomising one more changes no other.
PHYSICS = {"friction": 16, "mass": 17, "gains": 18}
APPEARANCE = {"colour": 19, "light": 20, "light_dir": 21, "camera_pos": 22, "camera_rot": 23}
FACTORS = (*PHYSICS, "light")
TIMING = {"action_latency": 24, "observation_latency": 25}
SENSORS = 26
NAMES = (*PHYSICS, *APPEARANCE, *TIMING)


def draw(ranges: Ranges, model: mujoco.MjModel, seeds: NDArray[np.int64], images: bool) -> Drawn:
    """Draw the randomised values of M episodes.

    Args:
        ranges: Ranges of the values.
        model: Model to randomise.
        seeds: [M] of the episodes; each decides its own row.
        images: Whether appearance matters.

    Returns:
        Name to [M, ...] of the randomised values only. G geoms, N bodies, U actuators, L lights, C cameras:
        `friction` [M], `mass` [M, N], `gains` [M, U, 2] of stiffness and damping, `light` [M, L] are factors;
        `colour` [M, G, 3] is added; `light_dir` [M, L, 3] and `camera_rot` [M, C, 3] are rotation vectors in rad,
        `camera_pos` [M, C, 3] offsets in m; `action_latency` and `observation_latency` [M] int32 control
        steps, the latter [M, streams] where named streams have their own, sorted by name.
    """
    shapes: dict[str, tuple[int, ...]] = {
        "friction": (),
        "mass": (model.nbody,),
        "gains": (model.nu, 2),
        "colour": (model.ngeom, 3),
        "light": (model.nlight,),
        "light_dir": (model.nlight, 3),
        "camera_pos": (model.ncam, 3),
        "camera_rot": (model.ncam, 3),
    }
    uniform = _uniforms(seeds)
    drawn: Drawn = {}
    for name, purpose in {**PHYSICS, **(APPEARANCE if images else {})}.items():
        extent = getattr(ranges, name)
        if extent:
            u = uniform(shapes[name], purpose)
            drawn[name] = between(u, *extent) if name in FACTORS else _change(u, extent)
    if "gains" in drawn:
        drawn["gains"][:, :, 1] = np.minimum(drawn["gains"][:, :, 1], damping_room(model))
    for name, purpose in TIMING.items():
        given = getattr(ranges, name)
        ends = [given[stream] for stream in sorted(given)] if isinstance(given, Mapping) else given
        fewest, most = np.asarray(ends, np.int64).T
        if most.any():
            steps = fewest + np.floor(uniform(most.shape, purpose) * (most - fewest + 1))
            drawn[name] = np.minimum(steps, most).astype(np.int32)
    return drawn


def _change(u: Array, extent: Extent) -> Array:
    """Changes in either direction, between a least and a largest size, from uniform numbers in (0, 1)."""
    least, largest = extent if isinstance(extent, tuple) else (0.0, extent)
    way = between(u, -1.0, 1.0)
    return np.copysign(between(np.abs(way), least, largest), way) if least else between(u, -largest, largest)


def damping_room(model: mujoco.MjModel) -> Array:
    """[U] largest factor of each actuator's damping, at least 1.

    At a joint's force limit MuJoCo cannot integrate the damping of its actuator implicitly. The joint then overshoots
    in every step unless its armature exceeds that damping times the timestep.
    """
    room = np.full(model.nu, np.inf)
    for u in range(model.nu):
        damping = -model.actuator_biasprm[u, 2]
        joint = int(model.actuator_trnid[u, 0])
        if damping > 0 and int(model.actuator_trntype[u]) == int(mujoco.mjtTrn.mjTRN_JOINT):
            armature = model.dof_armature[model.jnt_dofadr[joint]]
            room[u] = max(1.0, armature / (damping * model.opt.timestep))
    return room


def _uniforms(seeds: NDArray[np.int64]) -> Callable[[tuple[int, ...], int], Array]:
    keys = np.zeros((len(seeds), 5), np.int64)
    keys[:, 0] = seeds

    def uniform(shape: tuple[int, ...], purpose: int) -> Array:
        return noise.uniform(keys, int(np.prod(shape)), purpose).reshape(len(seeds), *shape)

    return uniform
