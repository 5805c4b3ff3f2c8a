"""Speed of the batched environment and the Isaac façade over bare physics, beside other projects.

`env_over_batch_N`, `facade_over_batch_N`: control steps per second of the whole environment (control, physics,
observation, reward, auto-reset) over those of a bare `Batch.step` of the same model, N, substeps, persistence and
stage, which is given the controls that the environment applied and the states it reset to. `env_over_async_vector`:
control steps per second over those of the same task, written for one environment on `mj_step` and MuJoCo's own
Jacobian, in gymnasium's `AsyncVectorEnv` at the best of several sizes. All sides run in turn, round after round; a
result is the median of the rounds' ratios.

Beside them, without a target: EnvPool's `PandaPickCube-v1` (`make peer-envpool`). It differs: menagerie's Panda with
its mesh collisions, joint deltas instead of end-effector deltas, 50 Hz by 4 substeps instead of 20 Hz by 10 (so
compare physics steps), and a reward of its own.

`--plot FILE` draws control steps per second over N and threads instead.
"""

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from mujoco.batch import Batch
from numpy.typing import NDArray
from results import emit

import simulators.isaac.tasks  # noqa: F401 -- registers the façade's tasks
from simulators.isaac.env import ManagerBasedRLEnv
from simulators.isaac.registry import parse_env_cfg
from simulators.make import make_env, make_task
from simulators.one_agent import OneAgentEnv
from simulators.physics import STAGE

TASK, FACADE = "lift_cube", "Embodied-Lift-Cube-Franka-v0"
TARGETS = {
    "env_over_batch_64": 0.85,
    "env_over_batch_256": 0.95,
    "facade_over_batch_64": 0.75,
    "facade_over_batch_256": 0.9,
    "env_over_async_vector": 4.0,
}
ROOT = Path(__file__).parents[2]

Reset = tuple[NDArray[np.int32], NDArray[np.float64]] | None


class Native:
    """`lift_cube` of our own environment, driven by its expert with noise."""

    def __init__(self, size: int, threads: int, steps: int) -> None:
        self.env = make_env(TASK, size, threads)
        OneAgentEnv(self.env).reset()
        for _ in range(20):  # the starts of all episodes at once are no fair sample of the work
            OneAgentEnv(self.env).step(OneAgentEnv(self.env).expert())
        self.batch, self.model, self.substeps = self.env.batch, self.env.task.model, self.env.task.substeps
        self.snapshot, self.first = self.env.snapshot(), self.env.batch.state.copy()
        self.applied: list[NDArray[np.float64]] = []
        self.resets: list[Reset] = []
        self.actions = []
        rng = np.random.default_rng(0)
        for _ in range(steps):
            noise = rng.normal(0.0, 0.5, (size, len(self.env.action_limit))) * self.env.action_limit
            self.actions.append(OneAgentEnv(self.env).expert() + noise.astype(np.float32))
            result = OneAgentEnv(self.env).step(self.actions[-1])
            self.applied.append(result.applied)
            self.resets.append(None if result.started is None else (result.started.ids, result.started.state))

    def run(self) -> float:
        """Seconds of the whole environment over the recorded actions from the recorded state."""
        self.env.restore(self.snapshot)
        begin = time.perf_counter()
        for actions in self.actions:
            OneAgentEnv(self.env).step(actions)
        return time.perf_counter() - begin


class Facade:
    """The façade's Lift task, driven by random actions of a policy's size; episodes are staggered."""

    def __init__(self, size: int, threads: int, steps: int) -> None:
        cfg = parse_env_cfg(FACADE, num_envs=size, device="cpu")
        cfg.sim.num_threads, cfg.seed = threads, 0
        self.env = ManagerBasedRLEnv(cfg)
        self.env.reset()
        self.batch, self.model = self.env.sim.batch, self.env.sim.model
        self.substeps = cfg.decimation * cfg.sim.substeps
        generator = torch.Generator().manual_seed(0)
        shape = (steps, size, self.env.action_manager.total_action_dim)
        self.actions = torch.randn(shape, generator=generator).unbind()
        self.env.episode_length_buf = torch.randint(0, self.env.max_episode_length, (size,), generator=generator)
        self.first, self.lengths = self.batch.state.copy(), self.env.episode_length_buf.clone()
        self.applied: list[NDArray[np.float64]] = []
        self.resets: list[Reset] = []
        ctrl = self.batch.bind("ctrl")
        for actions in self.actions:
            self.env.step(actions)
            ended = np.flatnonzero(self.env.reset_buf.numpy()).astype(np.int32)
            # The actions of environments that were reset are gone with them; theirs are held at the new ones.
            self.applied.append(ctrl.copy())
            self.resets.append((ended, self.batch.state[ended].copy()) if len(ended) else None)

    def run(self) -> float:
        """Seconds of the whole environment over the recorded actions from the recorded state."""
        self.batch.state[:] = self.first
        self.env.sim.touch()
        self.env.episode_length_buf = self.lengths.clone()
        begin = time.perf_counter()
        for actions in self.actions:
            self.env.step(actions)
        return time.perf_counter() - begin


def time_batch(batch: Batch, side: Native | Facade) -> float:
    """Seconds of bare physics over a recording; resets are written and forwarded as the environment does."""
    ctrl = batch.bind("ctrl")
    batch.state[:] = side.first
    batch.forward(None, STAGE)
    begin = time.perf_counter()
    for applied, reset in zip(side.applied, side.resets, strict=True):
        ctrl[:] = applied
        batch.step(None, side.substeps, STAGE)
        if reset is not None:
            ids, state = reset
            batch.state[ids] = state
            batch.forward(ids, STAGE)
    return time.perf_counter() - begin


def compare_with_batch(side: Native | Facade, size: int, threads: int, rounds: int) -> NDArray[np.float64]:
    """[rounds, 2] control steps per second of the whole environment and of bare physics, which go first in turn."""
    bare = Batch(side.model, size, threads, persistent=True)
    seconds = np.empty((rounds + 1, 2))
    for turn in range(rounds + 1):
        for column in (0, 1) if turn % 2 else (1, 0):
            seconds[turn, column] = side.run() if column == 0 else time_batch(bare, side)
    return size * len(side.applied) / seconds[1:]  # the first round warms up


def random_steps_per_s(size: int, steps: int, threads: int) -> float:
    """Control steps per second of the whole environment, with random actions as the vector environment gets."""
    env = make_env(TASK, size, threads)
    OneAgentEnv(env).reset()
    rng = np.random.default_rng(0)
    limit = env.action_limit
    actions = [rng.uniform(-limit, limit, (size, len(limit))).astype(np.float32) for _ in range(8)]
    for step in range(20):
        OneAgentEnv(env).step(actions[step % 8])
    begin = time.perf_counter()
    for step in range(steps):
        OneAgentEnv(env).step(actions[step % 8])
    return size * steps / (time.perf_counter() - begin)


def envpool_rates(threads: int) -> tuple[float, float] | None:
    """Control and physics steps per second of EnvPool, best of several sizes; None where it is not installed."""
    python = ROOT / ".venvs" / "envpool" / "bin" / "python"
    if not python.exists():
        print("EnvPool is not installed: make peer-envpool")
        return None
    control, physics = printed_by(str(python), "peers/envpool_rate.py", str(threads or os.cpu_count() or 1))
    return control, physics


def printed_by(python: str, script: str, argument: str) -> list[float]:
    """The numbers of the last line that a script beside this one prints."""
    words = [python, str(Path(__file__).parent / script), argument]
    done = subprocess.run(words, stdout=subprocess.PIPE, text=True, timeout=300, check=True)
    return [float(word) for word in done.stdout.splitlines()[-1].split()]


def compare_with_others(steps: int, threads: int, results: dict[str, float], units: dict[str, str]) -> None:
    """Add what comes of gymnasium's vector environment and of EnvPool."""
    pairs = []
    for _ in range(3):
        best = printed_by(sys.executable, "peers/single_env.py", str(steps // 4))[0]
        pairs.append((random_steps_per_s(64, max(steps // 64, 1), threads), best))
    results["env_over_async_vector"] = show("env_over_async_vector", np.array(pairs))
    if (theirs := envpool_rates(threads)) is not None:
        ours = float(np.median([pair[0] for pair in pairs])) * make_task(TASK).substeps
        print(f"{'env_over_envpool_physics':24} {ours:>8.0f} {theirs[1]:>8.0f} {ours / theirs[1]:>6.3f}  physics steps")
        results |= {"env_over_envpool_physics": ours / theirs[1], "envpool_control_steps_per_s": theirs[0]}
        units["envpool_control_steps_per_s"] = "1/s"


def show(name: str, rates: NDArray[np.float64]) -> float:
    """Print a row of the table; the median ratio."""
    ratios = rates[:, 0] / rates[:, 1]
    ours, theirs = np.median(rates, axis=0)
    each = " ".join(f"{ratio:.2f}" for ratio in ratios)
    print(f"{name:24} {ours:>8.0f} {theirs:>8.0f} {np.median(ratios):>6.3f}  {each}", flush=True)
    return float(np.median(ratios))


def plot(path: Path, steps: int) -> None:
    """Draw control steps per second over N, a line for each number of threads."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    sizes = [1, 4, 16, 64, 256, 1024]
    figure, axes = pyplot.subplots(figsize=(6, 4))
    for threads in sorted({1, 2, os.cpu_count() or 1}):
        rates = []
        for size in sizes:
            rates.append(np.median([random_steps_per_s(size, max(steps // size, 8), threads) for _ in range(3)]))
            print(f"{size:5} environments, {threads} threads: {rates[-1]:8.0f} control steps/s", flush=True)
        axes.plot(sizes, rates, marker="o", label=f"{threads} thread{'s' if threads > 1 else ''}")
    axes.set(xscale="log", xlabel="environments", ylabel="control steps per second", title=f"{TASK}, 20 Hz")
    axes.set_xticks(sizes, [str(size) for size in sizes])
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=80, bbox_inches="tight")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9, help="rounds of interleaved measurements")
    parser.add_argument("--steps", type=int, default=7680, help="environment steps of one measurement")
    parser.add_argument("--threads", type=int, default=0, help="physics threads, 0 for one per CPU")
    parser.add_argument("--only", choices=("env", "facade", "async"), help="one part of the results")
    parser.add_argument("--plot", type=Path, help="draw control steps/s over N and threads into this file, and stop")
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # torch's threads would take the physics' cores
    if arguments.plot:
        plot(arguments.plot, arguments.steps)
        return

    results: dict[str, float] = {}
    units: dict[str, str] = {}
    sides: dict[str, Callable[[int, int, int], Any]] = {"env": Native, "facade": Facade}
    print(f"{'':24} {'ours/s':>8} {'theirs/s':>8} {'ratio':>6}  ratios of the rounds")
    for kind, make in sides.items():
        for size in (64, 256) if arguments.only in (None, kind) else ():
            side = make(size, arguments.threads, max(arguments.steps // size, 1))
            rates = compare_with_batch(side, size, arguments.threads, arguments.rounds)
            results[f"{kind}_over_batch_{size}"] = show(f"{kind}_over_batch_{size}", rates)
    if arguments.only in (None, "async"):
        compare_with_others(arguments.steps, arguments.threads, results, units)
    emit(results, TARGETS, units)


if __name__ == "__main__":
    main()
