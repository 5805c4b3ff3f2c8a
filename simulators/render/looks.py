"""Appearance of environments of one model, for domain randomisation."""

from dataclasses import dataclass, fields

import mujoco
import numpy as np
from numpy.typing import NDArray

from embodied.errors import ConfigError


@dataclass
class Looks:
    """Appearance of B environments; None stands for the model's.

    Attributes:
        geom_rgba: [B, G, 4] colour and opacity from 0 to 1 of all the model's geoms, instead of their own or their
            material's. A geom that is opaque in the model stays so, one that is invisible too.
        light_diffuse: [B, L, 3] RGB of the model's lights.
        light_dir: [B, L, 3] direction of each light, world frame, of any length.
        cam_pos: [B, C, 3] offset of the model's cameras in their own frames, m.
        cam_rot: [B, C, 3] turn of the cameras in their own frames, as rotation vectors, rad.
    """

    geom_rgba: NDArray[np.floating] | None = None
    light_diffuse: NDArray[np.floating] | None = None
    light_dir: NDArray[np.floating] | None = None
    cam_pos: NDArray[np.floating] | None = None
    cam_rot: NDArray[np.floating] | None = None

    def check(self, model: mujoco.MjModel, envs: int) -> None:
        """Raise `ConfigError` unless the arrays have the shapes of `envs` environments of this model."""
        shapes = {
            "geom_rgba": (envs, model.ngeom, 4),
            "light_diffuse": (envs, model.nlight, 3),
            "light_dir": (envs, model.nlight, 3),
            "cam_pos": (envs, model.ncam, 3),
            "cam_rot": (envs, model.ncam, 3),
        }
        for field in fields(self):
            given = getattr(self, field.name)
            if given is not None and np.shape(given) != shapes[field.name]:
                what = f"{field.name} of shape {np.shape(given)}"
                raise ConfigError(what, "looks", f"give {shapes[field.name]}")


def turned(
    looks: Looks, cam_xpos: NDArray[np.floating], cam_xmat: NDArray[np.floating], rows: NDArray[np.int64], camera: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Pose of one camera in environments `rows` [N], offsets included.

    Args:
        looks: The offsets.
        cam_xpos: [B, C, 3] positions of all cameras, world frame, m.
        cam_xmat: [B, C, 9] or [B, C, 3, 3] their rotation matrices.
        rows: [N] indices of environments.
        camera: Index of the camera.

    Returns:
        [N, 3] positions and [N, 9] rotation matrices.
    """
    pos = np.asarray(cam_xpos, np.float64).reshape(len(cam_xpos), -1, 3)[rows, camera]
    mat = np.asarray(cam_xmat, np.float64).reshape(len(cam_xmat), -1, 9)[rows, camera]
    if looks.cam_pos is not None:
        pos = pos + (mat.reshape(-1, 3, 3) @ looks.cam_pos[rows, camera, :, None])[:, :, 0]
    if looks.cam_rot is not None:
        mat = (mat.reshape(-1, 3, 3) @ _rotation(np.asarray(looks.cam_rot[rows, camera], np.float64))).reshape(-1, 9)
    return np.ascontiguousarray(pos), np.ascontiguousarray(mat)


def _rotation(vector: NDArray[np.float64]) -> NDArray[np.float64]:
    """[N, 3, 3] rotation matrices of rotation vectors [N, 3], by Rodrigues' formula."""
    angle = np.linalg.norm(vector, axis=1)[:, None, None]
    x, y, z = vector.T
    zero = np.zeros_like(x)
    cross = np.stack([zero, -z, y, z, zero, -x, -y, x, zero], axis=1).reshape(-1, 3, 3)
    return np.eye(3) + np.sinc(angle / np.pi) * cross + 0.5 * np.sinc(angle / (2 * np.pi)) ** 2 * (cross @ cross)
