"""Fast ray caster: pictures of a batch of environments, or depth and the geoms seen; compiled by numba.

Fixed geoms are drawn once per camera, and copied as long as neither they nor the camera has moved.
"""

import math
import zlib
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from simulators.render import kernels, shapes
from simulators.render.kernels import place
from simulators.render.shapes import OPTIONS, draw_geom

NOTHING = np.int32(-1)
_RED, _GREEN, _BLUE, _BYTE = np.int32(0), np.int32(8), np.int32(16), np.int32(255)
_HALF, _ONE = np.float32(0.5), np.float32(1)


class ScanView(NamedTuple):
    """The rays of a camera.

    Attributes:
        us: [P] float32 across, at depth 1, of `width` columns and some more that fill the last lanes.
        vs: [H] float32 upwards, at depth 1, from the top row down.
        width: Columns.
        limit: Inverse of the least visible depth, 1/m.
        least: Inverse of the largest, the depth of empty pixels, 1/m.
    """

    us: NDArray[np.float32]
    vs: NDArray[np.float32]
    width: int
    limit: np.float32
    least: np.float32


class Table(NamedTuple):
    """V geoms: the `fixed` ones that never move, then other opaque ones up to `opaque`, then translucent ones.

    `kind`, `size` and `reach` are those of `appearance.Scene`; `sky` [N] its colours, packed.
    """

    kind: NDArray[np.int32]
    size: NDArray[np.float32]
    reach: NDArray[np.float32]
    sky: NDArray[np.int32]
    fixed: int
    opaque: int


class Paint(NamedTuple):
    """Colours of V geoms from 0 to 255, for each of N environments; N is 1 if all are alike.

    Attributes:
        base: [N, V, 3] without lights.
        shine: [N, V, 2, 3] added by the headlight and by the other light at normal incidence.
        to_light: [N, 3] direction to the other light, world frame.
        alpha: [N, V] opacity of translucent geoms.
        flat: Whether base is the number of a geom, byte by byte, to be written as it is.
    """

    base: NDArray[np.float32]
    shine: NDArray[np.float32]
    to_light: NDArray[np.float32]
    alpha: NDArray[np.float32]
    flat: bool


class Layer(NamedTuple):
    """A drawing in progress: inverse depth and packed colours, both [H, P]; and a kept one's poses [1 + F, 12].

    The poses of the camera and the fixed geoms are position and rotation matrix; NaN if nothing was kept.
    """

    depth: NDArray[np.float32]
    colour: NDArray[np.int32]
    poses: NDArray[np.float64]


@njit(**OPTIONS)
def _is_kept(kept, pos, mat, eye, axes):  # type: ignore[no-untyped-def]
    same = True
    for k in range(3):
        same &= kept.poses[0, k] == eye[k]
    for k in range(9):
        same &= kept.poses[0, 3 + k] == axes[k]
    for g in range(len(kept.poses) - 1):
        for k in range(3):
            same &= kept.poses[1 + g, k] == pos[g, k]
        for k in range(9):
            same &= kept.poses[1 + g, 3 + k] == mat[g, k]
    return same


@njit(**OPTIONS)
def _begin(copy, kept, least, z, colour):  # type: ignore[no-untyped-def]
    """Start from a kept layer, or from nothing; by loops, since assigning slices costs seconds to compile."""
    for y in range(z.shape[0]):
        for x in range(z.shape[1]):
            z[y, x] = kept.depth[y, x] if copy else least
            colour[y, x] = kept.colour[y, x] if copy else NOTHING


@njit(**OPTIONS)
def _fill_sky(view, sky, axes, colour):  # type: ignore[no-untyped-def]
    """Colour empty pixels (NOTHING) by the sine of their elevation."""
    up0, up1, up2 = np.float32(axes[6]), np.float32(axes[7]), np.float32(axes[8])
    last = len(sky) - 1
    for y in range(len(view.vs)):
        v = view.vs[y]
        for x in range(view.width):
            if colour[y, x] == NOTHING:
                u = view.us[x]
                rise = (u * up0 + v * up1 - up2) / math.sqrt(u * u + v * v + _ONE)
                colour[y, x] = sky[min(max(int((_ONE - rise) * _HALF * np.float32(last) + _HALF), 0), last)]


@njit(**OPTIONS)
def _blend(share, top, colour):  # type: ignore[no-untyped-def]
    """Blend the pixels of `top` other than NOTHING over `colour` at opacity `share`, and clear `top`."""
    for y in range(colour.shape[0]):
        for x in range(colour.shape[1]):
            if top[y, x] != NOTHING:
                mixed = np.int32(0)
                for bits in (_RED, _GREEN, _BLUE):
                    below, above = (colour[y, x] >> bits) & _BYTE, (top[y, x] >> bits) & _BYTE
                    mixed |= np.int32(np.float32(below) + share * np.float32(above - below)) << bits
                colour[y, x], top[y, x] = mixed, NOTHING


@njit(**OPTIONS)
def _unpack(colour, image):  # type: ignore[no-untyped-def]
    for y in range(image.shape[0]):
        row, out = colour[y, : image.shape[1]], image[y]
        for x in range(len(row)):
            out[x, 0] = row[x] & _BYTE
            out[x, 1] = (row[x] >> _GREEN) & _BYTE
            out[x, 2] = (row[x] >> _BLUE) & _BYTE


def _compiled(stamp):  # type: ignore[no-untyped-def]
    """`draw`, kept in numba's cache under `stamp` too: by itself the cache notices changes of this file only."""

    @njit(cache=True, **OPTIONS)
    def draw(view, table, pos, mat, eyes, axes, paint, kept, layer, top, images, depth, geoms):  # type: ignore[no-untyped-def]
        """Draw N environments.

        Args:
            view, table, paint: Rays, geoms and their colours.
            pos, mat: [N, V, 3], [N, V, 9] float64 poses of the table's geoms, world frame.
            eyes, axes: [N, 3], [N, 9] float64 poses of the camera.
            kept: Layer of the fixed geoms, copied for environments with its poses.
            layer, top: Scratch; `top` is NOTHING everywhere, and left so.
            images: [N, H, W, 3] uint8, filled unless the paint is flat.
            depth, geoms: [N, H, W] float32 and int32, filled if the paint is flat.
        """
        if stamp < 0:
            return
        f = np.empty((1, 4, 3), np.float32)
        z, colour = layer.depth, layer.colour
        for i in range(len(pos)):
            look = i if len(paint.base) > 1 else 0
            start = len(kept.poses) - 1 if _is_kept(kept, pos[i], mat[i], eyes[i], axes[i]) else 0
            _begin(start > 0, kept, view.least, z, colour)
            for g in range(start, len(table.kind) + 1):
                if g == table.opaque and start == 0 and not paint.flat:
                    _fill_sky(view, table.sky, axes[i], colour)
                if g == len(table.kind):
                    break
                place(pos[i, g : g + 1], mat[i, g : g + 1], eyes[i], axes[i], f)
                clear = g >= table.opaque and not paint.flat
                base, shine, onto = paint.base[look, g], paint.shine[look, g], top if clear else colour
                draw_geom(g, view, table, base, shine, f[0], mat[i, g], paint.to_light[look], z, onto)
                if clear:
                    _blend(paint.alpha[look, g], top, colour)
            if paint.flat:
                for y in range(depth.shape[1]):
                    for x in range(depth.shape[2]):
                        depth[i, y, x], geoms[i, y, x] = _ONE / z[y, x], colour[y, x]
            else:
                _unpack(colour, images[i])

    return draw


draw = _compiled(zlib.crc32(b"".join(Path(str(module.__file__)).read_bytes() for module in (kernels, shapes))))
