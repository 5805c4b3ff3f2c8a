"""Cameras of a batch of environments: pictures, depth and segmentation from the batch's arrays."""

from collections.abc import Collection, Sequence
from typing import Any

import mujoco
import numpy as np
from numpy.typing import ArrayLike, NDArray

from embodied.errors import ConfigError, InfrastructureError, nearest
from embodied.machine import usable_cores
from embodied.settings import ThreadsOrAll, validated
from embodied.spec import Stream, Streams
from simulators.render.appearance import beyond_rays, check_rays, patterned
from simulators.render.gl import check_renderer, find_gl, gl_fix
from simulators.render.gl_views import GLPainter
from simulators.render.looks import Looks, turned
from simulators.render.ray import camera_id
from simulators.render.ray_views import RayPainter
from simulators.render.view import KINDS, Fields, Painter, View

MIN_SIDE, MAX_SIDE, MAX_VIEWS, MAX_BYTES = 8, 2048, 16, 2**34


class Cameras:
    """Views of a batch of environments: geoms of groups 0 to 2, as MuJoCo shows them by default, and nothing else.

    Args:
        model: Model of the environments; its looks are read once, here.
        views: One or more.
        renderer: `ray` casts rays at primitives on the CPU, `gl` is MuJoCo's own renderer without shadows and smooth
            edges, `quality` the same with them, `auto` is `ray` for primitives, ten times faster than `gl` at any
            size, and `gl` for meshes and textures.
        threads: 0 for one per CPU.

    Attributes:
        streams: Streams of the views, such as `front_rgb`, in the order of the views and their kinds.
        fields: MjData fields that `render` reads.
        renderer: Renderer in use: `ray`, `gl` or `quality`.

    Raises:
        ConfigError: An unknown camera, kind or renderer, a size out of range, or `ray` for a model beyond it.
        InfrastructureError: GL is needed and none works here.
    """

    @validated("render", "threads")
    def __init__(
        self, model: mujoco.MjModel, views: Sequence[View], renderer: str = "auto", threads: ThreadsOrAll = 0
    ) -> None:
        self._model, self._views = model, tuple(views)
        self._cameras = [_checked(model, view) for view in self._views]
        names = [f"{view.camera}_{kind}" for view in self._views for kind in view.kinds]
        if not 1 <= len(self._views) <= MAX_VIEWS or len(set(names)) < len(names):
            raise ConfigError(f"views {names}", "cameras", f"give 1 to {MAX_VIEWS} views, each stream once")
        self.streams = self.streams_of(None)
        self._bytes = sum(stream.size * np.dtype(stream.dtype).itemsize for stream in self.streams)
        self.renderer = choose(model, renderer)
        self._painter: Painter | None = _painter(self.renderer, model, self._views, threads or usable_cores())
        self.fields = self._painter.fields

    def streams_of(self, cameras: Collection[str] | None) -> Streams:
        """Streams of the views from the named cameras; of all views for None."""
        chosen = [view for view in self._views if cameras is None or view.camera in cameras]
        return tuple(_stream(view, kind) for view in chosen for kind in view.kinds)

    def check_memory(self, envs: int) -> None:
        """Raise a `ConfigError` if the pictures of `envs` environments would take more than 16 GiB."""
        if envs * self._bytes > MAX_BYTES:
            what = f"pictures of {envs} environments take {envs * self._bytes / 2**30:.0f} GiB"
            raise ConfigError(what, "cameras", "draw fewer environments or fewer pixels; 16 GiB are the most")

    def render(
        self, fields: Fields, ids: ArrayLike | None = None, looks: Looks | None = None
    ) -> dict[str, NDArray[Any]]:
        """Draw all environments, or some.

        Args:
            fields: `self.fields` to [B, ...], as a batch binds them; poses must be up to date.
            ids: [N] indices of environments; None for all.
            looks: Appearance of all B environments.

        Returns:
            Stream name to owned [N, *shape].

        Raises:
            ConfigError: `ids` or `looks` do not fit the batch, the pictures would take more than 16 GiB, or the cameras
                are closed.
        """
        if self._painter is None:
            raise ConfigError("the cameras are closed", "cameras", "make new ones")
        envs = len(fields["cam_xpos"])
        rows = np.arange(envs) if ids is None else np.asarray(ids).ravel()
        if len(rows) and not (np.issubdtype(rows.dtype, np.integer) and 0 <= rows.min() <= rows.max() < envs):
            raise ConfigError(f"environment ids {rows}", "ids", f"give integers below {envs}")
        rows = rows.astype(np.int64)
        self.check_memory(len(rows))
        looks = looks or Looks()
        looks.check(self._model, envs)
        streams = {stream.name: np.empty((len(rows), *stream.shape), stream.dtype) for stream in self.streams}
        poses = [turned(looks, fields["cam_xpos"], fields["cam_xmat"], rows, camera) for camera in self._cameras]
        pictures = [{kind: streams[f"{view.camera}_{kind}"] for kind in view.kinds} for view in self._views]
        if len(rows):
            self._painter.paint(fields, rows, poses, looks, pictures)
        return streams

    def close(self) -> None:
        """Release threads and contexts; nothing can be drawn any more."""
        if self._painter is not None:
            self._painter.close()
            self._painter = None


def choose(model: mujoco.MjModel, renderer: str) -> str:
    """Renderer of a setting: `auto` is resolved as explained in `Cameras`.

    Raises:
        ConfigError, InfrastructureError: As `Cameras`.
    """
    check_renderer(renderer)
    if renderer == "ray":
        check_rays(model)
        return renderer
    if renderer != "auto":
        if find_gl() is None:
            raise InfrastructureError("no GL library draws here", f"renderer {renderer}", gl_fix())
        return renderer
    beyond = beyond_rays(model)
    if (beyond or patterned(model)) and find_gl() is not None:
        return "gl"
    if beyond:
        what = f"no GL library draws here, and the ray caster cannot draw {beyond}"
        raise InfrastructureError(what, "renderer auto", gl_fix())
    return "ray"


def _checked(model: mujoco.MjModel, view: View) -> int:
    """Index of a view's camera, once the view's values are checked."""
    camera = camera_id(model, view.camera)
    for kind in view.kinds:
        if kind not in KINDS:
            raise ConfigError(f"camera {view.camera} gives no {kind!r}", "cameras", nearest(kind, KINDS))
    sides = (view.width, view.height)
    if not view.kinds or not all(isinstance(side, int) and MIN_SIDE <= side <= MAX_SIDE for side in sides):
        what = f"camera {view.camera} with {view.width}x{view.height} pixels of {len(view.kinds)} kinds"
        raise ConfigError(what, "cameras", f"choose {MIN_SIDE} to {MAX_SIDE} pixels and at least one kind")
    if model.cam_sensorsize[camera].any() or int(model.cam_projection[camera]) != int(
        mujoco.mjtProjection.mjPROJ_PERSPECTIVE
    ):
        raise ConfigError(f"camera {view.camera} is not described by a fovy", "cameras", "give it one")
    return camera


def _stream(view: View, kind: str) -> Stream:
    shape = (view.height, view.width)
    if kind == "rgb":
        return Stream(f"{view.camera}_rgb", (*shape, 3), "uint8")
    if kind == "depth":
        return Stream(f"{view.camera}_depth", shape, "float32", unit="m")
    return Stream(f"{view.camera}_segmentation", shape, "int32")


def _painter(renderer: str, model: mujoco.MjModel, views: tuple[View, ...], threads: int) -> Painter:
    if renderer == "ray":
        return RayPainter(model, views, threads)
    return GLPainter(model, views, threads, renderer == "quality")
