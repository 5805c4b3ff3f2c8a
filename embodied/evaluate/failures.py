"""Episodes that a policy failed, as videos."""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from embodied.evaluate.cell import Failed
from simulators.make import make_task
from simulators.randomise.apply import seen_model
from simulators.render.ray import camera_id
from simulators.render.video import Clip, write_video
from simulators.replay import replay


def check_camera(task: Mapping[str, Any], camera: str) -> None:
    """Raise a `ConfigError` unless the task is simulated in this process and has such a camera."""
    camera_id(_made(task).model, camera)


def write_failures(
    folder: Path, episodes: Sequence[Failed], task: Mapping[str, Any], camera: str, renderer: str
) -> Iterator[Path]:
    """One mp4 for each episode, replayed from its start, named by seed, outcome and instruction; each path when its
    file is whole.

    Args:
        folder: Made if missing.
        episodes: That failed.
        task: What they were played on, the split's overrides included.
        camera, renderer: As in `write_video`.

    Raises:
        ConfigError: Unknown camera or renderer.
        InfrastructureError: As `write_video`.
    """
    made = _made(task)
    folder.mkdir(parents=True, exist_ok=True)
    for failed in episodes:
        states = replay(made.model, failed.initial_state, failed.applied, made.substeps, failed.drawn)
        clip = Clip(states, f"{failed.instruction} · seed {failed.seed}", failed.outcome)
        words = re.sub(r"[^a-z0-9]+", "-", failed.instruction.lower()).strip("-")
        name = "-".join(filter(None, (f"seed-{failed.seed}", failed.outcome.name.lower(), words)))
        path = folder / f"{name}.mp4"
        write_video(path, seen_model(made.model, failed.drawn), [clip], made.spec.control_hz, camera, renderer)
        yield path


def _made(task: Mapping[str, Any]) -> Any:
    return make_task(str(task["name"]), **{key: value for key, value in task.items() if key != "name"})
