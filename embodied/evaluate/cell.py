"""One cell of an evaluation: a policy on one task under one split, an episode of each seed.

    cell = measure(client, spec, task, env, "unseen_instructions", seeds=range(1000, 1200), seed=0)
    cell.successes, cell.counted, cell.interval, cell.outcomes

`client` answers for `spec` (a `LocalClient` or `RemoteClient`); `task` and `env` are the config groups of a run,
`Settings.task` and `Settings.env`; the split is a file of `configs/split/`, or None for none.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from embodied.client import PolicyClient
from embodied.data import Outcome
from embodied.errors import ConfigError, nearest
from embodied.monitor.stats import wilson
from embodied.rollout.env import Env
from embodied.rollout.play import Played, by_policy, play
from embodied.runs.parts import make_env
from embodied.search_path import config_files
from embodied.spec import PolicySpec
from simulators.tabletop import decode_text

BATCH = 256
"""Environments played at once, unless told otherwise."""
WORDS = "instruction"
UNFAILED = (Outcome.SUCCESS, Outcome.INFRASTRUCTURE_FAULT)


@dataclass(frozen=True)
class Failed:
    """An episode without success, with all that its replay needs.

    Attributes:
        seed, outcome: Of the episode.
        instruction: Words that the policy was given; empty for none.
        initial_state: [S] float64, empty where the env tells no states.
        applied: [L, U] controls of each step.
        drawn: Randomised quantities, by name.
    """

    seed: int
    outcome: Outcome
    instruction: str
    initial_state: NDArray[np.float64]
    applied: NDArray[np.float64]
    drawn: dict[str, NDArray[Any]]


@dataclass(frozen=True)
class Cell:
    """Results of N episodes of one task under one split, in the order of their seeds.

    Attributes:
        task: Name of the task.
        split: Name of the split, or None.
        seeds: [N] int64.
        outcomes: [N] uint8 of `Outcome`.
        lengths: [N] steps.
        returns: [N] sums of rewards.
        versions: Numbers of the policy versions that decided, ascending.
        actions_digest: Sixteen hex digits, equal for two cells in which the same actions were taken.
        failed: The first episodes that did not succeed, as many as were asked for.
    """

    task: str
    split: str | None
    seeds: NDArray[np.int64]
    outcomes: NDArray[np.uint8]
    lengths: NDArray[np.int32]
    returns: NDArray[np.float32]
    versions: list[int]
    actions_digest: str
    failed: list[Failed] = field(default_factory=list)

    @property
    def valid(self) -> NDArray[np.bool_]:
        """[N] whether an episode counts: all but infrastructure faults."""
        return self.outcomes != Outcome.INFRASTRUCTURE_FAULT

    @property
    def succeeded(self) -> NDArray[np.bool_]:
        """[N]."""
        return self.outcomes == Outcome.SUCCESS

    @property
    def successes(self) -> int:
        return int(self.succeeded.sum())

    @property
    def counted(self) -> int:
        return int(self.valid.sum())

    @property
    def rate(self) -> float:
        return self.successes / max(self.counted, 1)

    @property
    def interval(self) -> tuple[float, float]:
        """Wilson's 95 % interval of the success rate."""
        return wilson(self.successes, self.counted)

    @property
    def counts(self) -> dict[str, int]:
        """Episodes by outcome."""
        return {o.name.lower(): int((self.outcomes == o).sum()) for o in Outcome if o != Outcome.RUNNING}


def measure(
    client: PolicyClient,
    spec: PolicySpec,
    task: Mapping[str, Any],
    env: Mapping[str, Any],
    split: str | None,
    seeds: ArrayLike,
    seed: int,
    *,
    batch: int = BATCH,
    failures: int = 0,
) -> Cell:
    """Play one episode of each seed, once, with the mode of the policy's distribution.

    How the seeds are cut into batches changes nothing of the result: starts and randomisation follow from an episode's
    seed, noise is keyed by it, and a policy's rows do not depend on their batch.

    Args:
        client: Answers.
        spec: Of the policy that answers.
        task: The task's `name` and options.
        env: What simulates it.
        split: As `split_of`.
        seeds: [N] whole numbers, each once.
        seed: Of the policy's noise.
        batch: Environments at once; pictures are kept of one step only.
        failures: How many of the first failing episodes to keep in `Cell.failed`.

    Raises:
        ConfigError: As `env_under`; seeds that are none, or twice the same.
        SpecMismatch: The policy does not fit the env; names the stream.
    """
    wanted = np.atleast_1d(np.asarray(seeds)).astype(np.int64)
    if not wanted.size or len(np.unique(wanted)) < len(wanted) or batch < 1:
        raise ConfigError(f"{wanted.size} seeds, {batch} at once", "seeds", "give each seed once, and 1 or more envs")
    parts: list[Played] = []
    digests: list[bytes] = []
    failed: list[Failed] = []
    made: Env | None = None
    try:
        for some in np.array_split(wanted, -(-len(wanted) // batch)):
            if made is None or made.num_envs != len(some):
                # The old ones go after the new ones came, so that envs in workers keep them.
                old, made = made, env_under(split, task, env, len(some), seed)
                if old is not None:
                    old.close()
                client.hello(made.spec)
            decide = by_policy(client, spec, seed, some)
            played = play(made, decide, some, spec, id="eval", mode="evaluation", record=(WORDS,))
            digests += [_digest(played, row) for row in range(len(some))]
            failed += _failures(played, made.spec.instruction, failures - len(failed))
            parts.append(played)
        assert made is not None
        name = made.spec.task
    finally:
        if made is not None:
            made.close()
    live = [played.segment.versions[played.segment.rows.step >= 0] for played in parts]
    return Cell(
        task=str(task.get("name", name)),
        split=split,
        seeds=wanted,
        outcomes=np.concatenate([played.outcomes for played in parts]),
        lengths=np.concatenate([played.lengths for played in parts]),
        returns=np.concatenate([played.returns for played in parts]),
        versions=sorted({int(v) for versions in live for v in np.unique(versions)}),
        actions_digest=hashlib.sha256(b"".join(digests)).hexdigest()[:16],
        failed=failed,
    )


def split_names() -> list[str]:
    """Names that `split_of` knows."""
    return list(config_files("split"))


def split_of(
    name: str | None, task: Mapping[str, Any], env: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Task and environment with the overrides of `configs/split/<name>.yaml` merged in; None changes nothing.

    Raises:
        ConfigError: No split has this name, or its file is none.
    """
    if name is None:
        return dict(task), dict(env)
    if name not in split_names():
        raise ConfigError(f"no split is called {name!r}", "splits", nearest(name, split_names()))
    path = config_files("split")[name]
    try:
        read = OmegaConf.to_container(OmegaConf.load(path))
    except (OmegaConfBaseException, YAMLError, OSError) as error:
        raise ConfigError(str(error).splitlines()[0], str(path), "mend the file") from None
    groups: dict[Any, Any] = read if isinstance(read, dict) else {"": read}
    for group, values in groups.items():
        if group not in ("task", "env") or not isinstance(values, dict | None):
            raise ConfigError(f"a split holds no {group!r}", str(path), "give mappings under task and env only")
    return _merged(task, groups.get("task") or {}), _merged(env, groups.get("env") or {})


def env_under(split: str | None, task: Mapping[str, Any], env: Mapping[str, Any], num_envs: int, seed: int) -> Env:
    """Environments that stay where they end, of a task under a split.

    Raises:
        ConfigError: As `split_of` and `make_env`; names the split where the task or env lacks what it changes.
    """
    changed_task, changed_body = split_of(split, task, env)
    try:
        return make_env(changed_task, changed_body, num_envs, seed, autoreset=False)
    except ConfigError as error:
        raise under(split, task, env, error) from None


def under(split: str | None, task: Mapping[str, Any], env: Mapping[str, Any], error: ConfigError) -> ConfigError:
    """The error, with the split's name where it is about a key that the split changes."""
    pairs = zip((task, env), split_of(split, task, env), strict=True)
    changed = {key for own, made in pairs for key in made if made[key] != own.get(key)}
    if changed.isdisjoint(error.where.split(".")[1:2]):
        return error
    return ConfigError(f"split {split} does not fit: {error.what}", error.where, "leave this split out")


def _merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """`base` with the values of `over`, mappings merged key by key."""
    merged = dict(base)
    for key, value in over.items():
        own = merged.get(key)
        merged[key] = _merged(own, value) if isinstance(own, Mapping) and isinstance(value, Mapping) else value
    return merged


def _digest(played: Played, row: int) -> bytes:
    """Of the actions of one episode."""
    actions = played.segment.actions[: played.lengths[row], row]
    return hashlib.sha256(np.ascontiguousarray(actions).tobytes()).digest()


def _failures(played: Played, instruction: str, count: int) -> list[Failed]:
    """The first `count` episodes that a policy failed."""
    segment, found = played.segment, list[Failed]()
    said = segment.observations.get(WORDS)
    assert segment.starts is not None
    for row in np.flatnonzero(~np.isin(played.outcomes, UNFAILED))[: max(count, 0)]:
        found.append(
            Failed(
                int(played.seeds[row]),
                Outcome(int(played.outcomes[row])),
                instruction if said is None else decode_text(said[0, row]),
                segment.starts.state[row].copy(),
                segment.applied[: played.lengths[row], row].copy(),
                {name: values[row].copy() for name, values in segment.starts.drawn.items()},
            )
        )
    return found
