"""The ray caster's inner loops, compiled by numba.

All arithmetic is in the frame of one geom. Camera space looks along -z, so the ray through image point (u, v)
is (u, v, -1) and the ray parameter t is the depth along the optical axis. In a geom's frame a ray's direction is
linear in u along an image row: a few multiply-adds per pixel. The loops over a row have no branches, so that LLVM
turns them into vector code. Numbers are float32 and division by zero gives infinity, on purpose.

`scene` is an `appearance.Scene`. All kernels are in one file because numba's cache notices changes of the file that
holds a kernel only.
"""

import math
from typing import Any

import numpy as np
from numba import njit

PLANE, ELLIPSOID, CAPSULE, CYLINDER, BOX = range(5)

_ZERO, _HALF, _ONE = np.float32(0), np.float32(0.5), np.float32(1)
_FAR = np.float32(np.inf)
_TINY = np.float32(1e-12)
_NEAR = 1e-3
_STEEP = np.float32(8)
# Without nnan and ninf: rays parallel to a face divide by zero and must compare as infinite.
_OPTIONS: dict[str, Any] = {
    "cache": True,
    "nogil": True,
    "error_model": "numpy",
    "fastmath": {"nsz", "arcp", "contract", "afn", "reassoc"},
}


@njit(inline="always")
def _ellipsoid(o0, o1, o2, d0, d1, d2):  # type: ignore[no-untyped-def]
    """Depth of a ray's entry into the unit sphere; the point nearest to the centre comes first, for precision."""
    a = d0 * d0 + d1 * d1 + d2 * d2
    mid = -(o0 * d0 + o1 * d1 + o2 * d2) / a
    q0, q1, q2 = o0 + mid * d0, o1 + mid * d1, o2 + mid * d2
    room = _ONE - (q0 * q0 + q1 * q1 + q2 * q2)
    return mid - math.sqrt(room / a) if room > _ZERO else _FAR


@njit(inline="always")
def _tube(o0, o1, d0, d1, r):  # type: ignore[no-untyped-def]
    """Depths of a ray's entry into and exit from the infinite cylinder about z."""
    a = max(d0 * d0 + d1 * d1, _TINY)
    mid = -(o0 * d0 + o1 * d1) / a
    q0, q1 = o0 + mid * d0, o1 + mid * d1
    room = r * r - (q0 * q0 + q1 * q1)
    half = math.sqrt(max(room, _ZERO) / a)
    enter = mid - half if room > _ZERO else _FAR
    return enter, mid + half


@njit(inline="always")
def _capsule(o0, o1, o2, d0, d1, d2, r, h):  # type: ignore[no-untyped-def]
    side, _ = _tube(o0, o1, d0, d1, r)
    z = o2 + side * d2
    c2 = o2 - min(max(z, -h), h)
    a = d0 * d0 + d1 * d1 + d2 * d2
    mid = -(o0 * d0 + o1 * d1 + c2 * d2) / a
    q0, q1, q2 = o0 + mid * d0, o1 + mid * d1, c2 + mid * d2
    room = r * r - (q0 * q0 + q1 * q1 + q2 * q2)
    cap = mid - math.sqrt(max(room, _ZERO) / a) if room > _ZERO else _FAR
    t = side if abs(z) <= h else cap
    return t if side < _FAR else _FAR


@njit(inline="always")
def _slab(o, d, s):  # type: ignore[no-untyped-def]
    inverse = _ONE / d
    one, other = (-s - o) * inverse, (s - o) * inverse
    return min(one, other), max(one, other)


@njit(inline="always")
def _cylinder(o0, o1, o2, d0, d1, d2, r, h):  # type: ignore[no-untyped-def]
    enter, leave = _tube(o0, o1, d0, d1, r)
    low, high = _slab(o2, d2, h)
    t = max(enter, low)
    return t if t < min(leave, high) else _FAR


@njit(inline="always")
def _box(o0, o1, o2, d0, d1, d2, s0, s1, s2):  # type: ignore[no-untyped-def]
    low0, high0 = _slab(o0, d0, s0)
    low1, high1 = _slab(o1, d1, s1)
    low2, high2 = _slab(o2, d2, s2)
    t = max(low0, max(low1, low2))
    return t if t < min(high0, min(high1, high2)) else _FAR


@njit(inline="always")
def _plane(o0, o1, o2, d0, d1, d2, s0, s1):  # type: ignore[no-untyped-def]
    t = -o2 / d2
    inside = (d2 < _ZERO) & (abs(o0 + t * d0) <= s0) & (abs(o1 + t * d1) <= s1)
    return t if inside else _FAR


@njit(**_OPTIONS)
def place(pos, mat, cam_pos, cam_mat, frame):  # type: ignore[no-untyped-def]
    """Fill `frame` [V, 4, 3]: the camera's three axes (rows 0 to 2) and its position (row 3) in each geom's frame."""
    for g in range(len(pos)):
        for k in range(3):
            for axis in range(3):
                total = 0.0
                for j in range(3):
                    total += cam_mat[3 * j + axis] * mat[g, 3 * j + k]
                frame[g, axis, k] = total
            total = 0.0
            for j in range(3):
                total += (cam_pos[j] - pos[g, j]) * mat[g, 3 * j + k]
            frame[g, 3, k] = total


@njit(**_OPTIONS)
def screen_bounds(f, reach, us, vs):  # type: ignore[no-untyped-def]
    """First and last column and row that the oriented box `reach` [3] can touch; the last ones are excluded."""
    wide, high = len(us), len(vs)
    if reach[0] == _FAR or reach[1] == _FAR:
        return 0, wide, 0, high
    corners = np.empty((8, 3), np.float32)
    for c in range(8):
        p0 = (reach[0] if c & 1 else -reach[0]) - f[3, 0]
        p1 = (reach[1] if c & 2 else -reach[1]) - f[3, 1]
        p2 = (reach[2] if c & 4 else -reach[2]) - f[3, 2]
        for axis in range(3):
            corners[c, axis] = f[axis, 0] * p0 + f[axis, 1] * p1 + f[axis, 2] * p2
    u0, u1, v0, v1 = np.inf, -np.inf, np.inf, -np.inf
    for c in range(8):
        depth = -corners[c, 2]
        if depth >= _NEAR:
            u, v = corners[c, 0] / depth, corners[c, 1] / depth
            u0, u1, v0, v1 = min(u0, u), max(u1, u), min(v0, v), max(v1, v)
        for bit in range(3):
            # An edge that crosses the near plane is cut there.
            other = c ^ (1 << bit)
            beyond = -corners[other, 2]
            if depth < _NEAR and beyond >= _NEAR:
                w = (_NEAR - depth) / (beyond - depth)
                u = (corners[c, 0] + w * (corners[other, 0] - corners[c, 0])) / _NEAR
                v = (corners[c, 1] + w * (corners[other, 1] - corners[c, 1])) / _NEAR
                u0, u1, v0, v1 = min(u0, u), max(u1, u), min(v0, v), max(v1, v)
    du, dv = us[1] - us[0], vs[0] - vs[1]
    x0, x1 = np.floor((u0 - us[0]) / du), np.ceil((u1 - us[0]) / du) + 1.0
    y0, y1 = np.floor((vs[0] - v1) / dv), np.ceil((vs[0] - v0) / dv) + 1.0
    # Clamped as floats: a geom beside the near plane projects beyond the range of an integer.
    x0, x1 = min(max(x0, 0.0), float(wide)), min(max(x1, 0.0), float(wide))
    y0, y1 = min(max(y0, 0.0), float(high)), min(max(y1, 0.0), float(high))
    if not (x0 < x1 and y0 < y1):  # not in view, or a pose that is not a number
        return 0, 0, 0, 0
    return int(x0), int(x1), int(y0), int(y1)


@njit(**_OPTIONS)
def cast(layer, scene, frame, us, vs, depth, hit):  # type: ignore[no-untyped-def]
    """Lower `depth` [H, W] and set `hit` [H, W] wherever a geom of `layer` [2] is nearest so far."""
    near = np.float32(_NEAR)
    kind, size = scene.kind, scene.size
    for g in range(layer[0], layer[1]):
        f = frame[g]
        x0, x1, y0, y1 = screen_bounds(f, scene.reach[g], us, vs)
        s0, s1, s2 = size[g, 0], size[g, 1], size[g, 2]
        k0, k1, k2 = (_ONE / s0, _ONE / s1, _ONE / s2) if kind[g] == ELLIPSOID else (_ONE, _ONE, _ONE)
        o0, o1, o2 = f[3, 0] * k0, f[3, 1] * k1, f[3, 2] * k2
        a0, a1, a2 = f[0, 0] * k0, f[0, 1] * k1, f[0, 2] * k2
        what = np.int32(g)
        if kind[g] == PLANE and o2 <= _ZERO:
            continue
        for y in range(y0, y1):
            v = vs[y]
            b0, b1, b2 = (v * f[1, 0] - f[2, 0]) * k0, (v * f[1, 1] - f[2, 1]) * k1, (v * f[1, 2] - f[2, 2]) * k2
            z, h = depth[y], hit[y]
            # One loop for each kind, so that the choice is made once per row and the loops have no branches.
            if kind[g] == BOX:
                for x in range(x0, x1):
                    u = us[x]
                    t = _box(o0, o1, o2, b0 + u * a0, b1 + u * a1, b2 + u * a2, s0, s1, s2)
                    closer = (t > near) & (t < z[x])
                    z[x] = t if closer else z[x]
                    h[x] = what if closer else h[x]
            elif kind[g] == CAPSULE:
                for x in range(x0, x1):
                    u = us[x]
                    t = _capsule(o0, o1, o2, b0 + u * a0, b1 + u * a1, b2 + u * a2, s0, s1)
                    closer = (t > near) & (t < z[x])
                    z[x] = t if closer else z[x]
                    h[x] = what if closer else h[x]
            elif kind[g] == PLANE:
                for x in range(x0, x1):
                    u = us[x]
                    t = _plane(o0, o1, o2, b0 + u * a0, b1 + u * a1, b2 + u * a2, s0, s1)
                    closer = (t > near) & (t < z[x])
                    z[x] = t if closer else z[x]
                    h[x] = what if closer else h[x]
            elif kind[g] == ELLIPSOID:
                for x in range(x0, x1):
                    u = us[x]
                    t = _ellipsoid(o0, o1, o2, b0 + u * a0, b1 + u * a1, b2 + u * a2)
                    closer = (t > near) & (t < z[x])
                    z[x] = t if closer else z[x]
                    h[x] = what if closer else h[x]
            else:
                for x in range(x0, x1):
                    u = us[x]
                    t = _cylinder(o0, o1, o2, b0 + u * a0, b1 + u * a1, b2 + u * a2, s0, s1)
                    closer = (t > near) & (t < z[x])
                    z[x] = t if closer else z[x]
                    h[x] = what if closer else h[x]


@njit(inline="always")
def _normal(kind, q0, q1, q2, s0, s1, s2):  # type: ignore[no-untyped-def]
    """Unit normal of the surface at the local point q."""
    if kind == PLANE:
        return _ZERO, _ZERO, _ONE
    if kind == BOX:
        r0, r1, r2 = abs(q0) / s0, abs(q1) / s1, abs(q2) / s2
        if r0 >= r1 and r0 >= r2:
            return math.copysign(_ONE, q0), _ZERO, _ZERO
        if r1 >= r2:
            return _ZERO, math.copysign(_ONE, q1), _ZERO
        return _ZERO, _ZERO, math.copysign(_ONE, q2)
    if kind == CAPSULE:
        n0, n1, n2 = q0, q1, q2 - min(max(q2, -s1), s1)
    elif kind == CYLINDER:
        if s1 - abs(q2) < s0 - math.sqrt(q0 * q0 + q1 * q1):
            return _ZERO, _ZERO, math.copysign(_ONE, q2)
        n0, n1, n2 = q0, q1, _ZERO
    else:
        n0, n1, n2 = q0 / (s0 * s0), q1 / (s1 * s1), q2 / (s2 * s2)
    scale = _ONE / math.sqrt(n0 * n0 + n1 * n1 + n2 * n2)
    return n0 * scale, n1 * scale, n2 * scale


@njit(inline="always")
def _lit_share(shadow, l0, l1, depth, tangent, facing):  # type: ignore[no-untyped-def]
    """Share of light that reaches image point (l0, l1) at `depth` of the shadow map, bilinear between four texels."""
    side = shadow.shape[0]
    texel = np.float32(2) * tangent * depth / np.float32(side)
    x = l0 / texel + _HALF * np.float32(side - 1)
    y = _HALF * np.float32(side - 1) - l1 / texel
    if not (x >= _ZERO and y >= _ZERO and x < np.float32(side - 1) and y < np.float32(side - 1)):
        return _ONE
    i, j = int(x), int(y)
    fx, fy = x - np.float32(i), y - np.float32(j)
    # A surface must not shade itself: within a texel its depth varies with its slope.
    limit = depth - texel * (_ONE + min(math.sqrt(max(_ONE - facing * facing, _ZERO)) / facing, _STEEP))
    top = (_ONE - fx) * np.float32(shadow[j, i] > limit) + fx * np.float32(shadow[j, i + 1] > limit)
    low = (_ONE - fx) * np.float32(shadow[j + 1, i] > limit) + fx * np.float32(shadow[j + 1, i + 1] > limit)
    return (_ONE - fy) * top + fy * low


@njit(**_OPTIONS)
def _aim(scene, pos, mat, frame, beam):  # type: ignore[no-untyped-def]
    """Fill `beam` [V, L, 2, 3]: each light's position, or the direction to it, and its axis, in each geom's frame."""
    for g in range(len(pos)):
        for axis in range(3):
            beam[g, 0, 0, axis] = frame[g, 2, axis]
        for k in range(1, len(scene.lights)):
            pose = scene.light_pose[k]
            placed = scene.lights[k, 8] > _ZERO
            for axis in range(3):
                to_light, along = 0.0, 0.0
                for j in range(3):
                    to_light += mat[g, 3 * j + axis] * (pose[j] - pos[g, j] if placed else -pose[3 + j])
                    along += mat[g, 3 * j + axis] * pose[3 + j]
                beam[g, k, 0, axis], beam[g, k, 1, axis] = to_light, along


@njit(**_OPTIONS)
def _shade(layer, scene, frame, beam, us, vs, depth, hit, cam_mat, shadow, to_light, image):  # type: ignore[no-untyped-def]
    """Paint the geoms of a layer in `hit` into `image`; layer 0 paints the sky behind it too."""
    height, width = hit.shape
    up0, up1, up2 = np.float32(cam_mat[6]), np.float32(cam_mat[7]), np.float32(cam_mat[8])
    sky, lights, ambient = scene.sky, scene.lights, scene.ambient
    for y in range(height):
        v = vs[y]
        for x in range(width):
            g, u = hit[y, x], us[x]
            if g < 0:
                if layer == 0:
                    rise = (u * up0 + v * up1 - up2) / math.sqrt(u * u + v * v + _ONE)
                    row = min(max(int((_ONE - rise) * _HALF * np.float32(len(sky) - 1) + _HALF), 0), len(sky) - 1)
                    for c in range(3):
                        image[y, x, c] = np.uint8(sky[row, c])
                continue
            f, t, kind = frame[g], depth[y, x], scene.kind[g]
            q0 = f[3, 0] + t * (u * f[0, 0] + v * f[1, 0] - f[2, 0])
            q1 = f[3, 1] + t * (u * f[0, 1] + v * f[1, 1] - f[2, 1])
            q2 = f[3, 2] + t * (u * f[0, 2] + v * f[1, 2] - f[2, 2])
            n0, n1, n2 = _normal(kind, q0, q1, q2, scene.size[g, 0], scene.size[g, 1], scene.size[g, 2])
            glow = scene.emission[g]
            red, green, blue = ambient[0] + glow, ambient[1] + glow, ambient[2] + glow
            for k in range(len(lights)):
                m0, m1, m2 = beam[g, k, 0, 0], beam[g, k, 0, 1], beam[g, k, 0, 2]
                strength = _ONE
                if lights[k, 8] > _ZERO:
                    m0, m1, m2 = m0 - q0, m1 - q1, m2 - q2
                    distance = math.sqrt(m0 * m0 + m1 * m1 + m2 * m2)
                    m0, m1, m2 = m0 / distance, m1 / distance, m2 / distance
                    along = -(m0 * beam[g, k, 1, 0] + m1 * beam[g, k, 1, 1] + m2 * beam[g, k, 1, 2])
                    if along < lights[k, 6]:
                        continue
                    fade = lights[k, 3] + distance * (lights[k, 4] + distance * lights[k, 5])
                    strength = (max(along, _ZERO) ** lights[k, 7] if lights[k, 7] > _ZERO else _ONE) / fade
                facing = n0 * m0 + n1 * m1 + n2 * m2
                if facing <= _ZERO:
                    continue
                if k == scene.shadow_light:
                    c0, c1, w = u * t, v * t, to_light
                    l0 = w[0, 0] * c0 + w[1, 0] * c1 - w[2, 0] * t + w[3, 0]
                    l1 = w[0, 1] * c0 + w[1, 1] * c1 - w[2, 1] * t + w[3, 1]
                    l2 = w[0, 2] * c0 + w[1, 2] * c1 - w[2, 2] * t + w[3, 2]
                    strength *= _lit_share(shadow, l0, l1, -l2, np.float32(scene.shadow_tangent), facing)
                strength *= facing
                red += strength * lights[k, 0]
                green += strength * lights[k, 1]
                blue += strength * lights[k, 2]
            red, green, blue = red * scene.colour[g, 0], green * scene.colour[g, 1], blue * scene.colour[g, 2]
            share = scene.alpha[g]
            keep, full = _ONE - share, np.float32(255) * share
            image[y, x, 0] = np.uint8(keep * np.float32(image[y, x, 0]) + full * min(red, _ONE))
            image[y, x, 1] = np.uint8(keep * np.float32(image[y, x, 1]) + full * min(green, _ONE))
            image[y, x, 2] = np.uint8(keep * np.float32(image[y, x, 2]) + full * min(blue, _ONE))


@njit(**_OPTIONS)
def _reduce(image, factor, out):  # type: ignore[no-untyped-def]
    """Average blocks of factor x factor pixels of `image` into `out` [H, W, 3]."""
    count = factor * factor
    for y in range(out.shape[0]):
        for x in range(out.shape[1]):
            for c in range(3):
                total = count // 2
                for j in range(factor):
                    for i in range(factor):
                        total += image[factor * y + j, factor * x + i, c]
                out[y, x, c] = total // count


@njit(**_OPTIONS)
def draw(scene, pos, mat, cam_pos, cam_mat, us, vs, factor, images):  # type: ignore[no-untyped-def]
    """Draw B images [B, H, W, 3] of geoms at pos [B, V, 3], mat [B, V, 9] by rays us [factor W], vs [factor H]."""
    geoms, side = len(scene.kind), scene.shadow_side
    frame = np.empty((geoms, 4, 3), np.float32)
    beam = np.empty((geoms, len(scene.lights), 2, 3), np.float32)
    depth, hit = np.empty((len(vs), len(us)), np.float32), np.empty((len(vs), len(us)), np.int32)
    canvas = np.empty((len(vs), len(us), 3), np.uint8)
    shadow, blocker = np.empty((side, side), np.float32), np.empty((side, side), np.int32)
    shadow_us = ((2 * np.arange(side) + 1 - side) / side * scene.shadow_tangent).astype(np.float32)
    eye, eye_mat = scene.shadow_camera[:3], scene.shadow_camera[3:]
    to_light = np.empty((1, 4, 3), np.float32)
    for b in range(len(images)):
        if scene.shadow_light >= 0:
            place(pos[b], mat[b], eye, eye_mat, frame)
            shadow[:] = _FAR
            cast(scene.layers[0], scene, frame, shadow_us, -shadow_us, shadow, blocker)
            place(eye.reshape(1, 3), eye_mat.reshape(1, 9), cam_pos[b], cam_mat[b], to_light)
        place(pos[b], mat[b], cam_pos[b], cam_mat[b], frame)
        _aim(scene, pos[b], mat[b], frame, beam)
        image = canvas if factor > 1 else images[b]
        depth[:] = _FAR
        for k in range(len(scene.layers)):
            hit[:] = -1
            cast(scene.layers[k], scene, frame, us, vs, depth, hit)
            _shade(k, scene, frame, beam, us, vs, depth, hit, cam_mat[b], shadow, to_light[0], image)
        if factor > 1:
            _reduce(canvas, factor, images[b])
