"""Measuring policies on tasks, splits and seeds, in this process or through a policy server."""

import hashlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embodied.client import LocalClient, PolicyClient, RemoteClient
from embodied.errors import ConfigError, UserError
from embodied.evaluate.cell import Cell, env_under, measure, split_of, under
from embodied.evaluate.comparison import compare
from embodied.evaluate.failures import check_camera, write_failures
from embodied.evaluate.settings import EvalSettings, Planned, plan
from embodied.monitor.stats import wilson
from embodied.rollout.env import Env
from embodied.runs.parts import make_client, make_policy
from embodied.runs.published import load_policy
from embodied.runs.run_folder import resolve
from embodied.serving.versioned_policy import VersionedPolicy
from embodied.spec import PolicySpec
from embodied.weights.manifest import Version
from embodied.weights.registry import Registry

Seeds = NDArray[np.int64]


@dataclass(frozen=True)
class Measured:
    """A policy that is measured.

    Attributes:
        name: In tables.
        folder: Of its run, or None.
        task, env: It was trained on, or those given.
        client, spec: Of the server that answers.
        seed: Of its noise.
        renderer: Of videos.
    """

    name: str
    folder: Path | None
    task: dict[str, Any]
    env: dict[str, Any]
    client: PolicyClient
    spec: PolicySpec
    seed: int
    renderer: str = "auto"


@dataclass(frozen=True)
class Row:
    """Results of one policy in one cell, and the videos that were written of it so far."""

    policy: str
    label: str
    cell: Cell
    videos: list[Path]

    def to_dict(self) -> dict[str, Any]:
        """As JSON values."""
        digest, videos = self.cell.actions_digest, [str(path) for path in self.videos]
        names = {"task": self.label, "split": self.cell.split}
        return names | summary([self.cell]) | {"actions_digest": digest, "videos": videos}


@dataclass(frozen=True)
class Evaluation:
    """Results of an evaluation, before its videos are drawn.

    Attributes:
        settings: Of the evaluation.
        cells: Every task under every split.
        policies: One, or the two that are compared.
        rows: Of each policy, one for each cell.
        videos: Folder of the first policy's failures; None for another project's policy, of which there are none.
    """

    settings: EvalSettings
    cells: list[Planned]
    policies: list[Measured]
    rows: list[list[Row]]
    videos: Path | None

    def write_videos(self) -> Iterator[Path]:
        """Draw the failures that were kept, each path as soon as its file is whole, and in its row from then on.

        Raises:
            InfrastructureError: As `write_failures`; the rows keep what they have.
        """
        first = self.policies[0]
        for planned, row in zip(self.cells, self.rows[0], strict=True):
            if self.videos is None or not row.cell.failed:
                continue
            task, _ = split_of(planned.split, planned.task, first.env)
            there = self.videos / (f"{planned.label}-{planned.split}" if planned.split else planned.label)
            for path in write_failures(there, row.cell.failed, task, self.settings.camera, first.renderer):
                row.videos.append(path)
                yield path

    def to_dict(self) -> dict[str, Any]:
        """As JSON values: `success_rate`, `success_ci95`, `episodes`, counts per outcome, `steps_mean`, the
        `policy_versions` that answered, `actions_digest`, which is equal for two evaluations that took the same
        actions, and `cells` with the same of each task and split; of a comparison, `against` with the same of the other
        run, and `comparison`."""
        settings, rows = self.settings, self.rows
        tasks = ", ".join(dict.fromkeys(row.label for row in rows[0]))
        result = {"run": settings.run, "task": tasks, "seed": settings.seed} | _result(rows[0])
        if len(rows) > 1:
            names = (self.policies[0].name, self.policies[1].name)
            result["against"] = {"run": settings.against} | _result(rows[1])
            result["comparison"] = [
                compare(a.cell, b.cell, names).to_dict() | {"task": a.label} for a, b in zip(*rows, strict=True)
            ]
        return result


def evaluate(
    settings: EvalSettings,
    seen: Callable[[Row], object] = lambda row: None,
    say: Callable[[str], object] = lambda text: None,
) -> Evaluation:
    """Play each seed exactly once, on every task under every split, with the mode of the policy's distribution.

    Args:
        settings: Of the evaluation.
        seen: Called with every row once it is measured.
        say: Told which version is measured, where it is not the newest.

    Raises:
        UserError: Unknown runs, versions, tasks or splits; a run compared with itself.
        SpecMismatch: A policy does not fit a task; names the stream. Nothing was played then.
    """
    with ExitStack() as stack:
        if settings.run is None:
            policies = [_given(settings, stack)]
        else:
            policies = _of_runs(settings, settings.run, stack, say)
        cells = plan(settings, policies[0].task)
        _check(cells, policies, settings, stack)
        seeds = np.arange(settings.seed, settings.seed + settings.episodes)
        folder = policies[0].folder
        videos = None if folder is None else folder / "eval" / (settings.label or time.strftime("%Y%m%d-%H%M%S"))
        rows: list[list[Row]] = [[] for _ in policies]
        for planned in cells:
            for policy, own in zip(policies, rows, strict=True):
                own.append(_row(planned, policy, seeds, settings, settings.videos if policy is policies[0] else 0))
                seen(own[-1])
    return Evaluation(settings, cells, policies, rows, videos)


def summary(cells: Sequence[Cell]) -> dict[str, Any]:
    """Episodes, successes, their rate and interval, outcomes, steps and returns of all cells together."""
    successes, counted = sum(cell.successes for cell in cells), sum(cell.counted for cell in cells)
    lengths, returns = (np.concatenate([getattr(cell, name) for cell in cells]) for name in ("lengths", "returns"))
    return {
        "planned": sum(len(cell.seeds) for cell in cells),
        "played": sum(len(cell.outcomes) for cell in cells),
        "episodes": counted,
        "successes": successes,
        "success_rate": successes / max(counted, 1),
        "success_ci95": list(wilson(successes, counted)),
        "outcomes": {name: sum(cell.counts[name] for cell in cells) for name in cells[0].counts},
        "steps_mean": float(lengths.mean()),
        "return_mean": float(returns.mean()),
        "policy_versions": sorted({number for cell in cells for number in cell.versions}),
    }


def _result(rows: Sequence[Row]) -> dict[str, Any]:
    digests = [row.cell.actions_digest for row in rows]
    digest = digests[0] if len(rows) == 1 else hashlib.sha256("".join(digests).encode()).hexdigest()[:16]
    cells = [row.to_dict() for row in rows]
    return summary([row.cell for row in rows]) | {"actions_digest": digest, "cells": cells}


def _row(planned: Planned, policy: Measured, seeds: Seeds, settings: EvalSettings, failures: int) -> Row:
    cell = measure(
        policy.client, policy.spec, planned.task, _env(policy, settings), planned.split, seeds, policy.seed,
        batch=settings.batch, failures=failures,
    )  # fmt: skip
    return Row(policy.name, planned.label, cell, [])


def _check(cells: Sequence[Planned], policies: Sequence[Measured], settings: EvalSettings, stack: ExitStack) -> None:
    """Raise `UserError` before anything is played if a cell cannot be."""
    for planned in cells:
        if settings.videos:
            try:
                check_camera(split_of(planned.split, planned.task, {})[0], settings.camera)
            except ConfigError as error:
                raise under(planned.split, planned.task, {}, error) from None
    if len(cells) * len(policies) == 1:
        return  # it is measured at once
    for planned in cells:
        for policy in policies:
            offered = _probe(planned.split, planned.task, _env(policy, settings), stack).spec
            policy.client.hello(offered)


def _of_runs(settings: EvalSettings, run_name: str, stack: ExitStack, say: Callable[[str], object]) -> list[Measured]:
    """The run, and the one it is compared with."""
    first, version = _of_run(settings, run_name, settings.version, stack, say)
    if settings.against is None:
        return [first]
    second, other = _of_run(settings, settings.against, settings.against_version, stack, say)
    if first.folder == second.folder:
        if version == other:
            what, fix = f"{first.name} version {version} is compared with itself", "give another run or against_version"
            raise UserError(what, "against", fix)
        first, second = (
            replace(policy, name=f"{policy.name} version {number}")
            for policy, number in ((first, version), (second, other))
        )
    elif first.name == second.name:
        assert first.folder is not None and second.folder is not None
        names = _told_apart(first.folder, second.folder)
        first, second = replace(first, name=names[0]), replace(second, name=names[1])
    if "randomise" in first.env:
        # Each keeps its own senses, such as cameras, but both play the same episodes.
        second = replace(second, env=second.env | {"randomise": first.env["randomise"]})
    return [first, second]


def _told_apart(first: Path, second: Path) -> tuple[str, str]:
    """The shortest ends of two folders' paths that differ."""
    longest = max(len(first.parts), len(second.parts))
    ends = ((Path(*first.parts[-n:]), Path(*second.parts[-n:])) for n in range(1, longest + 1))
    one, other = next(pair for pair in ends if pair[0] != pair[1])
    return str(one), str(other)


def _of_run(
    settings: EvalSettings, run_name: str, version: str, stack: ExitStack, say: Callable[[str], object]
) -> tuple[Measured, int]:
    """A run's policy, and the number of the version that answers."""
    run, policy, manifest, tensors = load_policy(run_name, settings.runs, version, say)
    client = make_client(settings.client, policy, None)
    stack.callback(client.close)
    if settings.client.address == "inline":
        client.push(manifest, tensors)
    elif client.version() != manifest.version:
        _check_served(Version(*client.version()), settings, run_name)
    folder = resolve(run_name, Path(settings.runs))
    renderer = run.render.renderer
    return Measured(folder.name, folder, run.task, run.env, client, policy.spec, run.seed, renderer), manifest.number


def _given(settings: EvalSettings, stack: ExitStack) -> Measured:
    """The policy that the config groups describe, or the one of a server."""
    client: PolicyClient
    if settings.client.address == "inline":
        split = settings.splits[0] if settings.splits else None
        offered = _probe(split, settings.task, settings.env, stack).spec
        client = LocalClient(VersionedPolicy(make_policy(settings.policy, offered, seed=0)))
    else:
        client = RemoteClient(settings.client.address, settings.client.timeout_s, settings.client.credentials)
    stack.callback(client.close)
    spec = client.hello()
    return Measured(spec.name, None, settings.task, settings.env, client, spec, 0)


def _env(policy: Measured, settings: EvalSettings) -> dict[str, Any]:
    return policy.env | ({"num_threads": settings.threads} if settings.threads else {})


def _probe(split: str | None, task: Mapping[str, Any], env: Mapping[str, Any], stack: ExitStack) -> Env:
    """One env, kept to the end: those in workers share them."""
    made = env_under(split, task, env, 1, 0)
    stack.callback(made.close)
    return made


def _check_served(served: Version, settings: EvalSettings, run: str) -> None:
    """Raise `UserError` unless a server answers with a version of the run, the one asked for if it was."""
    folder = resolve(run, Path(settings.runs))
    names = {line["version"] for line in Registry(folder / "weights").audit() if line["event"] == "publish"}
    if settings.version != "latest" or served.label not in names:
        what = f"the server answers with version {served.label}, not with version {settings.version} of {run}"
        raise UserError(
            what, settings.client.address, "name the run and version that it serves, or restart it with them"
        )
