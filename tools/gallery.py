"""Draw docs/tasks.png: every task configuration's expert at the end of an episode, with its instruction.

Run it again after a new task or a change of a scene: python tools/gallery.py
"""

import argparse
import math
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from embodied.cli.compose import compose_config, groups
from embodied.data import Outcome
from embodied.errors import ConfigError
from embodied.evaluate.gallery import PlaySettings, is_simulated_here, record_expert
from embodied.runs.settings import typed
from simulators.render.gl import find_gl
from simulators.render.video import drawing

OUT = Path(__file__).parent.parent / "docs" / "tasks.png"
WIDTH, HEIGHT, BAR, GAP = 400, 300, 46, 8
SEEDS, COLUMNS = 8, 3


def tile(label: str, renderer: str) -> NDArray[np.uint8] | None:
    """[HEIGHT + BAR, WIDTH, 3] last state of the first successful episode, or None for another simulator's task.

    Raises:
        ConfigError: The expert fails on every seed.
    """
    parts = typed(PlaySettings, compose_config("play", [f"task={label}"]))
    if not is_simulated_here(parts.task):
        return None
    recording = record_expert(parts.task, parts.env, seed=0, episodes=SEEDS)
    successes = np.flatnonzero(recording.played.outcomes == Outcome.SUCCESS)
    if not len(successes):
        raise ConfigError(f"the expert of {label} fails on seeds 0 to {SEEDS - 1}", "tools/gallery.py", "mend it")
    shown = int(successes[0])
    with drawing(renderer, recording.task.model, "video", WIDTH, HEIGHT) as draw:
        picture = draw(recording.states[shown][-1:])[0]
    image = Image.new("RGB", (WIDTH, HEIGHT + BAR), (30, 30, 34))
    image.paste(Image.fromarray(picture), (0, 0))
    pen = ImageDraw.Draw(image)
    small, large = ImageFont.load_default(size=14), ImageFont.load_default(size=16)
    pen.text((8, HEIGHT + 13), label, font=large, fill=(255, 255, 255), anchor="lm")
    pen.text((8, HEIGHT + 33), recording.instructions[shown], font=small, fill=(190, 190, 196), anchor="lm")
    return np.asarray(image)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--renderer", choices=("auto", "quality", "gl", "ray"), default="auto")
    arguments = parser.parse_args()
    renderer = ("quality" if find_gl() else "ray") if arguments.renderer == "auto" else arguments.renderer
    tiles = [made for label in groups()["task"] if (made := tile(label, renderer)) is not None]
    columns = min(COLUMNS, len(tiles))
    high, wide = HEIGHT + BAR + GAP, WIDTH + GAP
    sheet = Image.new("RGB", (columns * wide - GAP, math.ceil(len(tiles) / columns) * high - GAP), (255, 255, 255))
    for at, made in enumerate(tiles):
        sheet.paste(Image.fromarray(made), (at % columns * wide, at // columns * high))
    sheet.save(arguments.out, optimize=True)
    print(f"{arguments.out}: {len(tiles)} tasks, {arguments.out.stat().st_size // 1000} kB, drawn by {renderer}")


if __name__ == "__main__":
    main()
