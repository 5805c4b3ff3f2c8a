"""Stored episodes as a video: replayed from their start with the controls that were applied."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from embodied.data import Episode


def record_video(path: Path, task: dict[str, Any], episodes: Sequence[Episode], renderer: str) -> tuple[Path, str]:
    """Draw episodes of a simulated task.

    Returns:
        The video's path, and a line for the reader (what to install for better pictures), empty where there is none.
    """
    raise NotImplementedError
