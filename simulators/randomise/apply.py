"""Application of drawn values to the physics of a batch or a model, and to the looks that cameras see."""

import copy
from collections.abc import Mapping
from typing import Any

import mujoco
import numpy as np
from numpy.typing import NDArray

from embodied.errors import DataError
from simulators.randomise.draw import APPEARANCE, PHYSICS, Drawn
from simulators.render.looks import Looks
from simulators.task import Array

_UNSET_RGBA = (0.5, 0.5, 0.5, 1.0)


def physics_fields(model: mujoco.MjModel, drawn: Mapping[str, NDArray[Any]]) -> dict[str, Array]:
    """MjModel field to [M, ...], from M rows of values of `draw`."""
    fields: dict[str, Array] = {}
    if "friction" in drawn:
        fields["geom_friction"] = model.geom_friction * drawn["friction"][:, None, None]
    if "mass" in drawn:
        fields["body_mass"] = model.body_mass * drawn["mass"]
        fields["body_inertia"] = model.body_inertia * drawn["mass"][:, :, None]
    if "gains" in drawn:
        stiffness, damping = np.moveaxis(drawn["gains"], 2, 0)
        gain = np.tile(model.actuator_gainprm, (len(stiffness), 1, 1))
        bias = np.tile(model.actuator_biasprm, (len(stiffness), 1, 1))
        gain[:, :, 0] *= stiffness
        bias[:, :, 1] *= stiffness
        bias[:, :, 2] *= damping
        fields["actuator_gainprm"], fields["actuator_biasprm"] = gain, bias
    return fields


def randomised_model(model: mujoco.MjModel, drawn: Mapping[str, NDArray[Any]]) -> mujoco.MjModel:
    """Model with the physics of one episode; `model` itself if its physics was not randomised.

    Args:
        model: The task's.
        drawn: `Episode.drawn`; only values of physics are read.

    Raises:
        DataError: The values do not fit this model.
    """
    rows = {name: np.asarray(drawn[name])[None] for name in PHYSICS if name in drawn}
    if not rows:
        return model
    made = copy.copy(model)
    try:
        for name, values in physics_fields(model, rows).items():
            getattr(made, name)[:] = values[0]
    except (ValueError, IndexError, np.exceptions.AxisError):
        fix = "use the task that was recorded"
        raise DataError("drawn values are not of this model", ", ".join(rows), fix) from None
    if "mass" in rows:
        mujoco.mj_setConst(made, mujoco.MjData(made))
    return made


def seen_model(model: mujoco.MjModel, drawn: Mapping[str, NDArray[Any]]) -> mujoco.MjModel:
    """Model with the colours, lights and camera poses of one episode; `model` itself if none were drawn.

    Args:
        model: The task's.
        drawn: `Episode.drawn`; only values of appearance are read.
    """
    rows = {name: np.asarray(drawn[name])[None] for name in APPEARANCE if name in drawn}
    if not rows:
        return model
    made, appearance = copy.copy(model), Appearance(model, 1)
    appearance.put(np.zeros(1, np.int32), rows)
    looks = appearance.looks
    for name in ("geom_rgba", "light_diffuse", "light_dir"):
        if (values := getattr(looks, name)) is not None:
            getattr(made, name)[:] = values[0]
    for camera in range(model.ncam):
        own, axis = model.cam_quat[camera], np.zeros(3)
        if looks.cam_pos is not None:
            mujoco.mju_rotVecQuat(axis, np.asarray(looks.cam_pos[0, camera], np.float64), own)
            made.cam_pos[camera] += axis
        if looks.cam_rot is not None:
            turn, turned = np.zeros(4), np.zeros(4)
            vector = np.asarray(looks.cam_rot[0, camera], np.float64)
            angle = float(np.linalg.norm(vector))
            mujoco.mju_axisAngle2Quat(turn, vector / max(angle, 1e-12), angle)
            mujoco.mju_mulQuat(turned, own, turn)
            made.cam_quat[camera] = turned
    return made


class Appearance:
    """Looks of B environments.

    Args:
        model: Model of the environments.
        count: B.

    Attributes:
        looks: For `Cameras.render`.
    """

    def __init__(self, model: mujoco.MjModel, count: int) -> None:
        self._rgba, self._diffuse, self._dir = _colours(model), model.light_diffuse.copy(), model.light_dir.copy()
        self._count = count
        self.looks = Looks()

    def put(self, ids: NDArray[Any], drawn: Drawn) -> None:
        """Set the looks of environments `ids` [M] to `drawn` [M, ...]."""
        if "colour" in drawn:
            rgba = np.tile(self._rgba, (len(ids), 1, 1))
            rgba[:, :, :3] = np.clip(rgba[:, :, :3] + drawn["colour"], 0.0, 1.0)
            self._set("geom_rgba", ids, rgba)
        if "light" in drawn:
            self._set("light_diffuse", ids, np.clip(self._diffuse * drawn["light"][:, :, None], 0.0, 1.0))
        if "light_dir" in drawn:
            self._set("light_dir", ids, rotate(np.asarray(drawn["light_dir"]), self._dir))
        if "camera_pos" in drawn:
            self._set("cam_pos", ids, drawn["camera_pos"])
        if "camera_rot" in drawn:
            self._set("cam_rot", ids, drawn["camera_rot"])

    def _set(self, name: str, ids: NDArray[Any], values: NDArray[Any]) -> None:
        if getattr(self.looks, name) is None:
            setattr(self.looks, name, np.zeros((self._count, *values.shape[1:])))
        getattr(self.looks, name)[ids] = values


def rotate(turn: Array, vector: Array) -> Array:
    """Vectors [..., 3] turned by rotation vectors [..., 3], by Rodrigues' formula."""
    angle = np.linalg.norm(turn, axis=-1, keepdims=True)
    axis = turn / np.maximum(angle, 1e-12)
    along = (axis * vector).sum(axis=-1, keepdims=True)
    return vector * np.cos(angle) + np.cross(axis, vector) * np.sin(angle) + axis * along * (1.0 - np.cos(angle))


def _colours(model: mujoco.MjModel) -> NDArray[np.float32]:
    """[G, 4] colours of geoms, or of their materials for those without one."""
    rgba = np.array(model.geom_rgba)
    unset = (model.geom_matid >= 0) & (rgba == np.array(_UNSET_RGBA, np.float32)).all(axis=1)
    rgba[unset] = model.mat_rgba[model.geom_matid[unset]]
    return rgba
