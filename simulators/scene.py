"""Scenes: a robot at a table, with objects, lights and cameras, composed as an MjSpec."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import mujoco

from embodied.errors import ConfigError
from robots.descriptions import arms, description_path
from simulators.meshes import dress, menagerie

PHYSICS_DT = 0.005
ROBOT_HITS, SCENE_HITS = 1, 2
"""Collision bits of the colliding geoms of the robot and of the scene. An arm never hits itself."""
RED, GREEN, BLUE = (0.85, 0.2, 0.15, 1.0), (0.15, 0.62, 0.27, 1.0), (0.17, 0.42, 0.92, 1.0)
_GRIP: dict[str, Any] = {"friction": [1.5, 0.02, 0.0001], "condim": 4, "solref": [0.01, 1.0]}
"""Contact of what fingers hold."""
_PLANE = mujoco.mjtGeom.mjGEOM_PLANE
_ARM_HITS = 4
"""Collision bit of the first of several arms, which hit each other; the others have the next bits."""


def table_scene(robot: str = "panda", meshes: str = "") -> mujoco.MjSpec:
    """A robot at a table: its base at the origin, the table's top at z = 0, x pointing across it; metres, z up.

    Cameras: `front` looks at the workspace from across the table, `wrist` is the robot's (one per arm, prefixed,
    for several arms), `video` is for people.

    Args:
        robot: Description, as `description_path` takes it.
        meshes: A local copy of mujoco_menagerie, for the meshes that draw the robot, or `menagerie` for the copy at
            the environment variable MENAGERIE_ROOT; empty for primitives.

    Raises:
        ConfigError: The robot has no description, or its meshes are not there.
    """
    path = description_path(robot)
    try:
        spec = mujoco.MjSpec.from_file(str(path))
    except ValueError as error:
        raise ConfigError(f"MuJoCo cannot read it: {error}", str(path), "correct the description") from None
    spec.modelname = f"{path.stem}_table"
    _let_arms_collide(spec, list(arms(robot)))
    if (folder := menagerie(meshes)) is not None:
        dress(spec, robot, folder)
    # The grasp holds with these and fails with longer substeps or an elliptic cone. The dense Jacobian avoids a wrong
    # Newton Hessian that MuJoCo 4.0.0 computes from a sparse one.
    spec.option.timestep = PHYSICS_DT
    spec.option.integrator = mujoco.mjtIntegrator.mjINT_IMPLICITFAST
    spec.option.jacobian = mujoco.mjtJacobian.mjJAC_DENSE
    spec.option.cone = mujoco.mjtCone.mjCONE_PYRAMIDAL
    spec.option.impratio = 1.0
    spec.option.iterations = 10

    spec.visual.headlight.ambient = [0.35, 0.35, 0.35]
    spec.visual.headlight.diffuse = [0.30, 0.30, 0.30]
    spec.visual.headlight.specular = [0.05, 0.05, 0.05]
    spec.add_texture(
        name="sky",
        type=mujoco.mjtTexture.mjTEXTURE_SKYBOX,
        builtin=mujoco.mjtBuiltin.mjBUILTIN_GRADIENT,
        rgb1=[0.80, 0.86, 0.92],
        rgb2=[0.45, 0.52, 0.60],
        width=64,
        height=384,
    )
    world = spec.worldbody
    world.add_light(
        name="key",
        type=mujoco.mjtLightType.mjLIGHT_DIRECTIONAL,
        pos=[0.95, -0.9, 2.0],
        dir=[-0.3, 0.5, -1.0],
        diffuse=[0.58, 0.58, 0.56],
        castshadow=True,
    )
    world.add_geom(
        name="floor",
        type=mujoco.mjtGeom.mjGEOM_PLANE,
        pos=[0, 0, -0.75],
        size=[4, 4, 4],
        rgba=[0.55, 0.58, 0.62, 1],
        contype=0,
        conaffinity=0,
        group=1,
    )
    world.add_geom(
        name="table",
        type=mujoco.mjtGeom.mjGEOM_BOX,
        pos=[0.35, 0, -0.03],
        size=[0.55, 0.6, 0.03],
        rgba=[0.74, 0.62, 0.48, 1],
        contype=SCENE_HITS,
        conaffinity=ROBOT_HITS,
        friction=[1.0, 0.005, 0.0001],
    )
    x, y, z, scale = _view(spec)
    _camera(spec, "front", eye=(x + 0.70 * scale, y, z + 0.50 * scale), at=(x, y, z), fovy=42)
    x, z = x - 0.09 * scale, z + 0.17 * scale
    _camera(spec, "video", eye=(x + 0.94 * scale, y - 0.80 * scale, z + 0.41 * scale), at=(x, y, z), fovy=42)
    return spec


def add_cube(
    spec: mujoco.MjSpec,
    name: str,
    pos: Sequence[float],
    half: float = 0.02,
    mass: float = 0.1,
    rgba: Sequence[float] = RED,
) -> None:
    """Add a free cube `name` with joint `name`; `pos` of its centre and `half` its edge in metres, `mass` in kg."""
    _add_free(spec, name, pos, mass, rgba, type=mujoco.mjtGeom.mjGEOM_BOX, size=[half] * 3)


def add_cylinder(
    spec: mujoco.MjSpec,
    name: str,
    pos: Sequence[float],
    radius: float = 0.02,
    half: float = 0.02,
    mass: float = 0.1,
    rgba: Sequence[float] = GREEN,
) -> None:
    """Add a free upright cylinder as `add_cube` adds a cube; `half` its height in metres."""
    _add_free(spec, name, pos, mass, rgba, type=mujoco.mjtGeom.mjGEOM_CYLINDER, size=[radius, half, 0])


def add_ball(
    spec: mujoco.MjSpec,
    name: str,
    pos: Sequence[float],
    radius: float = 0.02,
    mass: float = 0.1,
    rgba: Sequence[float] = BLUE,
) -> None:
    """Add a free ball as `add_cube` adds a cube; rolling friction brings it to rest."""
    shape = {"type": mujoco.mjtGeom.mjGEOM_SPHERE, "size": [radius, 0, 0]}
    _add_free(spec, name, pos, mass, rgba, **shape, condim=6, friction=[1.5, 0.02, 0.1 * radius])


def add_puck(
    spec: mujoco.MjSpec,
    name: str,
    pos: Sequence[float],
    radius: float = 0.03,
    half: float = 0.015,
    mass: float = 0.1,
    rgba: Sequence[float] = RED,
) -> None:
    """Add a free upright cylinder that slides: its own low friction applies to all contacts."""
    shape = {"type": mujoco.mjtGeom.mjGEOM_CYLINDER, "size": [radius, half, 0]}
    _add_free(spec, name, pos, mass, rgba, **shape, friction=[0.4, 0.01, 0.0001], priority=1)


def add_marker(
    spec: mujoco.MjSpec, name: str, radius: float = 0.02, rgba: Sequence[float] = (0.1, 0.7, 0.3, 1.0)
) -> None:
    """Add a mocap body `name`, a visible sphere without collisions, placed through `mocap_pos`."""
    body = spec.worldbody.add_body(name=name, mocap=True)
    _add_drawn(body, name, mujoco.mjtGeom.mjGEOM_SPHERE, [radius, 0, 0], rgba)


def add_plate(spec: mujoco.MjSpec, name: str, radius: float, rgba: Sequence[float]) -> None:
    """Add a mocap body `name`, a flat disc with a darker rim, for z = 0; like a marker, it collides with nothing."""
    body = spec.worldbody.add_body(name=name, mocap=True)
    dark = [0.6 * value for value in rgba[:3]] + [1.0]
    _add_drawn(body, f"{name}_rim", mujoco.mjtGeom.mjGEOM_CYLINDER, [radius, 0.001, 0], dark)
    _add_drawn(body, name, mujoco.mjtGeom.mjGEOM_CYLINDER, [0.86 * radius, 0.002, 0], rgba)


def add_fixture(spec: mujoco.MjSpec, name: str) -> mujoco.MjsBody:
    """Add a mocap body `name`, placed through `mocap_pos` and moved by nothing else, to carry an articulated object."""
    return spec.worldbody.add_body(name=name, mocap=True)


def add_model(spec: mujoco.MjSpec, name: str, file: Path) -> mujoco.MjsBody:
    """Attach the object of an MJCF file to a fixture `name`, which is returned; its names begin with `name` and `_`.

    Its geoms that collided do so as those of `add_part`. Its light, floor and options stay behind.

    Raises:
        ConfigError: MuJoCo cannot read the file.
    """
    try:
        part = mujoco.MjSpec.from_file(str(file))
    except ValueError as error:
        raise ConfigError(f"MuJoCo cannot read it: {error}", str(file), "correct the file") from None
    for geom in part.geoms:
        if geom.contype or geom.conaffinity:
            geom.contype, geom.conaffinity = SCENE_HITS, ROBOT_HITS
    for left in [*part.lights, *part.keys, *(geom for geom in part.worldbody.geoms if geom.type == _PLANE)]:
        part.delete(left)
    part.option = spec.option  # two of them would conflict
    fixture = add_fixture(spec, name)
    spec.attach(part, frame=fixture.add_frame(), prefix=f"{name}_")
    return fixture


def add_part(body: mujoco.MjsBody, name: str, type: mujoco.mjtGeom, size: Sequence[float], **geom: Any) -> None:
    """Add a geom that robots and free objects hit. Table and other parts do not: parts slide within each other."""
    hits = {"contype": SCENE_HITS, "conaffinity": ROBOT_HITS, "mass": 0.0}
    body.add_geom(**{"name": name, "type": type, "size": list(size), **hits, **_GRIP, **geom})


def _add_free(
    spec: mujoco.MjSpec, name: str, pos: Sequence[float], mass: float, rgba: Sequence[float], **geom: Any
) -> None:
    """Add a body with a free joint and one geom that hits robot and scene; `geom` overrides its attributes."""
    body = spec.worldbody.add_body(name=name, pos=list(pos))
    body.add_freejoint(name=name)
    hits = {"contype": SCENE_HITS, "conaffinity": ROBOT_HITS | SCENE_HITS}
    body.add_geom(**{"name": name, "mass": mass, "rgba": list(rgba), **hits, **_GRIP, **geom})


def _add_drawn(
    body: mujoco.MjsBody, name: str, type: mujoco.mjtGeom, size: Sequence[float], rgba: Sequence[float]
) -> None:
    """Add a visible geom without collisions."""
    body.add_geom(name=name, type=type, size=list(size), rgba=list(rgba), contype=0, conaffinity=0, group=1)


def _let_arms_collide(spec: mujoco.MjSpec, prefixes: Sequence[str]) -> None:
    """Give each of several arms a collision bit of its own, so that arms hit each other."""
    if len(prefixes) < 2:
        return
    bits = {prefix: _ARM_HITS << index for index, prefix in enumerate(prefixes)}
    for geom in spec.geoms:
        own = next((bit for prefix, bit in bits.items() if geom.name.startswith(prefix)), 0)
        if own and geom.contype:
            geom.contype |= own
            geom.conaffinity |= sum(bits.values()) - own


def _view(spec: mujoco.MjSpec) -> tuple[float, float, float, float]:
    """Point that the cameras look at, m, and their distance relative to a Panda's; numeric `view` of a description."""
    numeric = spec.numeric("view")
    x, y, z, scale = (0.45, 0.0, 0.10, 1.0) if numeric is None else (float(value) for value in numeric.data)
    return x, y, z, scale


def _camera(spec: mujoco.MjSpec, name: str, eye: Sequence[float], at: Sequence[float], fovy: float) -> None:
    """Add a fixed camera at `eye` that looks at `at` with z up; `fovy` in degrees."""
    back = [e - a for e, a in zip(eye, at, strict=True)]
    right = [-back[1], back[0], 0.0]
    up = [
        back[1] * right[2] - back[2] * right[1],
        back[2] * right[0] - back[0] * right[2],
        back[0] * right[1] - back[1] * right[0],
    ]
    camera = spec.worldbody.add_camera(name=name, pos=list(eye), fovy=fovy)
    camera.alt.type = mujoco.mjtOrientation.mjORIENTATION_XYAXES
    camera.alt.xyaxes = right + up
