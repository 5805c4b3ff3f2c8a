"""Episodes as a video that people watch: captions, a border coloured by the outcome, several episodes side by side."""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import mujoco
import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from embodied.data import Outcome
from embodied.errors import ConfigError, DataError
from embodied.machine import usable_cores
from simulators.render.appearance import beyond_rays, check_rays
from simulators.render.encode import Mp4Writer
from simulators.render.gl import GLRenderer, check_renderer, find_gl, gl_fix
from simulators.render.ray import RayCaster, camera_id

_STATE = int(mujoco.mjtState.mjSTATE_INTEGRATION)
_SINGLE, _TILE = (640, 480), (480, 360)
_SEQUENTIAL, _TILES = 3, 6
_BUDGET = 250  # tiles drawn for one video; if there are more states, every second, third, ... is shown
_HOLD_S = 1.0
_BLOCK = 8  # states drawn at once: bounds memory, and gives each thread some
_BAR, _BORDER = 26, 6
_COLOURS = {Outcome.RUNNING: (120, 120, 120), Outcome.SUCCESS: (40, 160, 70)}
_ENDED_BADLY, _BAR_COLOUR = (200, 50, 40), (30, 30, 34)

Draw = Callable[[NDArray[np.float64]], NDArray[np.uint8]]


@dataclass(frozen=True)
class Clip:
    """One episode.

    Attributes:
        states: [L + 1, S] float64 simulator states (mjSTATE_INTEGRATION), the start first.
        caption: A few words shown on the picture.
        outcome: Outcome of the episode; colours the border of the last picture.
    """

    states: NDArray[np.float64]
    caption: str = ""
    outcome: Outcome = Outcome.RUNNING


class Video(NamedTuple):
    """Properties of a written video: the renderer, frames, pixels, and a hint on better pictures or an empty text."""

    renderer: str
    frames: int
    width: int
    height: int
    hint: str


def write_video(
    path: Path | str,
    model: mujoco.MjModel,
    clips: Sequence[Clip],
    fps: float = 25.0,
    camera: str = "video",
    renderer: str = "auto",
) -> Video:
    """Write clips as an mp4 of one state per frame: up to three one after the other, more of them six at a time.

    Args:
        path: File to make; it appears when it is whole.
        model: Model of the states.
        clips: At least one.
        fps: States per second of playback.
        camera: Name of a camera of the model.
        renderer: `quality`, GL with shadows and smooth edges, `gl` without them, `ray`, or `auto` for `quality` if GL
            works and the ray caster otherwise.

    Raises:
        ConfigError: Unknown camera or renderer, no clips, or an fps out of range.
        DataError: States that are not of this model.
        InfrastructureError: `gl` or `quality` without a GL that works, or the encoder failed.
    """
    check_renderer(renderer)
    if not clips or not 1 <= fps <= 120:
        raise ConfigError(f"no video of {len(clips)} clips at {fps} fps", str(path), "give clips, and 1 to 120 fps")
    camera_id(model, camera)
    size = mujoco.mj_stateSize(model, _STATE)
    for clip in clips:
        if clip.states.ndim != 2 or clip.states.shape[1] != size or not len(clip.states):
            what = f"states of shape {clip.states.shape} instead of [L + 1, {size}]"
            raise DataError(what, clip.caption or "clip", "give the model that made them")
    hint = ""
    if renderer == "ray":
        check_rays(model)
    if renderer == "auto":
        renderer = "quality" if find_gl() else "ray"
        if renderer == "ray":
            beyond = beyond_rays(model)
            hint = (f"{beyond} is not drawn; " if beyond else "") + f"for full-quality videos: {gl_fix()}"
    stride = math.ceil(sum(len(clip.states) for clip in clips) / _BUDGET)
    together = 1 if len(clips) <= _SEQUENTIAL else _TILES
    pages = [clips[i : i + together] for i in range(0, len(clips), together)]
    columns = math.ceil(math.sqrt(len(pages[0])))
    rows = math.ceil(len(pages[0]) / columns)
    width, height = _SINGLE if together == 1 else _TILE
    frames, hold = 0, round(_HOLD_S * fps / stride)
    with (
        drawing(renderer, model, camera, width, height) as draw,
        Mp4Writer(Path(path), columns * width, rows * height, fps / stride) as writer,
    ):
        for page in pages:
            for tiles in _play(page, draw, stride, hold):
                sheet = np.zeros((rows, columns, height, width, 3), np.uint8)
                sheet.reshape(-1, height, width, 3)[: len(tiles)] = tiles
                writer.write(sheet.swapaxes(1, 2).reshape(rows * height, columns * width, 3))
                frames += 1
    return Video(renderer, frames, columns * width, rows * height, hint)


def _play(clips: Sequence[Clip], draw: Draw, stride: int, hold: int) -> Iterator[list[NDArray[np.uint8]]]:
    """Frames, one tile for each clip; a clip that has ended stays on its last state, and all do for `hold` frames."""
    shown = [clip.states[::-stride][::-1] for clip in clips]
    labels = [_Label(clip) for clip in clips]
    tiles: list[NDArray[np.uint8]] = [np.empty(0, np.uint8)] * len(clips)
    length = max(len(states) for states in shown)
    for start in range(0, length, _BLOCK):
        wanted = [
            (t, i) for t in range(start, min(start + _BLOCK, length)) for i in range(len(clips)) if t < len(shown[i])
        ]
        pictures = iter(draw(np.stack([shown[i][t] for t, i in wanted])))
        for t in range(start, min(start + _BLOCK, length)):
            for i, states in enumerate(shown):
                if t < len(states):
                    tiles[i] = labels[i].put_on(next(pictures), ended=t == len(states) - 1)
            yield tiles
    for _ in range(hold):
        yield tiles


class _Label:
    """A clip's caption bar, and its border once it has ended."""

    def __init__(self, clip: Clip) -> None:
        self._caption, self._outcome = clip.caption, Outcome(clip.outcome)
        self._bar: dict[bool, NDArray[np.uint8]] = {}

    def put_on(self, picture: NDArray[np.uint8], ended: bool) -> NDArray[np.uint8]:
        """Draw the label into the picture; returns it."""
        colour = _COLOURS.get(self._outcome, _ENDED_BADLY)
        if ended:
            for edge in (np.s_[:_BORDER], np.s_[-_BORDER:], np.s_[:, :_BORDER], np.s_[:, -_BORDER:]):
                picture[edge] = colour
        if self._caption or ended:
            if ended not in self._bar:
                end = self._outcome.name.lower().replace("_", " ")
                words = " · ".join(filter(None, (self._caption, end if ended and self._outcome else "")))
                self._bar[ended] = _text_bar(words, picture.shape[1], colour if ended else _BAR_COLOUR)
            picture[-_BAR:] = self._bar[ended]
        return picture


def _text_bar(words: str, width: int, colour: tuple[int, int, int]) -> NDArray[np.uint8]:
    """[_BAR, width, 3] white words on `colour`, cut to the width."""
    image = Image.new("RGB", (width, _BAR), colour)
    pen, font = ImageDraw.Draw(image), ImageFont.load_default(size=16)
    while words and pen.textlength(words, font) > width - 2 * _BORDER - 8:
        words = words.removesuffix("…")[:-1] + "…" if len(words) > 2 else ""
    pen.text((_BORDER + 4, _BAR // 2), words, font=font, fill=(255, 255, 255), anchor="lm")
    return np.asarray(image)


@contextmanager
def drawing(renderer: str, model: mujoco.MjModel, camera: str, width: int, height: int) -> Iterator[Draw]:
    """A function from states [N, S] to pictures [N, height, width, 3], drawn by `quality`, `gl` or `ray`."""
    data = mujoco.MjData(model)

    def place(state: NDArray[np.float64]) -> None:
        mujoco.mj_setState(model, data, state, _STATE)
        mujoco.mj_kinematics(model, data)
        mujoco.mj_comPos(model, data)
        mujoco.mj_camlight(model, data)

    if renderer == "ray":
        caster = RayCaster(model, camera, width, height, supersample=2, shadows=True, threads=min(usable_cores(), 8))
        view = camera_id(model, camera)

        def cast(states: NDArray[np.float64]) -> NDArray[np.uint8]:
            poses = []
            for state in states:
                place(state)
                poses.append(
                    (
                        data.geom_xpos.copy(),
                        data.geom_xmat.copy(),
                        data.cam_xpos[view].copy(),
                        data.cam_xmat[view].copy(),
                    )
                )
            return caster.render(*(np.stack(part) for part in zip(*poses, strict=True)))

        yield cast
        return

    with GLRenderer(model, width, height, lean=renderer == "gl") as gl:

        def rasterise(states: NDArray[np.float64]) -> NDArray[np.uint8]:
            pictures = np.empty((len(states), height, width, 3), np.uint8)
            for picture, state in zip(pictures, states, strict=True):
                place(state)
                picture[:] = gl.render(data, camera)
            return pictures

        yield rasterise
