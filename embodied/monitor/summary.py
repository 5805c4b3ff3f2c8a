"""`summary.json`: what a run came to."""

from pathlib import Path
from typing import Any

from embodied.files import read_json, write_json
from embodied.monitor.stats import wilson

FILE = "summary.json"


def summarise(
    *, successes: int, episodes: int, env_steps: int, wall_s: float, policy_version: int, **more: Any
) -> dict[str, Any]:
    """The fields of a summary.

    Args:
        successes: Successful ones among `episodes`, all evaluated with `policy_version`.
        episodes: Evaluated episodes; the rate is None without any.
        env_steps: Environment steps the run has made.
        wall_s: Seconds the run has taken, earlier attempts included.
        policy_version: The version evaluated.
        more: What else identifies the run (task, seed, name), as JSON values.
    """
    return {
        "success_rate": successes / episodes if episodes else None,
        "success_ci95": list(wilson(successes, episodes)),
        "episodes": episodes,
        "env_steps": env_steps,
        "wall_s": wall_s,
        "env_steps_per_s": env_steps / wall_s if wall_s > 0 else None,
        "policy_version": policy_version,
        **more,
    }


def write_summary(folder: Path, summary: dict[str, Any]) -> Path:
    """Put `summary.json` into a run folder, whole or not at all; returns its path."""
    write_json(folder / FILE, summary)
    return folder / FILE


def read_summary(folder: Path) -> dict[str, Any]:
    """A run's summary.

    Raises:
        CorruptFile: It is missing or no JSON object.
    """
    return read_json(folder / FILE, "the run has not finished: let it, or resume it")
