"""Views drawn by the fast ray caster: its tables of a model, of looks and of cameras."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import mujoco
import numpy as np
from numpy.typing import NDArray

from embodied.errors import DeadlineExceeded
from simulators.render import kernels
from simulators.render.appearance import Scene, build_scene, texture_tint
from simulators.render.looks import Looks
from simulators.render.ray import camera_id, pixel_centres
from simulators.render.scan import NOTHING, Layer, Paint, ScanView, Table, draw
from simulators.render.shapes import LANES
from simulators.render.view import Fields, Pictures, Poses, View

_DEADLINE_S = 600.0
_LIGHTS = 2
_NO_IMAGES = np.empty((1, 0, 0, 3), np.uint8)
_NO_DEPTH, _NO_GEOMS = np.empty((1, 0, 0), np.float32), np.empty((1, 0, 0), np.int32)

EnvPoses = tuple[NDArray[np.float64], ...]
"""Poses of N environments: geoms [N, V, 3], [N, V, 9], camera [N, 3], [N, 9]."""


class RayPainter:
    """Painter of views by rays; see `view.Painter`.

    Pictures of a model lit by more than the headlight and one directional light are drawn by the slower kernels that
    draw videos. Lights stay as in the reference configuration.
    """

    fields: tuple[str, ...] = ("geom_xpos", "geom_xmat", "cam_xpos", "cam_xmat")

    def __init__(self, model: mujoco.MjModel, views: Sequence[View], threads: int) -> None:
        geoms, scene = build_scene(model, shadows=False)
        body = model.geom_bodyid[geoms]
        fixed = (model.body_weldid[body] == 0) & (model.body_mocapid[model.body_rootid[body]] < 0)
        rank = np.where(scene.alpha < 1, 2, np.where(fixed, 0, 1))
        order = np.argsort(rank, kind="stable")
        names = ("kind", "size", "reach", "colour", "alpha", "emission")
        scene = scene._replace(**{name: getattr(scene, name)[order] for name in names})
        self._geoms, self._scene, self._tint = geoms[order], scene, texture_tint(model)[geoms[order]]
        red, green, blue = scene.sky.astype(np.uint8).astype(np.int32).T
        counts = int((rank == 0).sum()), int((rank < 2).sum())
        self._table = Table(scene.kind, scene.size, scene.reach, red | green << 8 | blue << 16, *counts)
        self._lights = np.flatnonzero(model.light_active)
        self._simple = len(scene.lights) <= _LIGHTS and not (scene.lights[:, 8] > 0).any()
        self._paint, self._numbers = self._mixed(Looks(), np.zeros(1, np.int64)), _numbers(self._geoms)
        self._rays = [_rays(model, view) for view in views]
        cameras = [camera_id(model, view.camera) for view in views]
        self._still = [model.body_weldid[model.cam_bodyid[camera]] == 0 for camera in cameras]
        self._kept: dict[tuple[int, bool], Layer] = {}
        self._threads = threads
        self._pool = ThreadPoolExecutor(threads, "render") if threads > 1 else None

    def paint(self, fields: Fields, rows: NDArray[np.int64], poses: Poses, looks: Looks, pictures: Pictures) -> None:
        batch = len(fields["geom_xpos"])
        pos = np.asarray(fields["geom_xpos"], np.float64).reshape(batch, -1, 3)[rows[:, None], self._geoms]
        mat = np.asarray(fields["geom_xmat"], np.float64).reshape(batch, -1, 9)[rows[:, None], self._geoms]
        coloured = any(given is not None for given in (looks.geom_rgba, looks.light_diffuse, looks.light_dir))
        paint = self._mixed(looks, rows) if coloured and self._simple else self._paint
        turned = looks.cam_pos is not None or looks.cam_rot is not None
        for at, (pose, picture) in enumerate(zip(poses, pictures, strict=True)):
            envs, keep = (pos, mat, *pose), self._still[at] and not turned
            if "rgb" in picture and self._simple:
                self._draw(at, envs, paint, keep and not coloured, picture["rgb"], _NO_DEPTH, _NO_GEOMS)
            elif "rgb" in picture:
                scenes = [self._scene_of(looks, row) for row in rows] if coloured else [self._scene]
                self._draw_slowly(at, envs, scenes, picture["rgb"])
            if "depth" in picture or "segmentation" in picture:
                shape = (len(rows), len(self._rays[at].vs), self._rays[at].width)
                depth = picture["depth"] if "depth" in picture else np.empty(shape, np.float32)
                seen = picture["segmentation"] if "segmentation" in picture else np.empty(shape, np.int32)
                self._draw(at, envs, self._numbers, keep, _NO_IMAGES, depth, seen)

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None

    def _draw(
        self,
        at: int,
        envs: EnvPoses,
        paint: Paint,
        keep: bool,
        images: NDArray[np.uint8],
        depth: NDArray[np.float32],
        seen: NDArray[np.int32],
    ) -> None:
        """Draw view number `at` into `images`, or with a flat paint into `depth` and `seen`."""
        rays, count = self._rays[at], len(envs[0])
        kept = self._fixed_part(at, envs, paint) if keep else _layer(rays, 0)

        def some(part: slice) -> None:
            own = paint if len(paint.base) == 1 else _some(paint, part)
            top = np.full(kept.colour.shape, NOTHING, np.int32)
            into = [values[part] if len(values) == count else values for values in (images, depth, seen)]
            draw(rays, self._table, *(pose[part] for pose in envs), own, kept, _layer(rays, 0), top, *into)

        self._spread(some, count)

    def _fixed_part(self, at: int, envs: EnvPoses, paint: Paint) -> Layer:
        """Layer of the fixed geoms in view number `at`, from the first environment's camera, drawn once."""
        fixed = self._table.fixed
        pos, mat, eye, axes = (pose[:1] for pose in envs)
        pos, mat = np.ascontiguousarray(pos[:, :fixed]), np.ascontiguousarray(mat[:, :fixed])
        poses = np.concatenate([np.concatenate([eye, axes], axis=1), np.concatenate([pos[0], mat[0]], axis=1)])
        kept = self._kept.get((at, paint.flat))
        if kept is None or not np.array_equal(kept.poses, poses):
            kept = self._kept[at, paint.flat] = _layer(self._rays[at], fixed)
            table = self._table
            part = Table(table.kind[:fixed], table.size[:fixed], table.reach[:fixed], table.sky, fixed, fixed)
            blank, top = _layer(self._rays[at], 0), np.full(kept.colour.shape, NOTHING, np.int32)
            draw(self._rays[at], part, pos, mat, eye, axes, paint, blank, kept, top, _NO_IMAGES, _NO_DEPTH, _NO_GEOMS)
            kept.poses[:] = poses
        return kept

    def _draw_slowly(self, at: int, envs: EnvPoses, scenes: list[Scene], images: NDArray[np.uint8]) -> None:
        """Draw view number `at` in any light; each environment has a scene, or all have the first."""
        rays = self._rays[at]
        us = rays.us[: rays.width]

        def some(part: slice) -> None:
            if len(scenes) == 1:
                kernels.draw(scenes[0], *(pose[part] for pose in envs), us, rays.vs, 1, images[part])
                return
            for i in range(*part.indices(len(scenes))):
                one = (pose[i : i + 1] for pose in envs)
                kernels.draw(scenes[i], *one, us, rays.vs, 1, images[i : i + 1])

        self._spread(some, len(images))

    def _spread(self, some: Callable[[slice], None], count: int) -> None:
        if self._pool is None or count < 2:
            some(slice(0, count))
            return
        edges = np.linspace(0, count, min(self._threads, count) + 1).astype(int)
        try:
            list(self._pool.map(some, map(slice, edges[:-1], edges[1:]), timeout=_DEADLINE_S))
        except TimeoutError:
            what = f"{count} pictures took more than {_DEADLINE_S:g} s"
            raise DeadlineExceeded(what, "render", "draw fewer environments or fewer pixels") from None

    def _mixed(self, looks: Looks, rows: NDArray[np.int64]) -> Paint:
        """Paint of environments `rows`: one row for each, or a single one if all have the model's looks."""
        scene = self._scene
        colour, alpha = scene.colour[None], scene.alpha[None]
        diffuse, to_light = np.zeros((len(rows), _LIGHTS, 3), np.float32), np.zeros((len(rows), 3), np.float32)
        diffuse[:, : len(scene.lights)] = scene.lights[:_LIGHTS, :3]
        to_light[:] = -scene.light_pose[min(_LIGHTS, len(scene.lights)) - 1, 3:]
        if looks.geom_rgba is not None:
            colour, alpha = self._dyed(looks.geom_rgba[rows[:, None], self._geoms])
        if looks.light_diffuse is not None and len(self._lights):
            diffuse[:, 1] = looks.light_diffuse[rows, self._lights[0]]
        if looks.light_dir is not None and len(self._lights):
            to_light = -_unit(looks.light_dir[rows, self._lights[0]]).astype(np.float32)
        colour = np.repeat(255 * colour, len(rows) // len(colour), axis=0)
        glow = scene.ambient + scene.emission[:, None]
        alpha = np.repeat(alpha, len(rows) // len(alpha), axis=0)
        return Paint(colour * glow, colour[:, :, None] * diffuse[:, None], to_light, alpha, False)

    def _scene_of(self, looks: Looks, row: int) -> Scene:
        """Scene with the looks of one environment, for the slower kernels."""
        scene = self._scene
        lights, poses = scene.lights.copy(), scene.light_pose.copy()
        if looks.geom_rgba is not None:
            colour, alpha = self._dyed(looks.geom_rgba[row, self._geoms])
            scene = scene._replace(colour=colour, alpha=alpha)
        if looks.light_diffuse is not None:
            lights[1:, :3] = looks.light_diffuse[row, self._lights]
        if looks.light_dir is not None:
            poses[1:, 3:] = _unit(looks.light_dir[row, self._lights])
        return scene._replace(lights=lights, light_pose=poses)

    def _dyed(self, rgba: NDArray[np.floating]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Colours [..., V, 3] and opacities [..., V] of `rgba` [..., V, 4]; an opaque geom stays opaque."""
        rgba = np.clip(rgba, 0, 1).astype(np.float32)
        return rgba[..., :3] * self._tint, np.where(self._scene.alpha < 1, rgba[..., 3], np.float32(1))


def _unit(vectors: NDArray[np.floating]) -> NDArray[np.floating]:
    return vectors / np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), 1e-9)


def _some(paint: Paint, part: slice) -> Paint:
    return Paint(paint.base[part], paint.shine[part], paint.to_light[part], paint.alpha[part], paint.flat)


def _numbers(geoms: NDArray[np.int32]) -> Paint:
    """Flat paint with numbers of geoms as colours."""
    count = len(geoms)
    base = np.stack([geoms & 255, geoms >> 8 & 255, geoms >> 16], axis=1).astype(np.float32)
    none, alpha = np.zeros((1, count, _LIGHTS, 3), np.float32), np.ones((1, count), np.float32)
    return Paint(base[None], none, np.zeros((1, 3), np.float32), alpha, True)


def _rays(model: mujoco.MjModel, view: View) -> ScanView:
    tangent = np.tan(np.deg2rad(model.cam_fovy[camera_id(model, view.camera)]) / 2)
    us = np.empty(-(-view.width // LANES) * LANES, np.float32)
    us[: view.width] = pixel_centres(view.width) * np.float32(tangent * view.width / view.height)
    us[view.width :] = us[view.width - 1]
    vs = -pixel_centres(view.height) * np.float32(tangent)
    extent = model.stat.extent
    near, far = np.float32(model.vis.map.znear * extent), np.float32(model.vis.map.zfar * extent)
    return ScanView(us, vs, view.width, 1 / near, 1 / far)


def _layer(rays: ScanView, fixed: int) -> Layer:
    shape = (len(rays.vs), len(rays.us))
    return Layer(np.empty(shape, np.float32), np.empty(shape, np.int32), np.full((1 + fixed, 12), np.nan))
