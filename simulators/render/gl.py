"""MuJoCo's own renderer without a display: search for a working GL, and drawing with shadows and smooth edges.

The environment variable `EMBODIED_GL` chooses: unset for the first that works, `egl` or `osmesa` for that one only,
`off` for none, which leaves all drawing to the ray caster.
"""

import functools
import importlib
import os
import subprocess
import sys
from typing import Any, Self

import mujoco
import numpy as np
from numpy.typing import NDArray

from embodied.errors import ConfigError, InfrastructureError, nearest
from simulators.render.ray import camera_id

BACKENDS = ("egl", "osmesa")
RENDERERS = ("auto", "ray", "gl", "quality")
GL_PACKAGES = "apt-get install libegl1 libegl-mesa0 libgl1-mesa-dri libosmesa6"
_PROBE_S = 30.0
# On a CPU, triangles cost most, then samples per pixel.
_QUALITY = {"offsamples": 4, "shadowsize": 2048, "numslices": 20, "numstacks": 10}
_LEAN = {"offsamples": 0, "shadowsize": 0, "numslices": 8, "numstacks": 4, "numquads": 1}

# Draws a white wall and looks whether it is bright; run in a process of its own, since a broken GL crashes or hangs.
_PROBE = """
import importlib, mujoco, numpy as np
context = importlib.import_module("mujoco.{backend}").GLContext(8, 8)
context.make_current()
model = mujoco.MjModel.from_xml_string("<mujoco><worldbody><geom size='9' rgba='1 1 1 1'/></worldbody></mujoco>")
data, scene, camera = mujoco.MjData(model), mujoco.MjvScene(model, 10), mujoco.MjvCamera()
mujoco.mj_forward(model, data)
camera.distance = 30
mujoco.mjv_updateScene(model, data, mujoco.MjvOption(), None, camera, int(mujoco.mjtCatBit.mjCAT_ALL), scene)
gl, rect, image = mujoco.MjrContext(model, 150), mujoco.MjrRect(0, 0, 8, 8), np.zeros((8, 8, 3), np.uint8)
mujoco.mjr_setBuffer(int(mujoco.mjtFramebuffer.mjFB_OFFSCREEN), gl)
mujoco.mjr_render(rect, scene, gl)
mujoco.mjr_readPixels(image, None, rect, gl)
print("drawn" if image[3:5, 3:5].min() > 40 else "dark", flush=True)
"""


def check_renderer(renderer: str) -> None:
    """Raise `ConfigError` unless a renderer has this name."""
    if renderer not in RENDERERS:
        raise ConfigError(f"unknown renderer {renderer!r}", "renderer", nearest(renderer, RENDERERS))


def find_gl() -> str | None:
    """GL backend that draws here, `egl` or `osmesa`, or None; tried once per process and setting.

    The first call takes about a second, and at most a minute if a GL hangs.

    Raises:
        ConfigError: `EMBODIED_GL` has a value that means nothing.
    """
    wanted = os.environ.get("EMBODIED_GL", "").lower()
    if wanted not in ("", "off", *BACKENDS):
        raise ConfigError(f"EMBODIED_GL is {wanted!r}", "environment", f"use off, {' or '.join(BACKENDS)}, or unset it")
    if wanted == "off":
        return None
    candidates = [wanted] if wanted else list(BACKENDS)
    platform = os.environ.get("PYOPENGL_PLATFORM", "").lower()
    if platform or "OpenGL" in sys.modules:
        # PyOpenGL binds one platform at import; no other is available in this process.
        candidates = [name for name in candidates if name == platform]
    return next((name for name in candidates if _draws(name)), None)


def gl_fix() -> str:
    """Line that gives this machine a GL, where `find_gl` found none."""
    platform = os.environ.get("PYOPENGL_PLATFORM", "")
    if platform and platform.lower() not in BACKENDS:
        return "unset PYOPENGL_PLATFORM"
    given = [name for name in ("EMBODIED_GL", "PYOPENGL_PLATFORM") if os.environ.get(name)]
    return f"unset {' and '.join(given)}, or {GL_PACKAGES}" if given else GL_PACKAGES


@functools.cache
def _draws(backend: str) -> bool:
    environment = {**os.environ, "PYOPENGL_PLATFORM": backend, "MUJOCO_GL": backend}
    command = [sys.executable, "-c", _PROBE.format(backend=backend)]
    try:
        run = subprocess.run(
            command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, timeout=_PROBE_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return run.returncode == 0 and run.stdout.split()[-1:] == [b"drawn"]


class GLRenderer:
    """Renderer of a model for videos. Use it in the thread that made it, and close it.

    Args:
        model: Any model; it is not changed.
        width: Pixels.
        height: Pixels.
        lean: Without shadows, reflections and smooth edges.

    Raises:
        InfrastructureError: No GL that works.
    """

    def __init__(self, model: mujoco.MjModel, width: int, height: int, lean: bool = False) -> None:
        self._model, self.width, self.height = model, width, height
        self._scene = mujoco.MjvScene(model, model.ngeom + model.nsite + 100)
        self._rect = mujoco.MjrRect(0, 0, width, height)
        self._window, self._context = open_context(model, width, height, lean)

    def render(self, data: mujoco.MjData, camera: str) -> NDArray[np.uint8]:
        """[H, W, 3] RGB of `data`, with poses up to date, through a camera of the model.

        Raises:
            ConfigError: Unknown camera.
        """
        view = mujoco.MjvCamera()
        view.type, view.fixedcamid = int(mujoco.mjtCamera.mjCAMERA_FIXED), camera_id(self._model, camera)
        every = int(mujoco.mjtCatBit.mjCAT_ALL)
        mujoco.mjv_updateScene(self._model, data, mujoco.MjvOption(), None, view, every, self._scene)
        image = np.empty((self.height, self.width, 3), np.uint8)
        self._window.make_current()
        mujoco.mjr_render(self._rect, self._scene, self._context)
        mujoco.mjr_readPixels(image, None, self._rect, self._context)
        return np.ascontiguousarray(image[::-1])

    def close(self) -> None:
        if self._window is not None:
            self._window.make_current()
            self._context.free()
            self._window.free()
            self._window = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()


def open_context(model: mujoco.MjModel, width: int, height: int, lean: bool = False) -> tuple[Any, mujoco.MjrContext]:
    """A window that is current in this thread, and a context to draw into it: smooth and with shadows, or `lean`.

    MuJoCo takes size and quality from the model only; they are set there for the duration of the call.

    Raises:
        InfrastructureError: No GL that works.
    """
    backend = find_gl()
    if backend is None:
        raise InfrastructureError("no GL library draws here", "render", gl_fix())
    # MuJoCo reads MUJOCO_GL at import, which has happened; its context classes can be used directly.
    os.environ.setdefault("PYOPENGL_PLATFORM", backend)
    window = importlib.import_module(f"mujoco.{backend}").GLContext(width, height)
    window.make_current()
    places = [(model.vis.global_, "offwidth", width), (model.vis.global_, "offheight", height)]
    places += [(model.vis.quality, name, value) for name, value in (_LEAN if lean else _QUALITY).items()]
    kept = [getattr(owner, name) for owner, name, _ in places]
    try:
        for owner, name, value in places:
            setattr(owner, name, value)
        context = mujoco.MjrContext(model, int(mujoco.mjtFontScale.mjFONTSCALE_100))
    finally:
        for (owner, name, _), value in zip(places, kept, strict=True):
            setattr(owner, name, value)
    mujoco.mjr_setBuffer(int(mujoco.mjtFramebuffer.mjFB_OFFSCREEN), context)
    return window, context
