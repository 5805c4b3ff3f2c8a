"""Trains Embodied-Reach-Franka-v0 with the unmodified rsl_rl, until the hand is near enough to its goal.

    python tools/isaac_rsl_rl.py docs/rsl_rl_reach

writes docs/rsl_rl_reach.csv and docs/rsl_rl_reach.png. rsl_rl's `OnPolicyRunner` is given our `RslRlVecEnvWrapper` and
Isaac Lab's settings for the task but for the discount: they are made for 4096 environments, and with 256 an iteration
gathers too little to tell an action's consequences of more than a second ahead from noise.

Every few iterations the policy without its noise acts in environments of its own for the four seconds of one command;
the error is the hand's distance from the commanded position at their end, the mean over the environments. Exit status 1
if it never gets below the target.
"""

import argparse
import csv
import io
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import torch
from rsl_rl.runners import OnPolicyRunner

import simulators.isaac.tasks  # noqa: F401 -- registers the tasks
from embodied.files import write_bytes
from simulators.isaac.registry import load_cfg_from_registry, parse_env_cfg
from simulators.isaac.rsl_rl import RslRlVecEnvWrapper

TASK = "Embodied-Reach-Franka-v0"
DISCOUNT = 0.95
COMMAND_STEPS = 120
JUDGE_ENVS = 128


class Point(NamedTuple):
    """One measurement: iterations and environment steps taken, seconds of training, m, rad."""

    iteration: int
    steps: int
    seconds: float
    position_error_m: float
    orientation_error_rad: float


def wrapped(num_envs: int, seed: int, clip_actions: float | None) -> RslRlVecEnvWrapper:
    """The task as rsl_rl takes it."""
    cfg = parse_env_cfg(TASK, num_envs=num_envs)
    cfg.seed = seed
    return RslRlVecEnvWrapper(gymnasium.make(TASK, cfg=cfg), clip_actions)


@torch.inference_mode()
def judge(env: RslRlVecEnvWrapper, policy: Any) -> tuple[float, float]:
    """Mean position (m) and orientation error (rad) at the end of one command's time, without exploration."""
    observations, _ = env.reset()
    for _ in range(COMMAND_STEPS - 1):
        observations = env.step(policy(observations))[0]
    metrics = env.unwrapped.command_manager.get_term("ee_pose").metrics
    return metrics["position_error"].mean().item(), metrics["orientation_error"].mean().item()


def train(num_envs: int, iterations: int, every: int, target_m: float, seed: int) -> list[Point]:
    """Train, judging `every` so many iterations, until the error is below `target_m` or `iterations` are done."""
    agent = load_cfg_from_registry(TASK, "rsl_rl_cfg_entry_point")
    agent.algorithm.gamma = DISCOUNT
    torch.manual_seed(seed)
    env = wrapped(num_envs, seed, agent.clip_actions)
    judged = wrapped(JUDGE_ENVS, seed + 1, agent.clip_actions)
    runner = OnPolicyRunner(env, agent.to_dict(), log_dir=None, device="cpu")
    points: list[Point] = []
    seconds = 0.0
    for done in range(0, iterations + 1, every):
        if done:
            start = time.perf_counter()
            runner.learn(every, init_at_random_ep_len=done == every)
            seconds += time.perf_counter() - start
        position, orientation = judge(judged, runner.get_inference_policy())
        points.append(Point(done, done * agent.num_steps_per_env * num_envs, seconds, position, orientation))
        print(
            f"iteration {done:4d}  {points[-1].steps / 1e6:6.2f} M steps  {seconds:6.1f} s  "
            f"position {100 * position:5.1f} cm  orientation {orientation:4.2f} rad",
            flush=True,
        )
        if position < target_m:
            break
    return points


def write(points: list[Point], name: Path, target_m: float, title: str) -> None:
    """The curve as numbers and as a picture."""
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(Point._fields)
    rows.writerows((p.iteration, p.steps, f"{p.seconds:.1f}", f"{p[3]:.4f}", f"{p[4]:.3f}") for p in points)
    write_bytes(name.with_suffix(".csv"), text.getvalue().encode())

    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(6, 3.2), dpi=100)
    axes.plot([p.steps / 1e6 for p in points], [100 * p.position_error_m for p in points], marker=".")
    axes.axhline(100 * target_m, color="0.6", linestyle="--", linewidth=1)
    axes.set(xlabel="environment steps, millions", ylabel="position error, cm", title=title, ylim=(0, None))
    axes.grid(alpha=0.3)
    picture = io.BytesIO()
    figure.savefig(picture, format="png", bbox_inches="tight")
    write_bytes(name.with_suffix(".png"), picture.getvalue())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("name", type=Path, help="where the curve goes, without suffix")
    parser.add_argument("--num-envs", type=int, default=256)
    parser.add_argument("--iterations", type=int, default=1000)
    parser.add_argument("--every", type=int, default=20, help="iterations between judgements")
    parser.add_argument("--target", type=float, default=0.05, help="m")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(1)  # two pools of threads on the same cores wait for each other
    points = train(options.num_envs, options.iterations, options.every, options.target, options.seed)
    write(points, options.name, options.target, f"{TASK}, rsl_rl PPO, {options.num_envs} environments")
    return 0 if points[-1].position_error_m < options.target else 1


if __name__ == "__main__":
    sys.exit(main())
