"""The settings of a training run, typed and checked before anything starts.

Groups that belong to a component (`task`, `policy`, `algo`, ...) are dictionaries with a `_target_`, the import path of
what they configure; the component checks its own keys.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from embodied.errors import ConfigError, CorruptFile
from embodied.files import read_bytes

CONFIG = "config.yaml"


def require(condition: bool, key: str, value: Any, fix: str) -> None:
    """Raise a `ConfigError` about `key` unless its value is one it may have."""
    if not condition:
        raise ConfigError(f"{key} cannot be {value}", key, fix)


def check_seed(seed: int, key: str) -> None:
    """Raise a `ConfigError` unless a seed fits every generator and the seeds derived from it."""
    require(0 <= seed < 2**32, key, seed, "choose 0 to 4294967295")


@dataclass
class Rollout:
    """num_envs: envs stepped together. steps: control steps per segment. max_lag: versions a trained step may be
    behind the learner before it is dropped."""

    num_envs: int = 64
    steps: int = 32
    max_lag: int = 0

    def __post_init__(self) -> None:
        require(1 <= self.num_envs <= 65536, "rollout.num_envs", self.num_envs, "choose 1 to 65536")
        require(1 <= self.steps <= 65536, "rollout.steps", self.steps, "choose 1 to 65536")
        require(self.max_lag >= 0, "rollout.max_lag", self.max_lag, "choose 0 or more versions")
        rows, limit = self.num_envs * self.steps, 2**24
        require(rows <= limit, "rollout.num_envs * rollout.steps", rows, f"choose at most {limit}, which fit in memory")


@dataclass
class WarmStart:
    """What a run begins with. weights: of `run`, `run:version`, a checkpoint's folder or a safetensors file; null for
    random ones. demonstrations: successful episodes to clone before RL; 0 for none, or for all of `episodes`.
    episodes: where they are stored, a run or an episodes folder; null lets the scripted expert show them. memory_gb:
    what may be kept of stored ones. clone: the behaviour cloning that does it."""

    weights: str | None = None
    demonstrations: int = 0
    episodes: str | None = None
    memory_gb: float = 4.0
    clone: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        require(
            0 <= self.demonstrations <= 100_000, "warm_start.demonstrations", self.demonstrations, "choose 0 or more"
        )
        require(0 < self.memory_gb <= 1e6, "warm_start.memory_gb", self.memory_gb, "choose more than 0, at most 1e6")

    @property
    def clones(self) -> bool:
        """Whether there is anything to clone."""
        return self.demonstrations > 0 or self.episodes is not None


@dataclass
class Budget:
    """Training ends at the first of these. env_steps: control steps of all envs. wall_s: seconds, 0 for no limit
    (a run cut by it does not repeat bit for bit)."""

    env_steps: int = 2_000_000
    wall_s: float = 0.0

    def __post_init__(self) -> None:
        require(self.env_steps >= 0, "budget.env_steps", self.env_steps, "choose 0 or more")
        require(self.wall_s >= 0, "budget.wall_s", self.wall_s, "choose 0 (no limit) or more seconds")


@dataclass
class Evaluate:
    """every: RL steps between evaluations. episodes: seeds in each, from `seed` on. target: training stops when
    `patience` evaluations in a row reach it. final_episodes, final_seed: the last evaluation, on seeds never used
    before."""

    every: int = 5
    episodes: int = 100
    seed: int = 100_000
    target: float = 0.97
    patience: int = 2
    final_episodes: int = 200
    final_seed: int = 1000

    def __post_init__(self) -> None:
        require(self.every >= 1, "evaluate.every", self.every, "choose 1 or more")
        require(1 <= self.episodes <= 65536, "evaluate.episodes", self.episodes, "choose 1 to 65536")
        require(1 <= self.final_episodes <= 65536, "evaluate.final_episodes", self.final_episodes, "choose 1 to 65536")
        check_seed(self.seed, "evaluate.seed")
        check_seed(self.final_seed, "evaluate.final_seed")
        require(self.target > 0, "evaluate.target", self.target, "choose a share above 0; above 1 never stops early")
        require(self.patience >= 1, "evaluate.patience", self.patience, "choose 1 or more")


@dataclass
class Compare:
    """What is measured at the end, on `evaluate.final_episodes` seeds: with a split given, the clone, a clone of equal
    time, the last version, and that version under the split `wrong`. split, wrong: names in configs/split."""

    split: str | None = None
    wrong: str = "wrong_instruction"


@dataclass
class Checkpoint:
    """every: RL steps between checkpoints. keep: how many to keep."""

    every: int = 10
    keep: int = 3

    def __post_init__(self) -> None:
        require(self.every >= 1, "checkpoint.every", self.every, "choose 1 or more")
        require(self.keep >= 1, "checkpoint.keep", self.keep, "choose 1 or more")


@dataclass
class Episodes:
    """keep: which episodes are stored, of `evaluation`, `demonstration`, `failure`, `success`, `all`. quota_gb: size
    of the store, of which the oldest training shards go first."""

    keep: list[str] = field(default_factory=lambda: ["evaluation", "demonstration", "failure"])
    quota_gb: float = 2.0

    def __post_init__(self) -> None:
        require(0 < self.quota_gb <= 1e6, "episodes.quota_gb", self.quota_gb, "choose more than 0, at most 1e6")


@dataclass
class ClientSettings:
    """address: `inline`, or where a policy server listens, such as `ipc:///tmp/policy` or `tcp://127.0.0.1:5555`.
    timeout_s: how long to wait for an answer. keys: folder of CURVE keys, needed beyond loopback."""

    address: str = "inline"
    timeout_s: float = 10.0
    keys: str | None = None

    def __post_init__(self) -> None:
        require(0 < self.timeout_s <= 86400, "client.timeout_s", self.timeout_s, "choose seconds, at most a day")


@dataclass
class Video:
    """episodes: how many evaluation episodes the video shows; 0 for none. renderer: of the video, and of the envs'
    cameras unless `env.renderer` is given: `auto`, `ray`, `gl` or `quality`."""

    episodes: int = 6
    renderer: str = "auto"

    def __post_init__(self) -> None:
        known = ("auto", "ray", "gl", "quality")
        require(self.renderer in known, "render.renderer", self.renderer, f"choose one of {', '.join(known)}")
        require(self.episodes >= 0, "render.episodes", self.episodes, "choose 0 or more")


@dataclass
class Runtime:
    """_target_: the runtime of the stages. threads: torch threads; physics has its own. versions: weight versions
    kept on disk. versions_gb: their size, beyond which the oldest go first, 0 for no limit. hold_s: seconds a run waits
    after a rollback to be told to go on."""

    _target_: str = "embodied.runtime.inline.InlineRuntime"
    threads: int = 1
    versions: int = 5
    versions_gb: float = 0.0
    hold_s: float = 3600.0

    def __post_init__(self) -> None:
        require(1 <= self.threads <= 1024, "runtime.threads", self.threads, "choose 1 to 1024")
        require(self.versions >= 2, "runtime.versions", self.versions, "choose 2 or more")
        require(0 <= self.versions_gb <= 1e6, "runtime.versions_gb", self.versions_gb, "choose 0 (no limit) to 1e6")
        require(0 < self.hold_s <= 1e7, "runtime.hold_s", self.hold_s, "choose seconds, such as 3600")


@dataclass
class Settings:
    """Everything `embodied train` takes. debug: suspend deadlines, so that a breakpoint does not end the run."""

    task: dict[str, Any]
    env: dict[str, Any]
    policy: dict[str, Any]
    algo: dict[str, Any]
    reward: dict[str, Any]
    seed: int = 0
    name: str | None = None
    resume: str | None = None
    runs: str = "runs"
    debug: bool = False
    client: ClientSettings = field(default_factory=ClientSettings)
    rollout: Rollout = field(default_factory=Rollout)
    warm_start: WarmStart = field(default_factory=WarmStart)
    budget: Budget = field(default_factory=Budget)
    evaluate: Evaluate = field(default_factory=Evaluate)
    compare: Compare = field(default_factory=Compare)
    checkpoint: Checkpoint = field(default_factory=Checkpoint)
    episodes: Episodes = field(default_factory=Episodes)
    render: Video = field(default_factory=Video)
    runtime: Runtime = field(default_factory=Runtime)

    def __post_init__(self) -> None:
        check_seed(self.seed, "seed")
        require(bool(self.runs), "runs", repr(self.runs), "give a folder")
        clones = self.compare.split is None or self.warm_start.clones
        require(clones, "compare.split", self.compare.split, "give warm_start.demonstrations, or null")
        if self.compare.split is not None and self.warm_start.episodes is None:
            stays = not {"demonstration", "success", "all"}.isdisjoint(self.episodes.keep)
            fix = "add demonstration: at the end they are cloned again, for compare.split"
            require(stays, "episodes.keep", list(self.episodes.keep), fix)


T = TypeVar("T")


def typed(cls: type[T], config: DictConfig) -> T:
    """A composed configuration as the dataclass `cls`.

    Raises:
        ConfigError: A key is unknown or has no value, or a value is of a wrong type or out of range.
    """
    try:
        for key in sorted(OmegaConf.missing_keys(config)):
            raise ConfigError(f"{key} has no value", key, f"give {key}=...")
        settings = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(cls), config))
    except OmegaConfBaseException as error:
        cause = error.__cause__
        if isinstance(cause, ConfigError):
            raise cause from None
        key = str(getattr(error, "full_key", "") or "")
        raise ConfigError(str(error).splitlines()[0], key, "see --help of the command") from None
    assert isinstance(settings, cls)
    return settings


def saved_config(folder: Path) -> DictConfig:
    """The configuration a run was started or last resumed with.

    Raises:
        CorruptFile: The run has none, or it cannot be read.
    """
    path = folder / CONFIG
    fix = "start a new run, or mend the file"
    text = read_bytes(path, 2**20, fix)
    try:
        config = OmegaConf.create(text.decode())
        # A word alone or a list is YAML too.
        if not isinstance(config, DictConfig) or "task" not in config:
            raise ValueError("no configuration of a run")
        migrate(config)
        typed(Settings, config)
    except (OmegaConfBaseException, YAMLError, ValueError, RecursionError, ConfigError) as error:
        raise CorruptFile(str(error).splitlines()[0], str(path), fix) from None
    return config


RENAMED = {"body": "env", "serve": "client"}
"""Groups of a run's configuration under their former names, and their names today."""


def migrate(config: DictConfig) -> None:
    """Rename the keys of an older run in place: groups by `RENAMED`, and `target` of a component to `_target_`.

    `evaluate.target`, a success rate, keeps its name.
    """
    for old, new in RENAMED.items():
        if old in config and new not in config:
            config[new] = config.pop(old)
    for key in ("env", "policy", "algo", "reward", "engine", "warm_start.clone"):
        group = OmegaConf.select(config, key)
        if isinstance(group, DictConfig) and "target" in group:
            group["_target_"] = group.pop("target")


START_ONLY = (
    "name", "experiment", "seed", "warm_start.weights", "warm_start.episodes", "warm_start.demonstrations",
)  # fmt: skip
ELSEWHERE = {"randomise": "env.randomise"}
"""Config groups whose settings are not under their own name."""


def resumed_config(folder: Path, config: DictConfig, words: Sequence[str]) -> DictConfig:
    """A run's configuration with what the user gives anew: the keys named by `words`, as `config` has them.

    Raises:
        CorruptFile: As `saved_config`.
        ConfigError: A word removes a key, or changes what a run keeps.
    """
    saved = saved_config(folder)
    for word in words:
        key = word.partition("=")[0].lstrip("+")
        key = ELSEWHERE.get(key, key)
        if key in ("resume", "runs"):
            continue
        value = word.partition("=")[2] if key == "experiment" else OmegaConf.select(config, key)
        stays = {own: OmegaConf.select(saved, own) for own in START_ONLY if own == key or own.startswith(f"{key}.")}
        for own, before in stays.items():
            # A group given as a whole has the defaults of what its word leaves out.
            given = OmegaConf.select(config, own) if own.rpartition(".")[2] in word else None
            given = value if own == key else given
            if given not in (None, "null", before):
                raise ConfigError(f"a resumed run keeps its {own}", word, f"leave out {word}, or start a new run")
        if key.startswith("~"):
            raise ConfigError("a key of a resumed run cannot be removed", word, "give it a value")
        if key not in START_ONLY:
            OmegaConf.update(saved, key, value, merge=False, force_add=True)
            for own, before in stays.items():
                OmegaConf.update(saved, own, before)
    return saved
