"""Contracts of rendering: views of cameras, and painters that draw them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from simulators.render.looks import Looks

KINDS = ("rgb", "depth", "segmentation")
Fields = Mapping[str, NDArray[Any]]
Poses = Sequence[tuple[NDArray[np.float64], NDArray[np.float64]]]
"""For each view, the position [N, 3] and rotation matrix [N, 9] of its camera."""
Pictures = Sequence[dict[str, NDArray[Any]]]
"""For each view, kind to [N, H, W, ...]."""


@dataclass(frozen=True)
class View:
    """View of one camera.

    Attributes:
        camera: Name of a camera of the model.
        width: Pixels, 8 to 2048.
        height: Pixels, 8 to 2048.
        kinds: Of `KINDS`: `rgb` (H, W, 3) uint8, `depth` (H, W) float32 m along the optical axis (the far end of
            the model's view if nothing is seen), `segmentation` (H, W) int32 geoms, -1 for none.
    """

    camera: str
    width: int
    height: int
    kinds: tuple[str, ...] = ("rgb",)


class Painter(Protocol):
    """Renderer of views of a model.

    Attributes:
        fields: MjData fields that it reads.
    """

    fields: tuple[str, ...]

    def paint(self, fields: Fields, rows: NDArray[np.int64], poses: Poses, looks: Looks, pictures: Pictures) -> None:
        """Fill `pictures` of environments `rows` [N] seen from `poses`; `looks` belong to all environments."""
        ...

    def close(self) -> None: ...
