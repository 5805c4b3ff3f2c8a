"""Policies from what a run has published: its settings, its policy, a version of its weights. No env is made."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray

from embodied.errors import CorruptFile, UserError
from embodied.runs.checkpoint import check_spec
from embodied.runs.engines import with_engine
from embodied.runs.parts import build_policy
from embodied.runs.run_folder import resolve
from embodied.runs.settings import Settings, saved_config, typed
from embodied.settings import require
from embodied.spec import PolicySpec
from embodied.weights.manifest import MAX_NUMBER, Manifest, Version
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
    spec = PolicySpec.from_dict(registry.newest_whole(name, lambda text: None).spec)
    torch.set_num_threads(settings.runtime.threads)
    policy = build_policy(with_engine(settings.policy, engine or {}), spec.whole_agent, settings.seed, spec.control_hz)
    fix = "serve it with the code and settings it was trained with"
    check_spec(spec.to_dict(), policy.spec.to_dict(), str(folder), "the published version", fix)
    return Run(folder, settings, registry, policy)


def load_policy(
    run: str, runs: str, version: str, say: Callable[[str], object] = lambda text: None
) -> tuple[Settings, Policy, Manifest, dict[str, NDArray[Any]]]:
    """A run's settings, its policy as configured, and one verified version of its weights, as `find_version` has it.

    Where `latest` is damaged, the newest whole version is taken, and `say` is told.

    Raises:
        UserError, CorruptFile, SpecMismatch: As `open_run`.
        ConfigError, WeightsRefused: As `find_version`.
    """
    opened = open_run(run, runs)
    registry, name = opened.registry, opened.policy.spec.name
    try:
        chosen = find_version(registry, name, version, say)
        manifest, tensors = registry.read(name, chosen.label)
    except CorruptFile as error:
        if version != "latest":
            raise
        manifest, tensors = _read_newest(registry, name, error)
        say(f"version {manifest.number} is taken: {error.line()}")
    return opened.settings, opened.policy, manifest, tensors


def _read_newest(registry: Registry, policy: str, damage: CorruptFile) -> tuple[Manifest, dict[str, NDArray[Any]]]:
    """The newest whole version; raises `damage` if there is none."""
    for version in reversed(registry.versions(policy)):
        with suppress(CorruptFile):
            return registry.read(policy, version.label)
    raise damage


def find_version(
    registry: Registry, policy: str, version: str, say: Callable[[str], object] = lambda text: None
) -> Version:
    """A version as a user names it.

    Args:
        registry: Registry that keeps it.
        policy: Name of the policy.
        version: A number; `latest` for the one to be served; `best` for the one that did best in an evaluation.
        say: Told why `latest` is not the newest version.

    Raises:
        ConfigError: It is neither, or a number of more digits than any version has.
        UserError: No version was evaluated.
        WeightsRefused: The version is not kept.
        CorruptFile: The registry's pointers are damaged.
    """
    if version == "latest":
        newest, pointers = registry.find(policy, version), registry.pointers(policy)
        chosen = registry.active(policy) or newest
        if chosen != newest:
            why = "pinned" if chosen == pointers.pinned else "served since a rollback"
            say(f"version {chosen.number} is taken: it is {why}; the newest is version {newest.number}")
        return chosen
    if version == "best":
        best = registry.pointers(policy).best
        if best is None:
            raise UserError(f"no version of {policy} was evaluated", str(registry.folder), "give version=latest")
        return best
    fits = version.isdecimal() and len(version) <= len(str(MAX_NUMBER))
    require(fits, "version", version[:40], "give a whole number, latest or best")
    return registry.find(policy, int(version))
