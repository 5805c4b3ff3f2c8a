"""A training run from its configuration to its last line."""

from collections.abc import Sequence
from pathlib import Path

import torch
from omegaconf import DictConfig, OmegaConf

from embodied.errors import UserError
from embodied.files import remove, write_bytes
from embodied.monitor.progress import Progress
from embodied.runtime import checkpoint as checkpoints
from embodied.runtime import run_folder
from embodied.runtime.inline import InlineRun
from embodied.runtime.report import report
from embodied.runtime.settings import CONFIG, Settings, resumed_config, typed


def train(config: DictConfig, overrides: Sequence[str]) -> int:
    """Start or resume a run; returns the exit status. `overrides` are the words the user wrote, `config` has them."""
    settings = typed(Settings, config)
    root, new = Path(settings.runs), settings.resume is None
    if settings.resume is None:
        algo = str(settings.algo.get("target", "run")).rpartition(".")[2].lower()
        folder = run_folder.create(root, settings.name, prefix=f"{settings.task.get('name', 'task')}-{algo}")
        write_bytes(folder / CONFIG, OmegaConf.to_yaml(config).encode())
    else:
        folder = run_folder.resolve(settings.resume, root)
        config = resumed_config(folder, config, overrides)
        settings = typed(Settings, config)
    with run_folder.lock(folder):
        try:
            line = _run(config, settings, root, folder)
        except UserError:
            # Nothing was learned yet: the same name is free for the corrected command.
            if new and not checkpoints.checkpoints(folder / "checkpoints"):
                remove(folder)
            raise
        except KeyboardInterrupt:
            raise KeyboardInterrupt(f"`embodied train resume={folder}` goes on from the last checkpoint") from None
    print(line)
    return 0


def _run(config: DictConfig, settings: Settings, root: Path, folder: Path) -> str:
    """Run until the end of training and report; returns the last line. The caller holds the folder's lock."""
    attempt = run_folder.next_attempt(folder)
    torch.set_num_threads(settings.runtime.threads)
    title = f"{settings.task.get('name')} {folder.name}"
    with Progress(title, settings.budget.env_steps, settings.budget.wall_s or float("inf")) as progress:
        run = InlineRun(settings, folder, attempt, progress)
        try:
            if attempt:
                saved = checkpoints.latest(folder / "checkpoints", run.spec.to_dict())
                if saved is not None:
                    run.restore(saved)
                else:
                    run.metrics.truncate_after(-1)
                progress.say(f"resuming {folder} at step {run.step}" if saved else f"starting {folder} anew")
                if run.warm and run.finished:
                    progress.say("it has reached its end: a larger evaluate.target or budget.env_steps lets it go on")
            # Only now are the settings known to fit: a refused resume leaves the run those that did.
            write_bytes(folder / CONFIG, OmegaConf.to_yaml(config).encode())
            run_folder.point_latest(root, folder)
            run.run()
            return report(run)
        finally:
            run.close()
