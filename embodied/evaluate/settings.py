"""Settings of `embodied eval`, and the tasks and splits that they name."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from annotated_types import Interval
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from embodied.errors import ConfigError, nearest
from embodied.evaluate.cell import BATCH, split_names
from embodied.runs.settings import ClientSettings
from embodied.search_path import config_files
from embodied.settings import Label, Rows, Seed, ThreadsOrAll, Word, require, settings

MAX_VIDEOS = 100


@settings(frozen=False)
class EvalSettings:
    """Settings of `embodied eval`.

    Attributes:
        run: Run to evaluate; null for `task`, `env` and `policy`, such as another project's server.
        version: `latest`, the one to be served; `best`, by the run's evaluations; or a number.
        tasks: Names of task configurations; empty for the run's own.
        splits: Names in `configs/split/`; empty for none.
        episodes, seed: One episode of each seed from `seed` on, of every task and split.
        against, against_version: Run that plays the same episodes, to be compared.
        batch: Environments played at once.
        threads: Physics threads, 0 for every core.
        videos: Number of videos, of the first failing episodes of each task and split, from `camera`, in the run's
            folder `eval/<label>/`; without a label, the time.
        client: Server that answers instead of this process.
    """

    task: dict[str, Any]
    env: dict[str, Any]
    policy: dict[str, Any]
    run: Word | None = "latest"
    runs: Word = "runs"
    version: Word = "latest"
    tasks: list[str] = field(default_factory=list)
    splits: list[str] = field(default_factory=list)
    episodes: Rows = 200
    seed: Seed = 1000
    against: Word | None = None
    against_version: Word = "latest"
    batch: Rows = BATCH
    threads: ThreadsOrAll = 0
    videos: Annotated[int, Interval(ge=0, le=MAX_VIDEOS)] = 0
    camera: str = "video"
    label: Label | None = None
    client: ClientSettings = field(default_factory=ClientSettings)

    def __post_init__(self) -> None:
        _check_names(self.tasks, "tasks", task_labels())
        _check_names(self.splits, "splits", split_names())
        if self.against_version != "latest" and self.against is None:
            raise ConfigError("against_version is of a run to compare with", "against_version", "give against=RUN")
        if self.run is None:
            for key in ("against", "videos", "tasks"):
                if getattr(self, key):
                    raise ConfigError(f"{key} is of a run", key, "give run=NAME, or leave it out")
        if self.against is not None and self.client.address != "inline":
            raise ConfigError("two runs are compared in this process", "client", "leave client out, or against")


@dataclass(frozen=True)
class Planned:
    """One task under one split, before the split's overrides."""

    label: str
    task: dict[str, Any]
    split: str | None


def plan(settings: EvalSettings, own: Mapping[str, Any]) -> list[Planned]:
    """Every task and split, in the order they were asked for; `own` is the task of the run.

    Raises:
        ConfigError: A task's file cannot be read.
    """
    return list(_plan(settings, own))


def _plan(settings: EvalSettings, own: Mapping[str, Any]) -> Iterator[Planned]:
    mine = str(own["name"])
    for label in settings.tasks or [mine]:
        task = dict(own) if label == mine else read_task(label)
        splits: list[str | None] = [*settings.splits] or [None]
        for split in splits:
            yield Planned(label, task, split)


def task_labels() -> list[str]:
    """Names of the task configurations."""
    return list(config_files("task"))


def read_task(label: str) -> dict[str, Any]:
    """The task that `configs/task/<label>.yaml` describes.

    Raises:
        ConfigError: It cannot be read.
    """
    path = config_files("task")[label]
    try:
        read = OmegaConf.to_container(OmegaConf.load(path), resolve=True)
    except (OmegaConfBaseException, YAMLError, OSError) as error:
        raise ConfigError(str(error).splitlines()[0], str(path), "mend the file") from None
    if not isinstance(read, dict) or "name" not in read:
        raise ConfigError("it names no task", str(path), "give `name:` and options")
    return {str(key): value for key, value in read.items()}


def _check_names(names: list[str], key: str, known: list[str]) -> None:
    """Raise a `ConfigError` unless each name is known and given once."""
    for name in names:
        if name not in known:
            raise ConfigError(f"no {key[:-1]} is called {name!r}", key, nearest(name, known))
    require(len(set(names)) == len(names), key, names, "name each once")
