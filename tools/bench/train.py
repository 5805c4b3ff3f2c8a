"""Wall time to 90 % success: other projects' reinforcement learning over ours on the same environments.

All sides learn on our `BatchEnv` of a task with its dense reward, from nothing, and are evaluated with the mode of the
policy on 100 seeds of their own; the time of evaluations is not counted. A side is done when two evaluations in a row
reach 90 %. Values are medians over seeds; a side that is not done within its limit counts with the limit, so its ratio
is a lower bound, unless it is ours that is not done.

`reach`, 64 environments, evaluated every 10,240 steps. `sb3_ppo_default_over_ours_reach` gives stable-baselines3 its
published defaults (`PPO("MlpPolicy", env)`), `sb3_ppo_same_over_ours_reach` our settings: steps, epochs, minibatches,
discount, networks, initial standard deviation and observation normalisation by its own `VecNormalize`.

`lift`: ours is `experiment=lift_scratch`, evaluated every 10,240 steps.
`rsl_rl_over_ours_lift`: rsl_rl's PPO with Isaac Lab's settings for lifting a cube with a Franka arm, 4096 environments
among them, evaluated after each iteration of 98,304 steps. It gets all cores for torch, for its batches gain by it.
`sb3_sac_over_ours_lift`: stable-baselines3's SAC with rl-baselines3-zoo's settings for FetchPickAndPlace, one
environment as there, without hindsight goals, for the task has no goal; evaluated every 2,048 steps.
`rsl_rl_same_over_ours_lift`: rsl_rl's PPO with our settings, 64 environments.
"""

import argparse
from collections.abc import Callable

import numpy as np
import torch
from results import emit
from sides import ours, rsl_rl, sb3
from sides.goal import Goal

from embodied.cli.compose import compose_config
from embodied.runs.settings import Settings, typed

ENVS, EVERY, EVERY_SAC = 64, 10_240, 2_048
REACH, LIFT = "reach", "lift_cube"
TARGETS = {
    "sb3_ppo_default_over_ours_reach": 3.0,
    "sb3_ppo_same_over_ours_reach": 1.1,
    "rsl_rl_over_ours_lift": 3.0,
    "sb3_sac_over_ours_lift": 3.0,
}

Side = Callable[[int, float], tuple[float, int]]
"""Of a seed and a limit in seconds: seconds and environment steps."""


def settings_of(experiment: str, seed: int) -> Settings:
    """Of our run, which this script evaluates and ends."""
    endless = ["evaluate.every=1000000000", "budget.env_steps=1000000000"]
    words = [f"experiment={experiment}", f"rollout.num_envs={ENVS}", f"seed={seed}", *endless]
    return typed(Settings, compose_config("train", words))


def side(learn: Callable[[int, Goal], int], every: int = EVERY, threads: int = 1) -> Side:
    """A side that trains until its goal is done."""

    def run(seed: int, limit_s: float) -> tuple[float, int]:
        torch.set_num_threads(threads)
        goal = Goal(limit_s, every)
        steps = learn(seed, goal)
        return goal.seconds, steps

    return run


def sides_of(part: str, cores: int) -> dict[str, Side]:
    """The sides of a part, ours first."""
    if part == "reach":
        return {
            "ours": side(lambda seed, goal: ours.seconds(settings_of(REACH, seed), goal)),
            "sb3_ppo_same": side(lambda seed, goal: sb3.ppo(REACH, ENVS, seed, goal, settings_of(REACH, seed))),
            "sb3_ppo_default": side(lambda seed, goal: sb3.ppo(REACH, ENVS, seed, goal, None)),
        }
    return {
        "ours": side(lambda seed, goal: ours.seconds(settings_of("lift_scratch", seed), goal)),
        "rsl_rl_same": side(lambda seed, goal: rsl_rl.ppo(LIFT, seed, goal, settings_of("lift_scratch", seed))),
        "rsl_rl": side(lambda seed, goal: rsl_rl.ppo(LIFT, seed, goal, None), threads=cores),
        "sb3_sac": side(lambda seed, goal: sb3.sac(LIFT, seed, goal), EVERY_SAC),
    }


def race(part: str, seeds: int, cores: int, most: float, others: Callable[[float], float]) -> dict[str, float]:
    """Median seconds of each side; `most` is our limit, and `others` gives the others' limit of the time we took."""
    sides = sides_of(part, cores)
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for seed in range(seeds):
        limit = most
        for name, run in sides.items():
            spent, steps = run(seed, limit)
            seconds[name].append(spent)
            bound = "" if spent < limit else "  not done"
            print(f"{part:<6} {seed:>4} {name:<16} {spent:>8.1f} {steps:>10}{bound}", flush=True)
            if name == "ours":
                limit = others(spent)
    return {name: float(np.median(spent)) for name, spent in seconds.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="+", choices=("reach", "lift"), default=["reach", "lift"])
    parser.add_argument("--seeds", type=int, default=3, help="of reach")
    parser.add_argument("--lift-seeds", type=int, default=1, help="of lift, which takes as long as all of reach")
    parser.add_argument("--limit", type=float, default=100.0, help="seconds after which a side of reach stops")
    parser.add_argument("--lift-limit", type=float, default=400.0, help="seconds after which our side of lift stops")
    parser.add_argument("--lift-ratio", type=float, default=3.5, help="times ours, after which others stop in lift")
    arguments = parser.parse_args()
    cores = torch.get_num_threads()
    print(f"{'part':<6} {'seed':>4} {'side':<16} {'seconds':>8} {'env steps':>10}")
    values: dict[str, float] = {}
    units: dict[str, str] = {}
    for part in arguments.parts:
        if part == "reach":
            medians = race(part, arguments.seeds, cores, arguments.limit, lambda ours_s: arguments.limit)
        else:
            most = arguments.lift_limit
            medians = race(part, arguments.lift_seeds, cores, most, lambda ours_s: arguments.lift_ratio * ours_s)
        our = medians.pop("ours")
        values |= {f"{name}_over_ours_{part}": spent / our for name, spent in medians.items()}
        values[f"ours_{part}_s"], units[f"ours_{part}_s"] = our, "s"
    emit(values, {name: target for name, target in TARGETS.items() if name in values}, units)


if __name__ == "__main__":
    main()
