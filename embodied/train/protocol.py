"""Protocol of a comparison: the gain of reinforcement learning over a clone, and whether the policy listens.

Success is measured on starts, and where the split says so on phrasings, that were never trained on, four times: of the
clone that the run began with; of a clone trained from the same demonstrations for the time of the whole run; of the
run's last version; and of that version with an instruction that names another object than the one judged.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embodied.build import build
from embodied.client import LocalClient, PolicyClient
from embodied.errors import ConfigError, nearest
from embodied.evaluate.cell import Cell, env_under, measure, split_names
from embodied.evaluate.comparison import compare
from embodied.learning.bc import BehaviourCloning
from embodied.runs.parts import make_policy
from embodied.runs.settings import Settings
from embodied.serving.versioned_policy import VersionedPolicy
from embodied.train.demonstrations import EPISODES, stored
from embodied.train.parts import Parts
from embodied.train.snapshot import has_snapshot, read_snapshot
from embodied.weights.tensors import read_tensors
from embodied.weights.versions import MANIFEST, TENSORS
from policies.torch_policy import TorchPolicy

CLONE, PRETRAINED = "clone", "pretrained"
"""Folders of a run: the weights that reinforcement learning begins with, and those that cloning began with."""
FIX = "give compare.split=null, or start a new run"
NEVER = 10**9


@dataclass(frozen=True)
class Row:
    """One of the four numbers: a short name, a description, and the measured cell."""

    name: str
    what: str
    cell: Cell


@dataclass(frozen=True)
class Protocol:
    """Results of a run.

    Attributes:
        rows: The numbers, in order.
        sentence: Comparison of the last version with the clone of equal time, pair by pair.
        same_time_s: Seconds of cloning that this clone was given.
    """

    rows: list[Row]
    sentence: str
    same_time_s: float

    def lines(self) -> list[str]:
        """The table."""
        wide = max(len(row.what) for row in self.rows)
        made = []
        for row in self.rows:
            low, high = (100 * bound for bound in row.cell.interval)
            counts = f"{row.cell.successes}/{row.cell.counted}"
            made.append(f"{row.what:<{wide}}  {100 * row.cell.rate:5.1f} %  ({low:.1f} to {high:.1f})  {counts}")
        return [*made, self.sentence]

    def to_dict(self) -> dict[str, Any]:
        """As JSON values."""
        rows = {
            row.name: {
                "success_rate": row.cell.rate,
                "success_ci95": list(row.cell.interval),
                "successes": row.cell.successes,
                "episodes": row.cell.counted,
                "split": row.cell.split,
            }
            for row in self.rows
        }
        return {**rows, "sentence": self.sentence, "same_time_s": self.same_time_s}


def follow_protocol(run: Parts, trained_s: float) -> Protocol:
    """Measure a run that has ended.

    Args:
        run: Parts of the run, with `Settings.compare.split` given.
        trained_s: Seconds of the run, and of the other clone.

    Raises:
        CorruptFile: The snapshot of the clone is damaged.
    """
    settings = run.settings
    split, wrong = settings.compare.split, settings.compare.wrong
    first = settings.evaluate.final_seed
    seeds = np.arange(first, first + settings.evaluate.final_episodes)

    def cell(client: PolicyClient, under: str | None) -> Cell:
        return measure(client, run.spec, settings.task, settings.env, under, seeds, settings.seed)

    run.progress.update(phase="measuring the clone")
    rows = [Row("clone", "clone", cell(_serve(run, _snapshot(run, CLONE)), split))]
    run.progress.update(phase=f"cloning for {trained_s:.0f} s")
    longer = _clone_for(run, trained_s)
    rows.append(Row("same_time_clone", f"clone of {trained_s:.0f} s, as long as the run", cell(longer, split)))
    run.progress.update(phase="measuring")
    rows.append(Row("rl", "clone, then RL", cell(run.client, split)))
    rows.append(Row("wrong_instruction", "the same, told another one", cell(run.client, wrong)))
    sentence = compare(rows[2].cell, rows[1].cell, ("RL", "the clone of equal time")).sentence()
    return Protocol(rows, sentence, trained_s)


def check_protocol(settings: Settings) -> None:
    """Check, before anything is trained, that the splits can be measured.

    Raises:
        ConfigError: No split has this name, or it does not fit the task.
    """
    for key, name in (("compare.split", settings.compare.split), ("compare.wrong", settings.compare.wrong)):
        if name not in split_names():
            raise ConfigError(f"no split is called {name!r}", key, nearest(str(name), split_names()))
        env_under(name, settings.task, settings.env, 1, settings.seed).close()


def check_clone(run: Parts) -> None:
    """Check that a resumed run has the snapshots that it is compared with.

    Raises:
        ConfigError: It has none.
        CorruptFile: One is damaged.
    """
    if not has_snapshot(run.folder / CLONE):
        raise ConfigError("this run kept no clone to compare with", "compare.split", FIX)
    _snapshot(run, CLONE)
    if run.settings.warm_start.weights is not None:
        if not has_snapshot(run.folder / PRETRAINED):
            what = "this run did not keep the weights it began with, which a clone of equal time needs"
            raise ConfigError(what, "compare.split", FIX)
        _snapshot(run, PRETRAINED)


def _snapshot(run: Parts, name: str) -> dict[str, NDArray[Any]]:
    limit, folder = sum(array.nbytes for array in run.trained.tensors().values()), run.folder / name
    if name == PRETRAINED or (folder / MANIFEST).exists():
        return read_snapshot(folder, limit, FIX)
    run.progress.say(f"{folder} has no {MANIFEST}, as in older runs: its weights are taken as they are")
    return read_tensors(folder / TENSORS, limit, FIX)


def _clone_for(run: Parts, seconds: float) -> LocalClient:
    settings = run.settings
    policy, begin = make_policy(settings.policy, run.env.spec, settings.seed), settings.warm_start
    assert isinstance(policy, TorchPolicy)
    config = {**begin.clone, "steps": NEVER, "seconds": seconds}
    cloner: BehaviourCloning = build(config, "warm_start.clone", policy, seed=settings.seed)
    if begin.weights is not None:
        cloner.load_pretrained(_snapshot(run, PRETRAINED))
    source, limit = run.folder / EPISODES, math.inf  # they fitted before
    if begin.episodes is not None:
        source, limit = Path(begin.episodes), begin.memory_gb * 1e9
    episodes = stored(source, policy, begin.demonstrations, limit, run.progress.say, run.env.spec.only_agent)
    cloner.fit(episodes, lambda share, *_: run.progress.update(phase=f"a clone of equal time, {100 * share:.0f} %"))
    return _serve(run, cloner.tensors())


def _serve(run: Parts, tensors: Mapping[str, NDArray[Any]]) -> LocalClient:
    policy = make_policy(run.settings.policy, run.env.spec, run.settings.seed)
    policy.load(tensors)
    return LocalClient(VersionedPolicy(policy))
