"""Video of stored episodes, replayed from their start with the applied controls."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from embodied.episode import Episode
from simulators.make import make_task
from simulators.render.video import Clip, Video, write_video
from simulators.replay import replay


def record_video(path: Path, task: dict[str, Any], episodes: Sequence[Episode], renderer: str) -> Video:
    """Draw episodes of a simulated task; `task` holds its `name` and options, `renderer` is as in `settings.Video`."""
    made = make_task(task["name"], **{key: value for key, value in task.items() if key != "name"})
    clips = [
        Clip(
            replay(made.model, episode.initial_state, episode.applied, made.substeps, episode.drawn),
            f"{episode.task} seed {episode.seed}",
            episode.outcome,
        )
        for episode in episodes
    ]
    return write_video(path, made.model, clips, renderer=renderer)
