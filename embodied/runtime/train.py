"""A training run from its configuration to its last line."""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from embodied.build import resolve
from embodied.errors import CorruptFile, InfrastructureError, UserError
from embodied.files import remove, write_bytes
from embodied.machine import crowded
from embodied.monitor.progress import Progress
from embodied.runs import checkpoint as checkpoints
from embodied.runs import run_folder
from embodied.runs.provenance import record_provenance
from embodied.runs.settings import CONFIG, Settings, resumed_config, typed
from embodied.runs.unused import unused
from embodied.train.demonstrations import find_episodes
from embodied.train.loop import Loop
from embodied.train.pretrained import find_weights
from embodied.train.protocol import check_clone
from embodied.train.publisher import RestoreAsked
from embodied.train.report import report
from embodied.train.warm_start import CLONING, FIRST_ROW


def train(config: DictConfig, overrides: Sequence[str]) -> Path:
    """Start or resume a run; returns its folder. `overrides` are the words the user wrote, `config` has them."""
    settings = typed(Settings, config)
    root, new = Path(settings.runs), settings.resume is None
    if settings.resume is None:
        settings = _located(settings, config, root)
        algo = str(settings.algo.get("_target_", "run")).rpartition(".")[2].lower()
        folder = run_folder.create(root, settings.name, prefix=f"{settings.task.get('name', 'task')}-{algo}")
        write_bytes(folder / CONFIG, OmegaConf.to_yaml(config).encode())
    else:
        folder = run_folder.resolve(settings.resume, root)
        config = resumed_config(folder, config, overrides)
        settings = typed(Settings, config)
    with run_folder.lock(folder):
        try:
            line = _run(config, settings, root, folder, overrides)
        except UserError:
            # Nothing was learned yet: the same name is free for the corrected command.
            if new and not checkpoints.checkpoints(folder / "checkpoints"):
                remove(folder)
            raise
        except KeyboardInterrupt:
            there = checkpoints.checkpoints(folder / "checkpoints")
            what = "goes on from the last checkpoint" if there else "begins again: there is no checkpoint yet"
            if not there and (folder / CLONING).exists():
                what = "continues cloning"
            raise KeyboardInterrupt(f"`embodied train resume={folder}` {what}") from None
    with suppress(BrokenPipeError):  # its reader left; the run is finished all the same
        print(line)
    return folder


def _located(settings: Settings, config: DictConfig, root: Path) -> Settings:
    """The settings, and `config` too, with what the run begins from spelled out: `latest` will soon be this run."""
    begin = settings.warm_start
    if begin.episodes is not None:
        config.warm_start.episodes = str(find_episodes(begin.episodes, root))
    if begin.weights is not None:
        config.warm_start.weights = find_weights(begin.weights, root, str(settings.policy.get("name", "")))
    return typed(Settings, config)


def _run(config: DictConfig, settings: Settings, root: Path, folder: Path, words: Sequence[str]) -> str:
    """Run until the end of training and report; returns the last line. The caller holds the folder's lock.

    A run that is to go back to a checkpoint after a rollback starts again from it, like a resumed one, so that nothing
    gathered before trains it.
    """
    runtime: Any = resolve({"_target_": settings.runtime._target_}, "runtime")(settings)
    title = f"{settings.task.get('name')} {folder.name}"
    while True:
        attempt = run_folder.next_attempt(folder)
        with (
            Progress(title, settings.budget.env_steps, settings.budget.wall_s or float("inf")) as progress,
            runtime.open(folder, attempt, progress) as loop,
        ):
            try:
                resumed = attempt > 0 and _resume(loop)
                # Only now are the settings known to fit: a refused resume leaves the run those that did.
                write_bytes(folder / CONFIG, OmegaConf.to_yaml(config).encode())
                run_folder.point_latest(root, folder)
                record_provenance(folder, attempt)
                if line := crowded(settings.runtime.threads, "runtime.threads"):
                    progress.say(line)
                for line in unused(settings, words, only_clones=loop.parts.learner is None):
                    progress.say(line)
                runtime.run(loop, resumed)
                return report(loop)
            except RestoreAsked:
                loop.parts.store.seal()


def _resume(loop: Loop) -> bool:
    """Continue from the newest checkpoint, or from that of the version a rollback went back to, if that was asked for.

    Returns:
        Whether there is any checkpoint.
    """
    parts, say = loop.parts, loop.parts.progress.say
    held = parts.registry.held(parts.spec.name)
    if held is not None and held.restore:
        saved: checkpoints.Loaded | None = _rolled_back(loop)
    else:
        held, saved = None, checkpoints.latest(parts.folder / "checkpoints", {parts.spec.name: parts.spec.to_dict()})
    if saved is None:
        parts.metrics.truncate_after(-1 if (parts.folder / CLONING).exists() else FIRST_ROW - 1)
        say(f"starting {parts.folder} anew")
        return False
    if parts.settings.compare.split is not None:
        check_clone(parts)
    parts.end_cloning()
    loop.restore(saved, held)
    say(f"{'going back' if held else 'resuming'} {parts.folder} {'to' if held else 'at'} step {loop.metrics.step}")
    if loop.finished:
        say("it has reached its end: a larger evaluate.target or budget.env_steps lets it continue")
    return True


def _rolled_back(loop: Loop) -> checkpoints.Loaded:
    """The checkpoint paired with the version that was rolled back to, or with the newest before it that is whole.

    Raises:
        InfrastructureError: There is none any more.
    """
    parts = loop.parts
    folder, specs = parts.folder / "checkpoints", {parts.spec.name: parts.spec.to_dict()}
    there = checkpoints.steps(folder)
    for version, step in parts.registry.restorable(parts.spec.name):
        if step not in there:
            continue
        try:
            saved = checkpoints.load(folder / f"{step:08d}", specs)
        except CorruptFile as error:
            parts.progress.say(f"not the checkpoint of version {version.number}: {error.line()}")
            continue
        checkpoints.discard_after(folder, step)
        return saved
    raise InfrastructureError(
        "no checkpoint of the version rolled back to, or of one before it, is whole",
        str(folder),
        f"`embodied weights resume run={parts.folder}` continues from the newest checkpoint",
    )
