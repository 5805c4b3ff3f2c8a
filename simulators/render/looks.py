"""How bodies of one model differ in appearance, for domain randomisation."""

from dataclasses import dataclass, fields

import mujoco
import numpy as np
from numpy.typing import NDArray

from embodied.errors import ConfigError


@dataclass
class Looks:
    """The appearance of B bodies; what is None is the model's.

    Attributes:
        geom_rgba: [B, G, 4] colour and opacity from 0 to 1 of all the model's geoms, instead of their own or their
            material's. A geom that is opaque in the model stays so, one that is invisible too.
        light_diffuse: [B, L, 3] RGB of the model's lights.
        light_dir: [B, L, 3] direction in which each light shines, world frame; of any length.
        cam_pos: [B, C, 3] offset of the model's cameras in their own frames, m.
        cam_rot: [B, C, 3] turn of the cameras in their own frames, as rotation vectors, rad.
    """

    geom_rgba: NDArray[np.floating] | None = None
    light_diffuse: NDArray[np.floating] | None = None
    light_dir: NDArray[np.floating] | None = None
    cam_pos: NDArray[np.floating] | None = None
    cam_rot: NDArray[np.floating] | None = None

    def check(self, model: mujoco.MjModel, bodies: int) -> None:
        """Raise `ConfigError` unless the arrays are of `bodies` bodies of this model."""
        shapes = {
            "geom_rgba": (bodies, model.ngeom, 4),
            "light_diffuse": (bodies, model.nlight, 3),
            "light_dir": (bodies, model.nlight, 3),
            "cam_pos": (bodies, model.ncam, 3),
            "cam_rot": (bodies, model.ncam, 3),
        }
        for field in fields(self):
            given = getattr(self, field.name)
            if given is not None and np.shape(given) != shapes[field.name]:
                what = f"{field.name} of shape {np.shape(given)}"
                raise ConfigError(what, "looks", f"give {shapes[field.name]}")
