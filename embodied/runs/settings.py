"""Settings of a training run, typed and checked before anything starts.

Groups that belong to a component (`task`, `policy`, `algo`, ...) are dictionaries with a `_target_`, the import path of
what they configure; the component checks its own keys.
"""

from collections.abc import Sequence
from dataclasses import field
from pathlib import Path
from typing import Annotated, Any, Literal

from annotated_types import Interval
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import MarkedYAMLError, YAMLError

from embodied.errors import ConfigError, CorruptFile
from embodied.files import read_bytes
from embodied.settings import (
    AtLeastOne,
    Count,
    Gigabytes,
    GigabytesOrNoLimit,
    Rows,
    Seconds,
    Seed,
    Threads,
    Weight,
    Word,
    require,
    settings,
    typed,
)

CONFIG = "config.yaml"
MOST_ROWS = 2**24


@settings("rollout")
class RolloutSettings:
    """Segments that a rollout collects.

    Attributes:
        num_envs: Environments stepped together.
        steps: Control steps of a segment.
        max_lag: Updates that a trained step may be behind the learner; older steps are dropped. Chunks that began in
            the segment before may lag one update more.
    """

    num_envs: Rows = 64
    steps: Rows = 32
    max_lag: Count = 0

    def __post_init__(self) -> None:
        fix = f"choose at most {MOST_ROWS}, which fit in memory"
        rows = self.num_envs * self.steps
        require(rows <= MOST_ROWS, "rollout.num_envs * rollout.steps", rows, fix)


@settings("warm_start")
class WarmStart:
    """Weights and demonstrations that a run begins with.

    Attributes:
        weights: Those of `run`, `run:version`, a checkpoint's folder or a safetensors file; null for random ones.
        demonstrations: Successful episodes to clone before reinforcement learning; 0 for none, or for all of
            `episodes`.
        episodes: Run or episodes folder that holds them; null lets the scripted expert show them.
        memory_gb: Size of the stored episodes kept in memory at most.
        clone: The behaviour cloning, with its `_target_`.
    """

    weights: Word | None = None
    demonstrations: Annotated[int, Interval(ge=0, le=100_000)] = 0
    episodes: Word | None = None
    memory_gb: Gigabytes = 4.0
    clone: dict[str, Any] = field(default_factory=dict)

    @property
    def clones(self) -> bool:
        """Whether there is anything to clone."""
        return self.demonstrations > 0 or self.episodes is not None


@settings("budget")
class Budget:
    """Limits of a run, which ends at the first of them.

    Attributes:
        env_steps: Control steps of all environments.
        wall_s: Seconds, 0 for no limit. A run that this limit ends does not repeat bit for bit.
    """

    env_steps: Count = 2_000_000
    wall_s: Annotated[Weight, "0 for no limit"] = 0.0


@settings("evaluate")
class EvaluateSettings:
    """Evaluations during a run and after it.

    Attributes:
        every: Updates between evaluations.
        episodes: Seeds of each evaluation, from `seed` on.
        target: Success rate; training stops when `patience` evaluations in a row reach it. 1.01 never stops early.
        final_episodes, final_seed: Seeds of the last evaluation, never used before.
    """

    every: AtLeastOne = 5
    episodes: Rows = 100
    seed: Seed = 100_000
    target: Annotated[float, Interval(gt=0, le=1.01), "1.01 never stops early"] = 0.97
    patience: AtLeastOne = 2
    final_episodes: Rows = 200
    final_seed: Seed = 1000


@settings("compare")
class CompareSettings:
    """Comparison at the end of a run, on `evaluate.final_episodes` seeds: the clone, a clone of equal time, the last
    version, and that version under the split `wrong`.

    Attributes:
        split: Name in configs/split; null for no comparison.
        wrong: Name in configs/split.
    """

    split: str | None = None
    wrong: str = "wrong_instruction"


@settings("checkpoint")
class CheckpointSettings:
    """Checkpoints.

    Attributes:
        every: Updates between checkpoints.
        keep: Number of the newest checkpoints that stay.
    """

    every: AtLeastOne = 10
    keep: AtLeastOne = 3


@settings("episodes")
class EpisodesSettings:
    """Stored episodes.

    Attributes:
        keep: Rules of what is stored, of `evaluation`, `demonstration`, `failure`, `success`, `all`.
        quota_gb: Size of the store; beyond it shards of training are evicted, then evaluations, then demonstrations.
        pictures: `read` stores the camera streams that the policy reads, `all` every one.
    """

    keep: list[str] = field(default_factory=lambda: ["evaluation", "demonstration", "failure"])
    quota_gb: Gigabytes = 2.0
    pictures: Literal["read", "all"] = "read"


@settings("client")
class ClientSettings:
    """The policy server that answers.

    Attributes:
        address: `inline`, or the address of a server, such as `ipc://policy` or `tcp://127.0.0.1:5555`.
        timeout_s: Longest wait for an answer, seconds.
        credentials: Folder of CURVE credentials, needed beyond loopback.
    """

    address: str = "inline"
    timeout_s: Seconds = 10.0
    credentials: str | None = None


@settings("render")
class VideoSettings:
    """Video of a run.

    Attributes:
        episodes: Evaluation episodes that it shows; 0 for none.
        renderer: Renderer of the video, and of the environments' cameras unless `env.renderer` is given.
    """

    episodes: Count = 6
    renderer: Literal["auto", "ray", "gl", "quality"] = "auto"


@settings("runtime")
class RuntimeSettings:
    """Placement of the stages, and resources.

    Attributes:
        _target_: Import path of the runtime.
        threads: Torch threads; physics has its own.
        versions: Weight versions kept on disk.
        versions_gb: Their size; beyond it the oldest are removed. 0 for no limit.
        hold_s: Seconds that a run waits after a rollback for the order to go on.
    """

    _target_: str = "embodied.runtime.inline.InlineRuntime"
    threads: Threads = 1
    versions: Annotated[int, Interval(ge=2)] = 5
    versions_gb: GigabytesOrNoLimit = 0.0
    hold_s: Annotated[float, Interval(gt=0, le=1e7), "seconds"] = 3600.0


@settings(frozen=False)
class Settings:
    """Everything `embodied train` takes; `debug` suspends deadlines, so that a breakpoint does not end the run."""

    task: dict[str, Any]
    env: dict[str, Any]
    policy: dict[str, Any]
    algo: dict[str, Any]
    reward: dict[str, Any]
    seed: Seed = 0
    name: Word | None = None
    resume: Word | None = None
    runs: Word = "runs"
    debug: bool = False
    client: ClientSettings = field(default_factory=ClientSettings)
    rollout: RolloutSettings = field(default_factory=RolloutSettings)
    warm_start: WarmStart = field(default_factory=WarmStart)
    budget: Budget = field(default_factory=Budget)
    evaluate: EvaluateSettings = field(default_factory=EvaluateSettings)
    compare: CompareSettings = field(default_factory=CompareSettings)
    checkpoint: CheckpointSettings = field(default_factory=CheckpointSettings)
    episodes: EpisodesSettings = field(default_factory=EpisodesSettings)
    render: VideoSettings = field(default_factory=VideoSettings)
    runtime: RuntimeSettings = field(default_factory=RuntimeSettings)

    def __post_init__(self) -> None:
        require(bool(self.runs), "runs", self.runs, "give a folder")
        require(isinstance(self.task.get("name", ""), str), "task.name", self.task.get("name"), "give a task's name")
        clones = self.compare.split is None or self.warm_start.clones
        require(clones, "compare.split", self.compare.split, "give warm_start.demonstrations, or null")
        if self.compare.split is not None and self.warm_start.episodes is None:
            stays = not {"demonstration", "success", "all"}.isdisjoint(self.episodes.keep)
            fix = "add demonstration: at the end they are cloned again, for compare.split"
            require(stays, "episodes.keep", list(self.episodes.keep), fix)
        is_ppo = str(self.algo.get("_target_")) == "embodied.learning.ppo.PPO"
        uncorrected = self.algo.get("correction", "none" if is_ppo else "") == "none"
        if self.rollout.max_lag and uncorrected:
            what = f"max_lag={self.rollout.max_lag} trains steps of older versions without a correction"
            raise ConfigError(what, "rollout.max_lag", "give algo.correction=truncated or masked, or max_lag=0")


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
    except MarkedYAMLError as error:
        line = error.problem_mark or error.context_mark
        what = error.problem or error.context or "no YAML"
        raise CorruptFile(what, f"{path}, line {line.line + 1}" if line else str(path), fix) from None
    except (OmegaConfBaseException, YAMLError, ValueError, RecursionError, ConfigError) as error:
        raise CorruptFile(str(error).splitlines()[0], str(path), fix) from None
    return config


RENAMED = {"body": "env", "serve": "client"}
"""Groups of a run's configuration under their former names, and their names today."""


def migrate(config: DictConfig) -> None:
    """Rename the keys of an older run in place: groups by `RENAMED`, `keys` of a client or environment to
    `credentials`, and `target` of a component to `_target_`.

    `evaluate.target`, a success rate, keeps its name; one that is never reached becomes 1.01.
    """
    target = OmegaConf.select(config, "evaluate.target")
    if type(target) in (int, float) and target > 1:
        config.evaluate.target = 1.01
    for old, new in RENAMED.items():
        if old in config and new not in config:
            config[new] = config.pop(old)
    for key in ("client", "env"):
        group = OmegaConf.select(config, key)
        if isinstance(group, DictConfig) and "keys" in group:
            group["credentials"] = group.pop("keys")
    for key in ("env", "policy", "algo", "reward", "engine", "warm_start.clone"):
        group = OmegaConf.select(config, key)
        if isinstance(group, DictConfig) and "target" in group:
            group["_target_"] = group.pop("target")


START_ONLY = (
    "name", "experiment", "seed", "warm_start.weights", "warm_start.episodes", "warm_start.demonstrations",
)  # fmt: skip
ELSEWHERE = {"randomise": "env.randomise", "renderer": "render"}
"""Words of the command line whose settings are under another name."""


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
