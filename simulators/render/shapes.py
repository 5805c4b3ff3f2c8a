"""Kinds of geoms in the fast ray caster, drawn row by row in inverse depth; compiled by numba.

A ray through image point (u, v) is d = (u, v, -1) in camera space, so its parameter t is the depth along the optical
axis. With w = 1 / t, depths are linear along an image row instead of quotients. A face of a box or a
plane is w = B + A u. The nearer root of a quadric c w^2 - 2 b w + a = 0 is w = (b + sqrt(b^2 - a c)) / c; its
discriminant is a quadratic form of (u, v, 1), whose zero is the silhouette and bounds the pixels of each row. The form
is brought to the vertex of each row in float64, so that float32 does not cancel.

Rows are padded to `LANES` pixels and the loops over them have no branches, so that LLVM makes vector code of them with
nothing left over. A colour is 0x00bbggrr. There are two lights, the headlight and a directional one.

Arguments: f [4, 3] is the camera in the frame of the geom (`kernels.place`) and m [2, 3] the directions to the lights
there; box the columns and rows to draw, first and last; view a `scan.ScanView`, base [3] and shine [2, 3] rows of a
`scan.Paint`; z and c [H, P] inverse depth and colour, changed wherever the geom is nearest so far.
"""

import math
from typing import Any

import numpy as np
from numba import njit

from simulators.render.kernels import BOX, CAPSULE, ELLIPSOID, PLANE, screen_bounds

LANES = 16

_ZERO, _ONE, _FULL, _BIG = np.float32(0), np.float32(1), np.float32(255), np.float32(1e30)
_NEARBY = 16.0
_RED, _GREEN, _BLUE = np.int32(0), np.int32(8), np.int32(16)
OPTIONS: dict[str, Any] = {
    "nogil": True,
    "error_model": "numpy",
    "fastmath": {"nsz", "arcp", "contract", "afn", "reassoc"},
}


@njit(inline="always")
def _pack(red, green, blue):  # type: ignore[no-untyped-def]
    r, g, b = np.int32(min(red, _FULL)), np.int32(min(green, _FULL)), np.int32(min(blue, _FULL))
    return r | (g << _GREEN) | (b << _BLUE)


@njit(**OPTIONS)
def _flat(base, shine, one, two):  # type: ignore[no-untyped-def]
    """Colour of a face from the cosines of its normal with the two lights."""
    one, two = max(one, _ZERO), max(two, _ZERO)
    return _pack(base[0] + one * shine[0, 0] + two * shine[1, 0], base[1] + one * shine[0, 1] + two * shine[1, 1],
                 base[2] + one * shine[0, 2] + two * shine[1, 2])  # fmt: skip


@njit(**OPTIONS)
def _columns(low, high, box, us):  # type: ignore[no-untyped-def]
    """Columns, in whole lanes, within the bounds `box` [4] that see u from `low` to `high`."""
    step = float(us[1]) - float(us[0])
    first = min(max((low - us[0]) / step, float(box[0])), float(box[1]))
    last = min(max((high - us[0]) / step + 1.0, float(box[0])), float(box[1]))
    if not first < last:
        return 0, 0
    return int(first) // LANES * LANES, (int(last) + LANES - 1) // LANES * LANES


# Rows of a quadric's form: w = (L0 u + L1 v + L2) + sqrt((K2 (u - m) + k) (u - m) + D), with m = M1 v + M0,
# k = K1 v + K0, D = (D2 v + D1) v + D0; W is -1 / K2 if the silhouette bounds a row, else 0.
M1, M0, K1, K0, D2, D1, D0, K2, L0, L1, L2, W = range(12)


@njit(**OPTIONS)
def _form(o, a, e, g, c, q):  # type: ignore[no-untyped-def]
    """Fill q [12] for the quadric a = |d|^2, b = -o d, c = |o|^2 - 1 with d = u a + v e - g, all [3]."""
    oa, oe, og = 0.0, 0.0, 0.0
    aa, ae, ag, ee, eg, gg = 0.0, 0.0, 0.0, 0.0, 0.0, 0.0
    for k in range(3):
        oa, oe, og = oa - o[k] * a[k], oe - o[k] * e[k], og + o[k] * g[k]
        aa, ae, ag = aa + a[k] * a[k], ae + a[k] * e[k], ag - a[k] * g[k]
        ee, eg, gg = ee + e[k] * e[k], eg - e[k] * g[k], gg + g[k] * g[k]
    w = 1.0 / c
    q[L0], q[L1], q[L2] = oa * w, oe * w, og * w
    w *= w
    quu, quv, qu = (oa * oa - c * aa) * w, (oa * oe - c * ae) * w, (oa * og - c * ag) * w
    qvv, qv, q1 = (oe * oe - c * ee) * w, (oe * og - c * eg) * w, (og * og - c * gg) * w
    q[K2] = quu
    # A vertex far outside the picture would itself cost digits.
    if quu < 0.0 and abs(quv) + abs(qu) < -_NEARBY * quu:
        q[M1], q[M0], q[K1], q[K0], q[W] = -quv / quu, -qu / quu, 0.0, 0.0, -1.0 / quu
        q[D2], q[D1], q[D0] = qvv - quv * quv / quu, 2.0 * (qv - quv * qu / quu), q1 - qu * qu / quu
    else:
        q[M1], q[M0], q[K1], q[K0], q[W] = 0.0, 0.0, 2.0 * quv, 2.0 * qu, 0.0
        q[D2], q[D1], q[D0] = qvv, 2.0 * qv, q1


@njit(**OPTIONS)
def _row(q, v):  # type: ignore[no-untyped-def]
    """The form at v: vertex, coefficients of the parabola, linear part, and the first and last u it bounds."""
    vertex, k1, d = q[M1] * v + q[M0], q[K1] * v + q[K0], (q[D2] * v + q[D1]) * v + q[D0]
    low, high = -1e30, 1e30
    if q[W] > 0.0:
        reach = math.sqrt(max(d, 0.0) * q[W]) if d > 0.0 else -1.0
        low, high = vertex - reach, vertex + reach
    return np.float32(vertex), np.float32(k1), np.float32(d), np.float32(q[L1] * v + q[L2]), low, high


@njit(**OPTIONS)
def _draw_box(f, size, box, view, limit, base, shine, m, z, c):  # type: ignore[no-untyped-def]
    us, vs = view.us, view.vs
    enter, leave, bias = np.empty(3, np.float32), np.empty((3, 2), np.float32), np.zeros(3, np.float32)
    paint = np.empty(3, np.int32)
    for k in range(3):
        o, s = f[3, k], size[k]
        side = math.copysign(_ONE, o)
        if abs(o) > s:
            enter[k], leave[k, 0] = -side / (abs(o) - s), -side / (abs(o) + s)
            leave[k, 1] = leave[k, 0]
        else:
            enter[k], bias[k] = _ZERO, _BIG
            leave[k, 0], leave[k, 1] = _ONE / max(s - o, np.float32(1e-9)), -_ONE / max(s + o, np.float32(1e-9))
        paint[k] = _flat(base, shine, side * m[0, k], side * m[1, k])
    a0, a1, a2 = f[0, 0] * enter[0], f[0, 1] * enter[1], f[0, 2] * enter[2]
    p0, p1, p2 = f[0, 0] * leave[0, 0], f[0, 1] * leave[1, 0], f[0, 2] * leave[2, 0]
    r0, r1, r2 = f[0, 0] * leave[0, 1], f[0, 1] * leave[1, 1], f[0, 2] * leave[2, 1]
    paint0, paint1, paint2 = paint[0], paint[1], paint[2]
    first, last = box[0] // LANES * LANES, (box[1] + LANES - 1) // LANES * LANES
    for y in range(box[2], box[3]):
        v = vs[y]
        d0, d1, d2 = v * f[1, 0] - f[2, 0], v * f[1, 1] - f[2, 1], v * f[1, 2] - f[2, 2]
        b0, b1, b2 = d0 * enter[0] + bias[0], d1 * enter[1] + bias[1], d2 * enter[2] + bias[2]
        q0, q1, q2 = d0 * leave[0, 0], d1 * leave[1, 0], d2 * leave[2, 0]
        s0, s1, s2 = d0 * leave[0, 1], d1 * leave[1, 1], d2 * leave[2, 1]
        u_row, z_row, c_row = us[first:last], z[y, first:last], c[y, first:last]
        for i in range(len(u_row)):
            u = u_row[i]
            e0, e1, e2 = b0 + u * a0, b1 + u * a1, b2 + u * a2
            x0, x1, x2 = max(q0 + u * p0, s0 + u * r0), max(q1 + u * p1, s1 + u * r1), max(q2 + u * p2, s2 + u * r2)
            w = min(e0, min(e1, e2))
            seen = (w > max(x0, max(x1, x2))) & (w > z_row[i]) & (w < limit)
            colour = paint0 if w == e0 else (paint1 if w == e1 else paint2)
            z_row[i] = w if seen else z_row[i]
            c_row[i] = colour if seen else c_row[i]


@njit(**OPTIONS)
def _draw_plane(f, size, box, view, limit, base, shine, m, z, c):  # type: ignore[no-untyped-def]
    if not f[3, 2] > _ZERO:
        return
    us, vs = view.us, view.vs
    scale, s0, s1, o0, o1 = -_ONE / f[3, 2], min(size[0], _BIG), min(size[1], _BIG), f[3, 0], f[3, 1]
    a0, a1, a2 = f[0, 0], f[0, 1], f[0, 2] * scale
    paint = _flat(base, shine, m[0, 2], m[1, 2])
    first, last = box[0] // LANES * LANES, (box[1] + LANES - 1) // LANES * LANES
    for y in range(box[2], box[3]):
        v = vs[y]
        b0, b1, b2 = v * f[1, 0] - f[2, 0], v * f[1, 1] - f[2, 1], (v * f[1, 2] - f[2, 2]) * scale
        u_row, z_row, c_row = us[first:last], z[y, first:last], c[y, first:last]
        for i in range(len(u_row)):
            u = u_row[i]
            w = b2 + u * a2
            within = (abs(o0 * w + b0 + u * a0) <= s0 * w) & (abs(o1 * w + b1 + u * a1) <= s1 * w)
            seen = within & (w > z_row[i]) & (w < limit)
            z_row[i] = w if seen else z_row[i]
            c_row[i] = paint if seen else c_row[i]


@njit(**OPTIONS)
def _draw_ellipsoid(f, k, shift, box, view, limit, base, shine, m, z, c):  # type: ignore[no-untyped-def]
    """An ellipsoid of inverse semi-axes k [3] about (0, 0, shift) in its own frame."""
    us, vs = view.us, view.vs
    q, n = np.empty(12), np.empty((4, 3))
    for axis in range(4):
        for j in range(3):
            n[axis, j] = f[axis, j] * k[j]
    n[3, 2] -= shift * k[2]
    outside = n[3, 0] * n[3, 0] + n[3, 1] * n[3, 1] + n[3, 2] * n[3, 2] - 1.0
    if not outside > 1e-6:
        return
    _form(n[3], n[0], n[1], n[2], outside, q)
    k0, k1, k2 = k[0], k[1], k[2]
    o0, o1, o2 = np.float32(n[3, 0]) * k0, np.float32(n[3, 1]) * k1, np.float32(n[3, 2]) * k2
    a0, a1, a2 = np.float32(n[0, 0]) * k0, np.float32(n[0, 1]) * k1, np.float32(n[0, 2]) * k2
    bend, slope = np.float32(q[K2]), np.float32(q[L0])
    m00, m01, m02, m10, m11, m12 = m[0, 0], m[0, 1], m[0, 2], m[1, 0], m[1, 1], m[1, 2]
    p0, p1, p2, s00, s01, s02 = base[0], base[1], base[2], shine[0, 0], shine[0, 1], shine[0, 2]
    s10, s11, s12 = shine[1, 0], shine[1, 1], shine[1, 2]
    for y in range(box[2], box[3]):
        v = vs[y]
        vertex, tilt, top, lift, low, high = _row(q, v)
        first, last = _columns(low, high, box, us)
        b0, b1, b2 = (np.float32(v * n[1, 0] - n[2, 0]) * k0, np.float32(v * n[1, 1] - n[2, 1]) * k1,
                      np.float32(v * n[1, 2] - n[2, 2]) * k2)  # fmt: skip
        u_row, z_row, c_row = us[first:last], z[y, first:last], c[y, first:last]
        for i in range(len(u_row)):
            u = u_row[i]
            du, ahead = u - vertex, lift + u * slope
            room = (bend * du + tilt) * du + top
            w = ahead + math.sqrt(max(room, _ZERO))
            seen = (room > _ZERO) & (ahead > _ZERO) & (w > z_row[i]) & (w < limit)
            t = _ONE / w
            g0, g1, g2 = o0 + t * (b0 + u * a0), o1 + t * (b1 + u * a1), o2 + t * (b2 + u * a2)
            scale = _ONE / math.sqrt(g0 * g0 + g1 * g1 + g2 * g2)
            one = max((g0 * m00 + g1 * m01 + g2 * m02) * scale, _ZERO)
            two = max((g0 * m10 + g1 * m11 + g2 * m12) * scale, _ZERO)
            colour = _pack(p0 + one * s00 + two * s10, p1 + one * s01 + two * s11, p2 + one * s02 + two * s12)
            z_row[i] = w if seen else z_row[i]
            c_row[i] = colour if seen else c_row[i]


@njit(**OPTIONS)
def _draw_tube(round_ends, f, size, box, view, limit, base, shine, m, z, c):  # type: ignore[no-untyped-def]
    """A capsule, or a cylinder, of radius size[0] and half length size[1] about z."""
    us, vs = view.us, view.vs
    r, h, o2 = size[0], size[1], f[3, 2]
    inverse = _ONE / r
    q, n = np.empty((3, 12)), np.zeros((4, 3))
    for axis in range(4):
        for j in range(2):
            n[axis, j] = f[axis, j] * inverse
    outside = n[3, 0] * n[3, 0] + n[3, 1] * n[3, 1] - 1.0
    aside = outside > 1e-5
    if aside:
        _form(n[3], n[0], n[1], n[2], outside, q[0])
    elif round_ends:
        if abs(o2) > h:  # along the axis only the nearer end is seen
            k = np.array((inverse, inverse, inverse))
            _draw_ellipsoid(f, k, math.copysign(h, o2), box, view, limit, base, shine, m, z, c)
        return
    else:
        for k in range(12):
            q[0, k] = -1.0 if k == D0 else 0.0
    for axis in range(4):
        n[axis, 2] = f[axis, 2] * inverse
    if round_ends:
        for end in range(1, 3):
            n[3, 2] = (o2 - (h if end == 1 else -h)) * inverse
            _form(n[3], n[0], n[1], n[2], outside + n[3, 2] * n[3, 2], q[end])
    m00, m01, m02, m10, m11, m12 = m[0, 0], m[0, 1], m[0, 2], m[1, 0], m[1, 1], m[1, 2]
    o0, o1, a0, a1, a2 = f[3, 0], f[3, 1], f[0, 0], f[0, 1], f[0, 2]
    om0, om1 = (o0 * m00 + o1 * m01) * inverse, (o0 * m10 + o1 * m11) * inverse
    am0, am1 = (a0 * m00 + a1 * m01) * inverse, (a0 * m10 + a1 * m11) * inverse
    up0, up1 = m02 * inverse, m12 * inverse
    p0, p1, p2, s00, s01, s02 = base[0], base[1], base[2], shine[0, 0], shine[0, 1], shine[0, 2]
    s10, s11, s12 = shine[1, 0], shine[1, 1], shine[1, 2]
    bend, slope = np.float32(q[0, K2]), np.float32(q[0, L0])
    bend1, slope1, bend2, slope2 = (
        np.float32(q[1, K2]),
        np.float32(q[1, L0]),
        np.float32(q[2, K2]),
        np.float32(q[2, L0]),
    )
    side = math.copysign(_ONE, o2)
    cap = -side / (abs(o2) - h) if abs(o2) > h else _ZERO
    lid, rim = _flat(base, shine, side * m02, side * m12), r * r
    for y in range(box[2], box[3]):
        v = vs[y]
        vertex, tilt, top, lift, low, high = _row(q[0], v)
        b0, b1, b2 = v * f[1, 0] - f[2, 0], v * f[1, 1] - f[2, 1], v * f[1, 2] - f[2, 2]
        bm0, bm1 = (b0 * m00 + b1 * m01) * inverse, (b0 * m10 + b1 * m11) * inverse
        first, last = _columns(low, high, box, us)
        u_row, z_row, c_row = us[first:last], z[y, first:last], c[y, first:last]
        if round_ends:
            vertex1, tilt1, top1, lift1, _, _ = _row(q[1], v)
            vertex2, tilt2, top2, lift2, _, _ = _row(q[2], v)
            for i in range(len(u_row)):
                u = u_row[i]
                du, ahead, d2 = u - vertex, lift + u * slope, b2 + u * a2
                room = (bend * du + tilt) * du + top
                w = ahead + math.sqrt(max(room, _ZERO))
                along = o2 * w + d2
                middle = abs(along) <= h * w
                du1, du2 = u - vertex1, u - vertex2
                room1, room2 = (bend1 * du1 + tilt1) * du1 + top1, (bend2 * du2 + tilt2) * du2 + top2
                room3 = room1 if along > _ZERO else room2
                ahead3 = lift1 + u * slope1 if along > _ZERO else lift2 + u * slope2
                w = w if middle else ahead3 + math.sqrt(max(room3, _ZERO))
                seen = (room > _ZERO) & (ahead > _ZERO) & (middle | (room3 > _ZERO)) & (w > z_row[i]) & (w < limit)
                t = _ONE / w
                height = o2 + t * d2
                height -= min(max(height, -h), h)
                one = max(om0 + t * (bm0 + u * am0) + height * up0, _ZERO)
                two = max(om1 + t * (bm1 + u * am1) + height * up1, _ZERO)
                colour = _pack(p0 + one * s00 + two * s10, p1 + one * s01 + two * s11, p2 + one * s02 + two * s12)
                z_row[i] = w if seen else z_row[i]
                c_row[i] = colour if seen else c_row[i]
        else:
            for i in range(len(u_row)):
                u = u_row[i]
                du, ahead, d2 = u - vertex, lift + u * slope, b2 + u * a2
                room = (bend * du + tilt) * du + top
                w = ahead + math.sqrt(max(room, _ZERO))
                middle = (room > _ZERO) & (ahead > _ZERO) & (abs(o2 * w + d2) <= h * w)
                w = w if middle else d2 * cap
                x0, x1 = o0 * w + b0 + u * a0, o1 * w + b1 + u * a1
                seen = (middle | (x0 * x0 + x1 * x1 <= rim * w * w)) & (w > z_row[i]) & (w < limit)
                t = _ONE / w
                one = max(om0 + t * (bm0 + u * am0), _ZERO)
                two = max(om1 + t * (bm1 + u * am1), _ZERO)
                colour = _pack(p0 + one * s00 + two * s10, p1 + one * s01 + two * s11, p2 + one * s02 + two * s12)
                colour = colour if middle else lid
                z_row[i] = w if seen else z_row[i]
                c_row[i] = colour if seen else c_row[i]


@njit(inline="always")
def draw_geom(g, view, table, base, shine, f, mat, to_light, z, c):  # type: ignore[no-untyped-def]
    """Raise z [H, P] to the inverse depth of one geom, and set c [H, P], wherever it is nearest so far."""
    x0, x1, y0, y1 = screen_bounds(f, table.reach[g], view.us, view.vs)
    x1 = min(x1, view.width)
    if not (x0 < x1 and y0 < y1):
        return
    box, size, kind = (x0, x1, y0, y1), table.size[g], table.kind[g]
    m = np.empty((2, 3), np.float32)
    for k in range(3):
        m[0, k] = f[2, k]
        m[1, k] = mat[k] * to_light[0] + mat[3 + k] * to_light[1] + mat[6 + k] * to_light[2]
    limit = view.limit
    if kind == BOX:
        _draw_box(f, size, box, view, limit, base, shine, m, z, c)
    elif kind == PLANE:
        _draw_plane(f, size, box, view, limit, base, shine, m, z, c)
    elif kind == ELLIPSOID:
        _draw_ellipsoid(f, _ONE / size, _ZERO, box, view, limit, base, shine, m, z, c)
    else:
        _draw_tube(kind == CAPSULE, f, size, box, view, limit, base, shine, m, z, c)
