"""Speed of the running PPO loop over bare physics, and the share of each part.

`loop_over_physics_64`: control steps per second of a run of `experiment=lift_fast` after cloning (rollout, reward,
learning, publication, storage; no evaluation) over those of a bare `Batch.step` of the same model, 64 environments,
substeps, persistence and stage, given the controls that the loop applied and the starts it drew. Both run in turn; the
result is the median of the rounds' ratios. Beside it the share of the loop's time in each part.
"""

import argparse
import math
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from mujoco.batch import Batch
from results import emit

from embodied.cli.compose import compose_config
from embodied.data import Segment
from embodied.monitor.metrics import read_metrics
from embodied.monitor.progress import Progress
from embodied.runs.settings import Settings, typed
from embodied.train.loop import Loop
from embodied.train.parts import make_parts
from embodied.train.warm_start import warm_start
from simulators.env import BatchEnv
from simulators.physics import STAGE

ENVS = 64
PARTS = ("physics", "envs", "inference", "learning", "storage", "weights", "reward")


def bare_seconds(batch: Batch, substeps: int, first: np.ndarray, segments: list[Segment]) -> float:
    """Seconds of bare physics under the controls and starts of segments."""
    ctrl = batch.bind("ctrl")
    batch.state[:] = first
    batch.forward(None, STAGE)
    begin = time.perf_counter()
    for segment in segments:
        for t, applied in enumerate(segment.applied):
            if segment.starts is not None and t and (at := np.flatnonzero(segment.start_at == t)).size:
                ids = segment.starts.ids[at]
                batch.state[ids] = segment.starts.state[at]
                batch.forward(ids, STAGE)
            ctrl[:] = applied
            batch.step(None, substeps, STAGE)
    return time.perf_counter() - begin


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7, help="rounds of interleaved measurements")
    parser.add_argument("--updates", type=int, default=4, help="RL steps of one round")
    arguments = parser.parse_args()
    overrides = ["experiment=lift_fast", f"rollout.num_envs={ENVS}", "evaluate.every=1000000", "evaluate.episodes=1"]
    settings = typed(Settings, compose_config("train", overrides))
    torch.set_num_threads(settings.runtime.threads)
    with tempfile.TemporaryDirectory() as folder, Progress("loop", limit_s=math.inf) as progress:
        run = Loop(make_parts(settings, Path(folder), 0, progress))
        warm_start(run)
        env = run.parts.env
        assert isinstance(env, BatchEnv)
        bare = Batch(env.task.model, ENVS, env.batch.nthread, persistent=True)
        segments: list[Segment] = []
        collect = run.rollout.collector.collect

        def keep() -> list[Segment]:
            collected = collect()
            segments.extend(collected)
            return collected

        run.rollout.collector.collect = keep  # type: ignore[method-assign]
        run.update()
        ratios, rates = [], []
        for _ in range(arguments.rounds):
            segments.clear()
            first = env.batch.state.copy()
            begin = time.perf_counter()
            for _ in range(arguments.updates):
                run.update()
            seconds = time.perf_counter() - begin
            rates.append(sum(s.steps for s in segments) / seconds)
            ratios.append(bare_seconds(bare, env.task.substeps, first, segments) / seconds)
        run.close()
        columns = {name: np.array(column) for name, column in read_metrics(Path(folder) / "metrics.csv").items()}
    measured = columns["step"] > 1  # without cloning and the first update
    total = np.nansum(columns["wall/step_s"][measured])
    print(f"loop: {np.median(rates):.0f} env steps/s, {np.median(ratios):.3f} of bare physics")
    print("rounds: " + " ".join(f"{ratio:.2f}" for ratio in ratios))
    shares = {f"share_{part}": float(np.nansum(columns[f"wall/{part}_s"][measured]) / total) for part in PARTS}
    for name, share in shares.items():
        print(f"{name:<16} {100 * share:5.1f} %")
    emit({"loop_over_physics_64": float(np.median(ratios)), **shares}, {"loop_over_physics_64": 0.6})


if __name__ == "__main__":
    main()
