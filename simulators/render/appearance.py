"""Appearance of a MuJoCo model, read once into the arrays that the ray caster draws."""

from typing import NamedTuple

import mujoco
import numpy as np
from numpy.typing import NDArray

from embodied.errors import ConfigError
from simulators.render.kernels import BOX, CAPSULE, CYLINDER, ELLIPSOID, PLANE

_GEOM = mujoco.mjtGeom
_KINDS = {
    int(_GEOM.mjGEOM_PLANE): PLANE,
    int(_GEOM.mjGEOM_SPHERE): ELLIPSOID,
    int(_GEOM.mjGEOM_ELLIPSOID): ELLIPSOID,
    int(_GEOM.mjGEOM_CAPSULE): CAPSULE,
    int(_GEOM.mjGEOM_CYLINDER): CYLINDER,
    int(_GEOM.mjGEOM_BOX): BOX,
}
_VISIBLE_GROUPS = 3  # 0, 1 and 2, as in MuJoCo's default visualisation options
_UNSET_RGBA = (0.5, 0.5, 0.5, 1.0)  # default colour of a geom; its material's replaces it
_PLAIN = 8.0  # of 255: largest standard deviation of a texture that counts as one colour
_SKY_ROWS = 64
_SHADOW_SIDE = 1024
_SHADOW_DISTANCE = 100.0  # of the shadow camera of a directional light, in scene radii: rays are almost parallel


class Scene(NamedTuple):
    """Visible scene: V geoms, opaque ones first, and L lights, the first of them the headlight.

    Attributes:
        layers: [K, 2] int64 first and last (excluded) geom of each layer: all opaque geoms, then each translucent one.
        kind: [V] int32, one of `kernels.PLANE` to `kernels.BOX`.
        size: [V, 3] ellipsoid: semi-axes; capsule and cylinder: radius, half length; box and plane: half sizes,
            infinite for an infinite plane. m.
        reach: [V, 3] half sizes of the box around each geom in its own frame, m.
        colour: [V, 3] RGB from 0 to 1.
        alpha: [V] opacity.
        emission: [V] light of its own.
        sky: [N, 3] RGB from 0 to 255, from zenith to nadir by the sine of the elevation.
        ambient: [3] light from everywhere.
        lights: [L, 9] diffuse RGB; constant, linear and quadratic attenuation; cosine of the cutoff; exponent; 1 for
            a light with a position, 0 for a directional one.
        light_pose: [L, 6] float64 position and direction, world frame; the headlight's is not read.
        shadow_light: Index of the light that casts shadows, or -1.
        shadow_camera: [12] float64 position and rotation matrix of the camera that draws the shadow map, world frame.
        shadow_tangent: Tangent of half its angle of view.
        shadow_side: Texels along each side of the shadow map.
    """

    layers: NDArray[np.int64]
    kind: NDArray[np.int32]
    size: NDArray[np.float32]
    reach: NDArray[np.float32]
    colour: NDArray[np.float32]
    alpha: NDArray[np.float32]
    emission: NDArray[np.float32]
    sky: NDArray[np.float32]
    ambient: NDArray[np.float32]
    lights: NDArray[np.float32]
    light_pose: NDArray[np.float64]
    shadow_light: int
    shadow_camera: NDArray[np.float64]
    shadow_tangent: float
    shadow_side: int


def build_scene(model: mujoco.MjModel, shadows: bool) -> tuple[NDArray[np.int32], Scene]:
    """Indices of the visible geoms, opaque ones first, and the scene of them, the sky and the lights."""
    rgba = _geom_rgba(model)
    visible = np.isin(model.geom_type, list(_KINDS)) & (model.geom_group < _VISIBLE_GROUPS) & (rgba[:, 3] > 0)
    geoms = np.flatnonzero(visible).astype(np.int32)
    geoms = geoms[np.argsort(rgba[geoms, 3] < 1, kind="stable")]
    opaque = int((rgba[geoms, 3] >= 1).sum())
    kind = np.array([_KINDS[int(kind)] for kind in model.geom_type[geoms]], np.int32)
    size, reach = _sizes(model, geoms, kind)
    material = model.geom_matid[geoms]
    emission = np.zeros(len(geoms), np.float32)
    emission[material >= 0] = model.mat_emission[material[material >= 0]]
    ambient, lights, light_pose, casts = _lights(model)
    shadow_light = int(casts.argmax()) if shadows and casts.any() else -1
    camera, tangent = _shadow_camera(model, lights[shadow_light], light_pose[shadow_light])
    return geoms, Scene(
        layers=np.array([(0, opaque), *((g, g + 1) for g in range(opaque, len(geoms)))], np.int64),
        kind=kind,
        size=size,
        reach=reach,
        colour=np.ascontiguousarray(rgba[geoms, :3], np.float32),
        alpha=np.ascontiguousarray(rgba[geoms, 3], np.float32),
        emission=emission,
        sky=_sky(model),
        ambient=ambient,
        lights=lights,
        light_pose=light_pose,
        shadow_light=shadow_light,
        shadow_camera=camera,
        shadow_tangent=tangent,
        shadow_side=_SHADOW_SIDE if shadow_light >= 0 else 2,
    )


def beyond_rays(model: mujoco.MjModel) -> str:
    """First visible geom that the ray caster cannot draw, such as `mesh hand`; empty if there is none."""
    wrong = (
        (model.geom_group < _VISIBLE_GROUPS) & (_geom_rgba(model)[:, 3] > 0) & ~np.isin(model.geom_type, list(_KINDS))
    )
    if wrong.any():
        geom = int(wrong.argmax())
        kind = _GEOM(int(model.geom_type[geom])).name.removeprefix("mjGEOM_").lower()
        return f"{kind} {model.geom(geom).name or geom}"
    return ""


def check_rays(model: mujoco.MjModel) -> None:
    """Raise `ConfigError` if the ray caster would leave out a visible geom."""
    if beyond := beyond_rays(model):
        raise ConfigError(f"the ray caster cannot draw {beyond}", "renderer", "use gl, or auto where a GL is installed")


def patterned(model: mujoco.MjModel) -> bool:
    """Whether a visible geom has a texture of more than one colour; the ray caster draws its mean."""
    for g in np.flatnonzero((model.geom_group < _VISIBLE_GROUPS) & (model.geom_matid >= 0)):
        texture = int(model.mat_texid[model.geom_matid[g], int(mujoco.mjtTextureRole.mjTEXROLE_RGB)])
        if texture >= 0 and _texels(model, texture).std((0, 1)).max() > _PLAIN:
            return True
    return False


def opaque_geoms(model: mujoco.MjModel) -> NDArray[np.bool_]:
    """[G] whether a geom is opaque."""
    return _geom_rgba(model)[:, 3] >= 1


def texture_tint(model: mujoco.MjModel) -> NDArray[np.float32]:
    """[G, 3] mean colour, from 0 to 1, of each geom's texture; 1 without one."""
    tint = np.ones((model.ngeom, 3), np.float32)
    for g in np.flatnonzero(model.geom_matid >= 0):
        texture = int(model.mat_texid[model.geom_matid[g], int(mujoco.mjtTextureRole.mjTEXROLE_RGB)])
        if texture >= 0:
            tint[g] = _texels(model, texture).mean((0, 1)) / 255
    return tint


def _geom_rgba(model: mujoco.MjModel) -> NDArray[np.float32]:
    """[G, 4] colours of geoms, or of their materials for those without one, times the mean of the texture."""
    rgba = np.array(model.geom_rgba)
    unset = (rgba == np.array(_UNSET_RGBA, np.float32)).all(axis=1) & (model.geom_matid >= 0)
    rgba[unset] = model.mat_rgba[model.geom_matid[unset]]
    rgba[:, :3] *= texture_tint(model)
    return rgba


def _texels(model: mujoco.MjModel, texture: int) -> NDArray[np.float32]:
    """[h, w, 3] of one texture, from 0 to 255; a cube's six faces lie below each other."""
    height, width, channels = (
        int(model.tex_height[texture]),
        int(model.tex_width[texture]),
        int(model.tex_nchannel[texture]),
    )
    start = int(model.tex_adr[texture])
    texels = model.tex_data[start : start + height * width * channels].reshape(height, width, channels)
    return np.broadcast_to(texels[..., :3], (height, width, 3)).astype(np.float32)


def _sizes(
    model: mujoco.MjModel, geoms: NDArray[np.int32], kind: NDArray[np.int32]
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """`size` and `reach` of `Scene`."""
    size = np.ascontiguousarray(model.geom_size[geoms], np.float32)
    sphere = model.geom_type[geoms] == int(_GEOM.mjGEOM_SPHERE)
    size[sphere] = size[sphere, :1]
    plane, capsule, tube = kind == PLANE, kind == CAPSULE, (kind == CAPSULE) | (kind == CYLINDER)
    size[plane, 2] = 0
    size[plane] = np.where((size[plane] == 0) & np.array([True, True, False]), np.inf, size[plane])
    reach = size.copy()
    reach[tube, 2] = size[tube, 1] + np.where(capsule[tube], size[tube, 0], 0)
    reach[tube, 1] = size[tube, 0]
    return size, reach


def _sky(model: mujoco.MjModel) -> NDArray[np.float32]:
    """[N, 3] `sky` of `Scene` from a face of the sky box, black without one."""
    found = np.flatnonzero(model.tex_type == int(mujoco.mjtTexture.mjTEXTURE_SKYBOX))
    if not len(found):
        return np.zeros((_SKY_ROWS, 3), np.float32)
    texels = _texels(model, int(found[0]))
    side = texels.shape[1]
    faces = texels.reshape(-1, side, side, 3).mean(2)  # right, left, up, down, front, back; each by rows
    sine = np.linspace(1, -1, _SKY_ROWS)
    tangent = sine / np.sqrt(np.maximum(1 - sine**2, 1e-9))
    rows = np.clip((1 - tangent) / 2 * side, 0, side - 1).astype(int)
    sky = faces[4 if len(faces) == 6 else 0][rows]
    if len(faces) == 6:
        sky[tangent > 1], sky[tangent < -1] = faces[2].mean(0), faces[3].mean(0)
    return np.ascontiguousarray(sky, np.float32)


def _lights(
    model: mujoco.MjModel,
) -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.float64], NDArray[np.bool_]]:
    """`ambient`, `lights` and `light_pose` of `Scene`, and [L] whether a light casts shadows."""
    data = mujoco.MjData(model)
    mujoco.mj_kinematics(model, data)
    mujoco.mj_comPos(model, data)
    mujoco.mj_camlight(model, data)
    head = model.vis.headlight
    shine = 1.0 if head.active else 0.0
    ambient = shine * np.array(head.ambient, np.float32)
    lights, poses, casts = [[*(shine * np.array(head.diffuse)), 1, 0, 0, -1, 0, 0]], [np.zeros(6)], [False]
    for i in np.flatnonzero(model.light_active):
        ambient = ambient + model.light_ambient[i]
        directional = model.light_type[i] == int(mujoco.mjtLightType.mjLIGHT_DIRECTIONAL)
        spot = model.light_type[i] == int(mujoco.mjtLightType.mjLIGHT_SPOT)
        cutoff, exponent = (np.cos(np.deg2rad(model.light_cutoff[i])), model.light_exponent[i]) if spot else (-1, 0)
        lights.append([*model.light_diffuse[i], *model.light_attenuation[i], cutoff, exponent, float(not directional)])
        poses.append(np.concatenate([data.light_xpos[i], data.light_xdir[i]]))
        casts.append(bool(model.light_castshadow[i]))
    return ambient.astype(np.float32), np.array(lights, np.float32), np.array(poses), np.array(casts)


def _shadow_camera(
    model: mujoco.MjModel, light: NDArray[np.float32], pose: NDArray[np.float64]
) -> tuple[NDArray[np.float64], float]:
    """`shadow_camera` and `shadow_tangent` of `Scene`: at a light with a position, far away for a directional one."""
    direction = pose[3:] / max(float(np.linalg.norm(pose[3:])), 1e-9)
    if light[8] > 0:
        eye, tangent = pose[:3], float(np.tan(min(np.arccos(light[6]), np.deg2rad(60))))
    else:
        centre, radius = _occupied(model)
        eye, tangent = centre - direction * radius * _SHADOW_DISTANCE, 1 / _SHADOW_DISTANCE
    helper = np.array([1.0, 0, 0]) if abs(direction[2]) > 0.9 else np.array([0, 0, 1.0])
    right = np.cross(direction, helper)
    right /= max(float(np.linalg.norm(right)), 1e-9)
    axes = np.stack([right, np.cross(right, direction), -direction], axis=1)
    return np.concatenate([eye, axes.ravel()]), tangent


def _occupied(model: mujoco.MjModel) -> tuple[NDArray[np.float64], float]:
    """Centre and radius of a sphere about all geoms but planes in the reference configuration, m."""
    data = mujoco.MjData(model)
    mujoco.mj_kinematics(model, data)
    solid = model.geom_type != int(_GEOM.mjGEOM_PLANE)
    if not solid.any():
        return np.array(model.stat.center), float(model.stat.extent)
    at, bound = data.geom_xpos[solid], model.geom_rbound[solid]
    centre = ((at - bound[:, None]).min(0) + (at + bound[:, None]).max(0)) / 2
    return centre, float((np.linalg.norm(at - centre, axis=1) + bound).max())
