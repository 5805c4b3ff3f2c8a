"""Views drawn by the ray caster."""

from collections.abc import Mapping, Sequence
from typing import Any

import mujoco
import numpy as np
from numpy.typing import NDArray

from simulators.render.looks import Looks
from simulators.render.ray import RayCaster


class RayPainter:
    """Casts rays for each view of a batch; see `cameras.Painter`."""

    fields: tuple[str, ...] = ("geom_xpos", "geom_xmat", "cam_xpos", "cam_xmat")

    def __init__(self, model: mujoco.MjModel, views: Sequence[Any], threads: int) -> None:
        self._casters = [RayCaster(model, view.camera, view.width, view.height, threads=threads) for view in views]
        self._far = np.float32(model.vis.map.zfar * model.stat.extent)

    def paint(
        self,
        fields: Mapping[str, NDArray[Any]],
        rows: NDArray[np.int64],
        poses: Sequence[tuple[NDArray[np.float64], NDArray[np.float64]]],
        looks: Looks,
        pictures: Sequence[dict[str, NDArray[Any]]],
    ) -> None:
        geoms = (fields["geom_xpos"][rows], fields["geom_xmat"][rows])
        for caster, pose, picture in zip(self._casters, poses, pictures, strict=True):
            if "rgb" in picture:
                picture["rgb"][:] = caster.render(*geoms, *pose)
            if "depth" in picture or "segmentation" in picture:
                depth, seen = caster.cast(*geoms, *pose)
                if "depth" in picture:
                    np.minimum(depth, self._far, out=picture["depth"])
                if "segmentation" in picture:
                    picture["segmentation"][:] = np.where(depth < self._far, seen, -1)

    def close(self) -> None:
        """Nothing to release."""
