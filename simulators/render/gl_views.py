"""Views drawn by MuJoCo's own renderer from a batch's arrays, one context per thread."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import mujoco
import numpy as np
from numpy.typing import NDArray

from embodied.errors import DeadlineExceeded
from simulators.render.appearance import opaque_geoms
from simulators.render.gl import open_context
from simulators.render.looks import Looks
from simulators.render.ray import camera_id
from simulators.render.view import Fields, Pictures, Poses, View

_DEADLINE_S = 600.0
_GEOM, _EVERY = int(mujoco.mjtObj.mjOBJ_GEOM), int(mujoco.mjtCatBit.mjCAT_ALL)
_SHADOW, _REFLECTION = int(mujoco.mjtRndFlag.mjRND_SHADOW), int(mujoco.mjtRndFlag.mjRND_REFLECTION)
_BY_NUMBER = [int(mujoco.mjtRndFlag.mjRND_SEGMENT), int(mujoco.mjtRndFlag.mjRND_IDCOLOR)]
_SHOWN = [int(mujoco.mjtVisFlag.mjVIS_TEXTURE), int(mujoco.mjtVisFlag.mjVIS_STATIC)]
_POSES = ("geom_xpos", "geom_xmat", "light_xpos", "light_xdir")


class GLPainter:
    """Painter of views by GL; see `view.Painter`.

    Args:
        model: Any model.
        views: Views to draw.
        threads: Threads; each draws a part of the batch in a context of its own.
        quality: Whether with shadows, reflections, smooth edges and finer round geoms.

    Raises:
        InfrastructureError: No GL that works.
    """

    fields: tuple[str, ...] = (*_POSES, "cam_xpos", "cam_xmat")

    def __init__(self, model: mujoco.MjModel, views: Sequence[View], threads: int, quality: bool) -> None:
        self._hands = [ThreadPoolExecutor(1, "render") for _ in range(threads)]
        self._easels: list[_Easel] = []
        try:
            for hand in self._hands:  # one after the other: each changes the model for a short time
                self._easels.append(_result(hand.submit(_Easel, model, views, quality)))
        except Exception:
            self.close()
            raise

    def paint(self, fields: Fields, rows: NDArray[np.int64], poses: Poses, looks: Looks, pictures: Pictures) -> None:
        edges = np.linspace(0, len(rows), min(len(self._hands), len(rows)) + 1).astype(int)
        parts = list(map(slice, edges[:-1], edges[1:]))
        waiting = [
            hand.submit(easel.paint, fields, rows, poses, looks, pictures, part)
            for hand, easel, part in zip(self._hands, self._easels, parts, strict=False)
        ]
        for future in waiting:
            _result(future)

    def close(self) -> None:
        for hand, easel in zip(self._hands, self._easels, strict=False):
            _result(hand.submit(easel.close))
        for hand in self._hands:
            hand.shutdown()
        self._hands, self._easels = [], []


def _result(future: Any) -> Any:
    try:
        return future.result(_DEADLINE_S)
    except TimeoutError:
        raise DeadlineExceeded(f"GL drew nothing for {_DEADLINE_S:g} s", "render", "use renderer ray") from None


class _Easel:
    """One thread's context, scene and MjData."""

    def __init__(self, model: mujoco.MjModel, views: Sequence[View], quality: bool) -> None:
        self._model, self._views, self._quality = model, views, quality
        self._cameras = [camera_id(model, view.camera) for view in views]
        self._data = mujoco.MjData(model)
        mujoco.mj_forward(model, self._data)
        self._scene = mujoco.MjvScene(model, model.ngeom + 100)
        self._camera, self._option = mujoco.MjvCamera(), mujoco.MjvOption()
        self._camera.type = int(mujoco.mjtCamera.mjCAMERA_FIXED)
        self._option.flags[:] = 0
        self._option.flags[_SHOWN] = 1
        for group in (self._option.sitegroup, self._option.skingroup, self._option.flexgroup):
            group[:] = 0
        self._opaque, self._lights = opaque_geoms(model), np.flatnonzero(model.light_active)
        self._far = model.vis.map.zfar * model.stat.extent
        self._near = model.vis.map.znear * model.stat.extent
        size = max(view.width for view in views), max(view.height for view in views)
        self._window, self._context = open_context(model, *size, lean=not quality)
        self._context.readDepthMap = int(mujoco.mjtDepthMap.mjDEPTH_ZEROFAR)

    def paint(
        self, fields: Fields, rows: NDArray[np.int64], poses: Poses, looks: Looks, pictures: Pictures, part: slice
    ) -> None:
        for i in range(part.start, part.stop):
            for name in _POSES:
                getattr(self._data, name)[:] = fields[name][rows[i]].reshape(getattr(self._data, name).shape)
            if looks.light_dir is not None:
                direction = looks.light_dir[rows[i]]
                length = np.maximum(np.linalg.norm(direction, axis=1, keepdims=True), 1e-9)
                self._data.light_xdir[:] = direction / length
            for view, camera, (eyes, axes), picture in zip(self._views, self._cameras, poses, pictures, strict=True):
                self._data.cam_xpos[camera], self._data.cam_xmat[camera] = eyes[i], axes[i]
                self._compose(camera, looks, int(rows[i]))
                rect = mujoco.MjrRect(0, 0, view.width, view.height)
                if "rgb" in picture:
                    image = np.empty((view.height, view.width, 3), np.uint8)
                    mujoco.mjr_render(rect, self._scene, self._context)
                    mujoco.mjr_readPixels(image, None, rect, self._context)
                    picture["rgb"][i] = image[::-1]
                if "depth" in picture or "segmentation" in picture:
                    depth, seen = self._measure(rect)
                    if "depth" in picture:
                        picture["depth"][i] = depth
                    if "segmentation" in picture:
                        picture["segmentation"][i] = seen

    def close(self) -> None:
        self._window.make_current()
        self._context.free()
        self._window.free()

    def _compose(self, camera: int, looks: Looks, row: int) -> None:
        """Update the scene to one environment as a camera sees it."""
        self._camera.fixedcamid = camera
        mujoco.mjv_updateScene(self._model, self._data, self._option, None, self._camera, _EVERY, self._scene)
        self._scene.flags[_SHADOW] = self._scene.flags[_REFLECTION] = self._quality
        if looks.geom_rgba is not None:
            for geom in self._scene.geoms[: self._scene.ngeom]:
                if geom.objtype == _GEOM:
                    geom.rgba[:] = np.clip(looks.geom_rgba[row, geom.objid], 0, 1)
                    if self._opaque[geom.objid]:
                        geom.rgba[3] = 1
        if looks.light_diffuse is not None:
            first = self._scene.nlight - len(self._lights)  # the headlight is before them
            for k, light in enumerate(self._lights):
                self._scene.lights[first + k].diffuse[:] = looks.light_diffuse[row, light]

    def _measure(self, rect: mujoco.MjrRect) -> tuple[NDArray[np.float32], NDArray[np.int32]]:
        """Depth in m and geoms, or -1, of the scene."""
        codes = np.empty((rect.height, rect.width, 3), np.uint8)
        nearness = np.empty((rect.height, rect.width), np.float32)
        self._scene.flags[_BY_NUMBER] = 1
        mujoco.mjr_render(rect, self._scene, self._context)
        mujoco.mjr_readPixels(codes, nearness, rect, self._context)
        self._scene.flags[_BY_NUMBER] = 0
        numbers = np.full(self._scene.ngeom + 1, -1, np.int32)
        for geom in self._scene.geoms[: self._scene.ngeom]:
            if geom.objtype == _GEOM and geom.segid >= 0:
                numbers[geom.segid + 1] = geom.objid
        code = codes.astype(np.int32) @ np.array([1, 256, 65536], np.int32)
        # Depth is stored as its inverse, 1 at the near end and 0 at the far one.
        depth = 1 / (1 / self._far + nearness * (1 / self._near - 1 / self._far))
        return depth[::-1].astype(np.float32), numbers[code][::-1]
