"""Images without GL: a batched ray caster for planes, boxes, spheres, capsules, cylinders and ellipsoids.

It draws a model made of primitives as MuJoCo's own renderer does: geom groups 0 to 2, flat colours, the headlight and
the model's lights by Lambert's law, the sky, and on request the shadows of one light. It does not draw meshes, height
fields, sites, textures (their mean colour instead), reflections or highlights.
"""

from concurrent.futures import ThreadPoolExecutor

import mujoco
import numpy as np
from numpy.typing import NDArray

from embodied.errors import ConfigError, nearest
from simulators.render import kernels
from simulators.render.appearance import build_scene


def camera_id(model: mujoco.MjModel, camera: str) -> int:
    """Index of a camera by name.

    Raises:
        ConfigError: The model has no such camera.
    """
    known = isinstance(camera, str)  # MuJoCo crashes on anything else
    found = mujoco.mj_name2id(model, int(mujoco.mjtObj.mjOBJ_CAMERA), camera) if known else -1
    if found < 0:
        names = [model.camera(i).name for i in range(model.ncam)]
        raise ConfigError(f"unknown camera {camera!r}", "camera", nearest(camera, names))
    return found


class RayCaster:
    """Camera of one model, for a batch of states.

    Args:
        model: Colours, lights and textures are read once, here; lights stay as in the reference configuration.
        camera: Name of a camera; perspective, with the model's `fovy`.
        width: Pixels, at least 2.
        height: Pixels, at least 2.
        supersample: Each pixel is the mean of supersample x supersample rays.
        shadows: Whether the first light that casts shadows in the model does so here.
        threads: Threads among which the batch is divided.

    Raises:
        ConfigError: Unknown camera, or a size out of range.
    """

    def __init__(
        self,
        model: mujoco.MjModel,
        camera: str,
        width: int,
        height: int,
        supersample: int = 1,
        shadows: bool = False,
        threads: int = 1,
    ) -> None:
        if not (2 <= width <= 4096 and 2 <= height <= 4096 and 1 <= supersample <= 4 and threads >= 1):
            raise ConfigError(
                f"cannot draw {width}x{height} pixels with supersample {supersample} on {threads} threads",
                "camera",
                "use sizes of 2 to 4096, supersample 1 to 4, at least one thread",
            )
        self.width, self.height, self._supersample, self._threads = width, height, supersample, threads
        tangent = np.tan(np.deg2rad(model.cam_fovy[camera_id(model, camera)]) / 2)
        self._us = pixel_centres(width * supersample) * np.float32(tangent * width / height)
        self._vs = -pixel_centres(height * supersample) * np.float32(tangent)
        self._ngeom = model.ngeom
        self._geoms, self._scene = build_scene(model, shadows)

    def render(
        self,
        geom_xpos: NDArray[np.floating],
        geom_xmat: NDArray[np.floating],
        cam_xpos: NDArray[np.floating],
        cam_xmat: NDArray[np.floating],
    ) -> NDArray[np.uint8]:
        """Draw B images.

        Args:
            geom_xpos: [B, G, 3] positions of all the model's geoms, world frame, m.
            geom_xmat: [B, G, 9] their rotation matrices, row by row.
            cam_xpos: [B, 3] position of the camera.
            cam_xmat: [B, 9] its rotation matrix; it looks along -z with y up.

        Returns:
            [B, H, W, 3] RGB.
        """
        poses = self._visible(geom_xpos, geom_xmat, cam_xpos, cam_xmat)
        images = np.empty((len(poses[0]), self.height, self.width, 3), np.uint8)

        def draw(part: slice) -> None:
            batch = (pose[part] for pose in poses)
            kernels.draw(self._scene, *batch, self._us, self._vs, self._supersample, images[part])

        if self._threads == 1 or len(images) < 2:
            draw(slice(None))
        else:
            edges = np.linspace(0, len(images), min(self._threads, len(images)) + 1).astype(int)
            with ThreadPoolExecutor(self._threads) as pool:
                list(pool.map(draw, map(slice, edges[:-1], edges[1:])))
        return images

    def cast(
        self,
        geom_xpos: NDArray[np.floating],
        geom_xmat: NDArray[np.floating],
        cam_xpos: NDArray[np.floating],
        cam_xmat: NDArray[np.floating],
    ) -> tuple[NDArray[np.float32], NDArray[np.int32]]:
        """Depth and segmentation, one value per ray; arguments as in `render`.

        Returns:
            Depth along the optical axis in m, infinite for no geom, and the geom seen or -1; both [B, H, W].
        """
        poses = self._visible(geom_xpos, geom_xmat, cam_xpos, cam_xmat)
        shape = (len(poses[0]), len(self._vs), len(self._us))
        depth, hit = np.full(shape, np.inf, np.float32), np.full(shape, -1, np.int32)
        frame = np.empty((len(self._geoms), 4, 3), np.float32)
        for b, pose in enumerate(zip(*poses, strict=True)):
            kernels.place(*pose, frame)
            for layer in self._scene.layers:
                kernels.cast(layer, self._scene, frame, self._us, self._vs, depth[b], hit[b])
        return depth, np.append(self._geoms, np.int32(-1))[hit]

    def _visible(self, *poses: NDArray[np.floating]) -> list[NDArray[np.float64]]:
        pos, mat, cam_pos, cam_mat = (np.asarray(pose, np.float64) for pose in poses)
        batch = len(pos)
        pos = pos.reshape(batch, self._ngeom, 3)[:, self._geoms]
        mat = mat.reshape(batch, self._ngeom, 9)[:, self._geoms]
        return [np.ascontiguousarray(p) for p in (pos, mat, cam_pos.reshape(batch, 3), cam_mat.reshape(batch, 9))]


def pixel_centres(count: int) -> NDArray[np.float32]:
    """[count] centres of pixels that divide the interval from -1 to 1."""
    return ((2 * np.arange(count) + 1 - count) / count).astype(np.float32)
