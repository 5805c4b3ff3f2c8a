"""Pictures of environments for people, as `render_mode="rgb_array"` asks for them."""

from contextlib import ExitStack
from typing import Annotated, Any

import numpy as np
from annotated_types import Interval
from numpy.typing import NDArray

from embodied.errors import ConfigError, nearest
from embodied.settings import validated
from simulators.env import BatchEnv
from simulators.render.appearance import check_rays
from simulators.render.gl import check_renderer, find_gl
from simulators.render.ray import camera_id
from simulators.render.video import drawing

RENDER_MODES = ["rgb_array"]
Pixels = Annotated[int, Interval(ge=2, le=4096)]
"""Width or height that the renderers draw."""
DEFAULT_CAMERAS = ("video", "front")


class Pictures:
    """Draws a batch of environments, in the model's own colours whatever is randomised.

    Nothing is prepared until the first picture.

    Args:
        env: Its present state is drawn.
        render_mode: `rgb_array`, or None where no picture will be asked for.
        camera: One of the model's; empty for `video`, or `front` where there is none.
        width: Pixels.
        height: Pixels.
        renderer: `quality`, `gl`, `ray`, or `auto` for `quality` where GL works and else the ray caster.

    Raises:
        ConfigError: Unknown render mode, camera or renderer, or a size out of range.
    """

    @validated("", "width", "height")
    def __init__(
        self,
        env: BatchEnv,
        render_mode: str | None,
        camera: str = "",
        width: Pixels = 640,
        height: Pixels = 480,
        renderer: str = "auto",
    ) -> None:
        model, task = env.task.model, f"task {env.spec.task}"
        if render_mode is not None and render_mode not in RENDER_MODES:
            raise ConfigError(f"unknown render_mode {render_mode!r}", task, nearest(render_mode, RENDER_MODES))
        check_renderer(renderer)
        known = [model.camera(i).name for i in range(model.ncam)]
        camera = camera or next((name for name in DEFAULT_CAMERAS if name in known), next(iter(known), ""))
        camera_id(model, camera)
        self._env, self._mode, self._renderer = env, render_mode, renderer
        self._view: tuple[Any, ...] = (model, camera, width, height)
        self._open = ExitStack()
        self._draw: Any = None

    def draw(self) -> NDArray[np.uint8] | None:
        """[B, height, width, 3] RGB, or None without a render mode."""
        if self._mode is None:
            return None
        if self._draw is None:
            renderer = ("quality" if find_gl() else "ray") if self._renderer == "auto" else self._renderer
            if renderer == "ray":
                check_rays(self._view[0])
            self._draw = self._open.enter_context(drawing(renderer, *self._view))
        return self._draw(self._env.batch.state.copy())

    def close(self) -> None:
        self._open.close()
        self._draw = None
