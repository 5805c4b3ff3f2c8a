"""Train, load and read from Python, as the command `embodied` does from a shell. `docs/api.md` lists what is stable."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from embodied.buffer.store import EpisodeStore
from embodied.cli.compose import compose_config
from embodied.episode import Episode
from embodied.files import read_json
from embodied.runs.published import load_policy as _published
from embodied.runs.run_folder import resolve
from embodied.runtime.train import train as _train
from policies.base import Policy


def train(*overrides: str) -> Path:
    """Train a policy, or resume a run.

    Args:
        overrides: Settings as on the command line, such as `task=reach`, `seed=3`, `runs=/data/runs`.

    Returns:
        The run's folder.

    Raises:
        EmbodiedError: As the command's one line.
    """
    return _train(compose_config("train", overrides), overrides)


def summary(run: str, runs: str = "runs") -> dict[str, Any]:
    """The summary of a finished run: success rate, interval, environment steps, seconds, policy version."""
    folder = resolve(run, Path(runs))
    return dict(read_json(folder / "summary.json", "train the run to its end"))


def load_policy(run: str, runs: str = "runs", version: str = "latest") -> Policy:
    """The policy of a run with the verified weights of one of its versions.

    Args:
        version: A number; `latest`, the one to be served; or `best`, the one that did best in an evaluation of the run.

    Raises:
        UserError: There is no such run, or it has published nothing.
        WeightsRefused: The version is not kept.
    """
    _, policy, _, tensors = _published(run, runs, version)
    policy.load(tensors)
    return policy


def episodes(run: str, runs: str = "runs", mode: str | None = None, outcome: str | None = None) -> Iterator[Episode]:
    """Stored episodes of a run, verified, one in memory at a time; those of a mode and outcome where given."""
    return EpisodeStore(resolve(run, Path(runs)) / "episodes").iterate(mode, outcome)
