"""Our side: an experiment as `embodied train` runs it, storage and publication included."""

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from sides.goal import EPISODES, FIRST_SEED, Goal

from embodied.monitor.progress import Progress
from embodied.runs.settings import Settings
from embodied.train.loop import Loop
from embodied.train.parts import make_parts


def seconds(settings: Settings, goal: Goal) -> int:
    """Train until `goal` is done; returns environment steps."""
    with tempfile.TemporaryDirectory() as folder, Progress("ours") as progress:
        run = Loop(make_parts(settings, Path(folder), 0, progress))
        run.publish()
        seeds = np.arange(EPISODES) + FIRST_SEED

        def evaluate() -> float:
            return run.evaluate(seeds, f"eval-{run.metrics.step}").successes / EPISODES

        while not goal.done(run.metrics.env_steps, evaluate):
            run.update()
        run.close()
        return run.metrics.env_steps


def reference(settings: Settings) -> tuple[Any, dict[str, Any]]:
    """Our algorithm's settings and network, as the components read them."""
    with tempfile.TemporaryDirectory() as folder, Progress("settings") as progress:
        parts = make_parts(settings, Path(folder), 0, progress)
        learner: Any = parts.learner
        hidden = list(parts.spec.extra["hidden"])
        std = float(learner.network.log_std.detach().exp().mean())
        parts.close()
        return learner.config, {"hidden": hidden, "std": std}
