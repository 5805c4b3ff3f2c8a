"""Wall time to 90 % success on `reach`: ours over stable-baselines3's PPO on the same environment.

Both train on one `BatchEnv` of 64 environments with the dense reward and are evaluated with the mode of the policy on
100 seeds of their own after every 10,240 environment steps; the time of evaluations is not counted. A side is done when
two evaluations in a row reach 90 %. `sb3_ppo_default_over_ours_reach` gives stable-baselines3 its published defaults
(`PPO("MlpPolicy", env)`), `sb3_ppo_same_over_ours_reach` our settings: steps, epochs, minibatches, discount, networks,
initial standard deviation and observation normalisation by its own `VecNormalize`. Values are medians over seeds; a
side that is not done within the limit counts with the limit, so its ratio is a lower bound.
"""

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from results import emit
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import VecEnv, VecEnvWrapper, VecNormalize

from embodied.cli.compose import compose_config
from embodied.data import Outcome
from embodied.monitor.progress import Progress
from embodied.runtime.inline import InlineRun
from embodied.runtime.settings import Settings, typed
from simulators.adapters.sb3 import Sb3VecEnv
from simulators.env import BatchEnv
from simulators.make import make_env

TASK, ENVS, EVERY, EPISODES, TARGET, PATIENCE = "reach", 64, 10_240, 100, 0.9, 2


class Goal:
    """Counts evaluations in a row that reach the target, and the time between evaluations."""

    def __init__(self, limit_s: float) -> None:
        self.limit_s, self.spent, self.reached, self.next = limit_s, 0.0, 0, EVERY
        self.mark = time.perf_counter()

    def done(self, env_steps: int, evaluate: Callable[[], float]) -> bool:
        """Call between updates: evaluates where it is due."""
        now = time.perf_counter()
        self.spent += now - self.mark
        if env_steps >= self.next:
            self.next = env_steps + EVERY
            self.reached = self.reached + 1 if evaluate() >= TARGET else 0
        self.mark = time.perf_counter()
        return self.reached >= PATIENCE or self.spent >= self.limit_s


class Flat(VecEnvWrapper):
    """Observations as one float32 vector, actions in [-1, 1]: what `MlpPolicy` is made for."""

    def __init__(self, env: BatchEnv) -> None:
        streams = env.spec.agents["robot"].observations
        self.names = [stream.name for stream in streams if stream.dtype == "float32"]
        self.limit = env.action_limit
        size = sum(stream.size for stream in streams if stream.name in self.names)
        space = gymnasium.spaces.Box(-np.inf, np.inf, (size,), np.float32)
        actions = gymnasium.spaces.Box(-1.0, 1.0, self.limit.shape, np.float32)
        super().__init__(Sb3VecEnv(env, self.names), space, actions)

    def flat(self, streams: dict[str, np.ndarray], rows: int) -> np.ndarray:
        return np.concatenate([streams[name].reshape(rows, -1) for name in self.names], axis=1)

    def reset(self) -> np.ndarray:
        return self.flat(self.venv.reset(), self.num_envs)

    def step_async(self, actions: np.ndarray) -> None:
        self.venv.step_async(actions * self.limit)

    def step_wait(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, list[dict[str, Any]]]:
        streams, rewards, dones, infos = self.venv.step_wait()
        for body in np.flatnonzero(dones):
            infos[body]["terminal_observation"] = self.flat(infos[body]["terminal_observation"], 1)[0]
        return self.flat(streams, self.num_envs), rewards, dones, infos


def sb3_seconds(seed: int, limit_s: float, same: bool, settings: Settings) -> tuple[float, int]:
    """Seconds and environment steps stable-baselines3 needs."""
    test = make_env(TASK, EPISODES, seed=seed)
    test.autoreset = False
    vector = Flat(make_env(TASK, ENVS, seed=seed))
    env: VecEnv = vector
    options: dict[str, Any] = {}
    if same:
        algo, network = reference(settings)
        env = VecNormalize(vector, norm_reward=False, clip_obs=10.0)
        steps = settings.rollout.steps
        options = {
            "n_steps": steps,
            "batch_size": ENVS * steps // algo.minibatches,
            "n_epochs": algo.epochs,
            "gamma": algo.gamma,
            "gae_lambda": algo.lam,
            "learning_rate": algo.lr,
            "clip_range": algo.clip,
            "ent_coef": algo.entropy,
            "vf_coef": algo.value,
            "max_grad_norm": algo.max_grad_norm,
            "policy_kwargs": {"net_arch": network["hidden"], "log_std_init": float(np.log(network["std"]))},
        }
    model = PPO("MlpPolicy", env, seed=seed, device="cpu", **options)
    goal = Goal(limit_s)

    def evaluate() -> float:
        observation, _ = test.reset(np.arange(EPISODES) + 100_000)
        outcomes = np.zeros(EPISODES, np.uint8)
        while not outcomes.all():
            flat = vector.flat(observation.streams, EPISODES)
            flat = env.normalize_obs(flat) if isinstance(env, VecNormalize) else flat
            result = test.step(model.predict(flat, deterministic=True)[0] * vector.limit)
            outcomes[result.ended] = result.outcomes[result.ended]
            observation = result.observation
        return float((outcomes == Outcome.SUCCESS).mean())

    class Check(BaseCallback):
        def _on_rollout_start(self) -> None:
            if goal.done(self.num_timesteps, evaluate):
                raise StopIteration

        def _on_step(self) -> bool:
            # Within a rollout only the limit can be met: the weights do not change.
            return time.perf_counter() - goal.mark + goal.spent < goal.limit_s

    try:
        model.learn(10**9, callback=Check())
        goal.spent = goal.limit_s
    except StopIteration:
        pass
    return goal.spent, model.num_timesteps


def reference(settings: Settings) -> tuple[Any, dict[str, Any]]:
    """Our algorithm's settings and network, as the components read them."""
    with tempfile.TemporaryDirectory() as folder, Progress("settings") as progress:
        run = InlineRun(settings, Path(folder), 0, progress)
        learner: Any = run.learner
        hidden = list(run.spec.extra["hidden"])
        std = float(learner.network.log_std.detach().exp().mean())
        run.close()
        return learner.config, {"hidden": hidden, "std": std}


def our_seconds(seed: int, limit_s: float, settings: Settings) -> tuple[float, int]:
    """Seconds and environment steps our run needs, storage and publication included."""
    settings.seed = seed
    with tempfile.TemporaryDirectory() as folder, Progress("ours") as progress:
        run = InlineRun(settings, Path(folder), 0, progress)
        run.publisher.publish(run.trained)
        run.warm = True
        goal = Goal(limit_s)
        seeds = np.arange(EPISODES) + 100_000

        def evaluate() -> float:
            played, _ = run.test(seeds, f"eval-{run.step}")
            return played.successes / EPISODES

        while not goal.done(run.env_steps, evaluate):
            run.tick()
        run.close()
        return goal.spent, run.env_steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--limit", type=float, default=100.0, help="seconds after which a side stops")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    overrides = [
        f"experiment={TASK}",
        f"rollout.num_envs={ENVS}",
        "evaluate.every=1000000000",
        "budget.env_steps=1000000000",
    ]
    sides: dict[str, list[float]] = {"ours": [], "sb3_same": [], "sb3_default": []}
    print(f"{'seed':>4} {'side':<12} {'seconds':>8} {'env steps':>10}")
    for seed in range(arguments.seeds):
        for side, seconds in sides.items():
            settings = typed(Settings, compose_config("train", overrides))
            if side == "ours":
                spent, steps = our_seconds(seed, arguments.limit, settings)
            else:
                spent, steps = sb3_seconds(seed, arguments.limit, side == "sb3_same", settings)
            seconds.append(spent)
            print(f"{seed:>4} {side:<12} {spent:>8.1f} {steps:>10}", flush=True)
    medians = {side: float(np.median(seconds)) for side, seconds in sides.items()}
    values = {
        "sb3_ppo_default_over_ours_reach": medians["sb3_default"] / medians["ours"],
        "sb3_ppo_same_over_ours_reach": medians["sb3_same"] / medians["ours"],
        "ours_reach_s": medians["ours"],
    }
    targets = {"sb3_ppo_default_over_ours_reach": 3.0, "sb3_ppo_same_over_ours_reach": 1.1}
    emit(values, targets, {"ours_reach_s": "s"})


if __name__ == "__main__":
    main()
