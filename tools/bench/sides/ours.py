"""Our side: an experiment as `embodied train` runs it, storage and publication included."""

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from sides.goal import EPISODES, FIRST_SEED, Goal

from embodied.monitor.progress import Progress
from embodied.train.loop import InlineRun
from embodied.train.settings import Settings


def seconds(settings: Settings, goal: Goal) -> int:
    """Train until `goal` is done; returns environment steps."""
    with tempfile.TemporaryDirectory() as folder, Progress("ours") as progress:
        run = InlineRun(settings, Path(folder), 0, progress)
        run.publisher.publish(run.trained)
        run.warm = True
        seeds = np.arange(EPISODES) + FIRST_SEED

        def evaluate() -> float:
            played, _ = run.test(seeds, f"eval-{run.step}")
            return played.successes / EPISODES

        while not goal.done(run.env_steps, evaluate):
            run.tick()
        run.close()
        return run.env_steps


def reference(settings: Settings) -> tuple[Any, dict[str, Any]]:
    """Our algorithm's settings and network, as the components read them."""
    with tempfile.TemporaryDirectory() as folder, Progress("settings") as progress:
        run = InlineRun(settings, Path(folder), 0, progress)
        learner: Any = run.learner
        hidden = list(run.spec.extra["hidden"])
        std = float(learner.network.log_std.detach().exp().mean())
        run.close()
        return learner.config, {"hidden": hidden, "std": std}
