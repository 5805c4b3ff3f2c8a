"""What `embodied eval` is asked for, and the tasks and splits that come of it."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from embodied.errors import ConfigError, nearest
from embodied.evaluate.cell import BATCH, split_names
from embodied.train.settings import ClientSettings, check_seed, require

TASKS = Path(str(files("embodied"))) / "configs" / "task"
MAX_VIDEOS = 100


@dataclass
class EvalSettings:
    """run: the run to evaluate; null for `task`, `env` and `policy`, such as another project's server. version:
    `latest` or a number. tasks: names of task configurations, nothing for the run's own. splits: names in
    `configs/split/`, nothing for none. episodes, seed: one episode of each seed from `seed` on, of every task and
    split. against, against_version: a run that plays the same episodes, to be compared. batch: envs played at once.
    threads: physics threads, 0 for every core. videos: of the first failing episodes of each task and split, from
    `camera`, in the run's folder `eval/<label>/`; without a label, the time. client: a server to ask instead of
    answering in this process."""

    task: dict[str, Any]
    env: dict[str, Any]
    policy: dict[str, Any]
    run: str | None = "latest"
    runs: str = "runs"
    version: str = "latest"
    tasks: Any = field(default_factory=list)
    splits: Any = field(default_factory=list)
    episodes: int = 200
    seed: int = 1000
    against: str | None = None
    against_version: str = "latest"
    batch: int = BATCH
    threads: int = 0
    videos: int = 0
    camera: str = "video"
    label: str | None = None
    client: ClientSettings = field(default_factory=ClientSettings)

    def __post_init__(self) -> None:
        require(1 <= self.episodes <= 65536, "episodes", self.episodes, "choose 1 to 65536")
        require(1 <= self.batch <= 65536, "batch", self.batch, "choose 1 to 65536")
        require(0 <= self.videos <= MAX_VIDEOS, "videos", self.videos, f"choose 0 to {MAX_VIDEOS}")
        check_seed(self.seed, "seed")
        self.tasks = _names(self.tasks, "tasks", task_labels())
        self.splits = _names(self.splits, "splits", split_names())
        if self.label is not None:
            plain = self.label.replace("-", "").replace("_", "").isalnum() and len(self.label) <= 64
            require(plain, "label", repr(self.label), "use at most 64 letters, digits, dashes and underscores")
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
        for split in settings.splits or [None]:
            yield Planned(label, task, split)


def task_labels() -> list[str]:
    """Names of the task configurations."""
    return sorted(path.stem for path in TASKS.glob("*.yaml"))


def read_task(label: str) -> dict[str, Any]:
    """The task that `configs/task/<label>.yaml` describes.

    Raises:
        ConfigError: It cannot be read.
    """
    path = TASKS / f"{label}.yaml"
    try:
        read = OmegaConf.to_container(OmegaConf.load(path), resolve=True)
    except (OmegaConfBaseException, YAMLError, OSError) as error:
        raise ConfigError(str(error).splitlines()[0], str(path), "mend the file") from None
    if not isinstance(read, dict) or "name" not in read:
        raise ConfigError("it names no task", str(path), "give `name:` and options")
    return {str(key): value for key, value in read.items()}


def _names(value: Any, key: str, known: list[str]) -> list[str]:
    """A name or a list of names, each known and there once."""
    names = [value] if isinstance(value, str) else value
    require(isinstance(names, list), key, repr(value), f"give a list, such as {key}=[{known[0]}]")
    for name in names:
        if name not in known:
            raise ConfigError(f"no {key[:-1]} is called {name!r}", key, nearest(name, known))
    require(len(set(names)) == len(names), key, names, "name each once")
    return list(names)
