"""A training run from its configuration to its last line."""

from collections.abc import Sequence
from pathlib import Path

import torch
from omegaconf import DictConfig, OmegaConf

from embodied.files import write_bytes
from embodied.monitor.progress import Progress
from embodied.runtime import checkpoint as checkpoints
from embodied.runtime import run_folder
from embodied.runtime.inline import InlineRun
from embodied.runtime.report import report
from embodied.runtime.settings import CONFIG, Settings, saved_config, typed

START_ONLY = ("resume", "name", "runs", "experiment")


def train(config: DictConfig, overrides: Sequence[str]) -> int:
    """Start or resume a run; returns the exit status. `overrides` are the words the user wrote."""
    settings = typed(Settings, config)
    root = Path(settings.runs)
    if settings.resume is None:
        algo = str(settings.algo.get("target", "run")).rpartition(".")[2].lower()
        folder = run_folder.create(root, settings.name, prefix=f"{settings.task.get('name', 'task')}-{algo}")
    else:
        folder = run_folder.resolve(settings.resume, root)
        config = saved_config(folder, [word for word in overrides if word.partition("=")[0] not in START_ONLY])
        settings = typed(Settings, config)
    with run_folder.lock(folder):
        attempt = run_folder.next_attempt(folder)
        run_folder.point_latest(root, folder)
        write_bytes(folder / CONFIG, OmegaConf.to_yaml(config).encode())
        torch.set_num_threads(settings.runtime.threads)
        title = f"{settings.task.get('name')} {folder.name}"
        with Progress(title, settings.budget.env_steps, settings.budget.wall_s or float("inf")) as progress:
            run = InlineRun(settings, folder, attempt, progress)
            try:
                if attempt:
                    saved = checkpoints.latest(folder / "checkpoints", run.spec.to_dict())
                    if saved is not None:
                        run.restore(saved)
                    progress.say(f"resuming {folder} at step {run.step}" if saved else f"starting {folder} anew")
                run.run()
                line = report(run)
            finally:
                run.close()
    print(line)
    return 0
