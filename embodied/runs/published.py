"""Policies from what a run has published: its settings, its policy, a version of its weights. No env is made."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray

from embodied.errors import UserError
from embodied.runs.checkpoint import check_spec
from embodied.runs.engines import with_engine
from embodied.runs.parts import build_policy
from embodied.runs.run_folder import resolve
from embodied.runs.settings import Settings, saved_config, typed
from embodied.settings import require
from embodied.spec import PolicySpec
from embodied.weights.manifest import MAX_NUMBER, Manifest
from embodied.weights.registry import Registry
from policies.base import Policy


@dataclass
class Run:
    """A run that has published: its folder, settings, registry and the policy it trains."""

    folder: Path
    settings: Settings
    registry: Registry
    policy: Policy


def open_run(run: str, runs: str, engine: Mapping[str, Any] | None = None) -> Run:
    """A run's policy, made as its published versions say, with an engine of `with_engine`; its weights are not loaded.

    Raises:
        UserError: There is no such run, or it has published nothing yet.
        CorruptFile: What is stored of it is damaged.
        SpecMismatch: Its settings no longer make the policy whose versions it keeps.
        ConfigError: The engine is none for its policy.
    """
    folder = resolve(run, Path(runs))
    settings = typed(Settings, saved_config(folder))
    registry = Registry(folder / "weights", keep=settings.runtime.versions)
    names = registry.policies()
    if not names:
        raise UserError(
            f"the run {folder.name} has published no version yet", str(folder / "weights"), "wait for its first one"
        )
    name = str(settings.policy.get("name", "")) if settings.policy.get("name") in names else names[0]
    spec = PolicySpec.from_dict(registry.manifest(name, "latest").spec)
    torch.set_num_threads(settings.runtime.threads)
    policy = build_policy(with_engine(settings.policy, engine or {}), spec.whole_agent, settings.seed)
    fix = "serve it with the code and settings it was trained with"
    check_spec(spec.to_dict(), policy.spec.to_dict(), str(folder), "the published version", fix)
    return Run(folder, settings, registry, policy)


def load_policy(run: str, runs: str, version: str) -> tuple[Settings, Policy, Manifest, dict[str, NDArray[Any]]]:
    """A run's settings, its policy as configured, and one verified version of its weights, a number or `latest`.

    Raises:
        UserError, CorruptFile, SpecMismatch: As `open_run`.
        WeightsRefused: That version is not kept.
    """
    opened = open_run(run, runs)
    manifest, tensors = opened.registry.read(opened.policy.spec.name, whole_number(version))
    return opened.settings, opened.policy, manifest, tensors


def whole_number(version: str) -> int | str:
    """A version as a user writes it: a number, or `latest`.

    Raises:
        ConfigError: Neither, or a number of more digits than any version has.
    """
    if version == "latest":
        return version
    fits = version.isdecimal() and len(version) <= len(str(MAX_NUMBER))
    require(fits, "version", version[:40], "give a whole number, or latest")
    return int(version)
