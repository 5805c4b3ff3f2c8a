"""stable-baselines3's side."""

from contextlib import suppress
from typing import Any

import gymnasium
import numpy as np
from sides.goal import Exam, Goal, flat, numbers
from sides.ours import reference
from stable_baselines3 import PPO, SAC
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import VecEnv, VecEnvWrapper, VecNormalize

from embodied.runs.settings import Settings
from simulators.adapters.sb3 import Sb3VecEnv
from simulators.env import BatchEnv
from simulators.make import make_env


class FlatParameters(VecEnvWrapper):
    """Observations as one float32 vector, actions in [-1, 1]: what `MlpPolicy` is made for."""

    def __init__(self, env: BatchEnv) -> None:
        self.names, self.limit = numbers(env), env.action_limit
        streams = env.spec.agents["robot"].observations
        size = sum(stream.size for stream in streams if stream.name in self.names)
        space = gymnasium.spaces.Box(-np.inf, np.inf, (size,), np.float32)
        actions = gymnasium.spaces.Box(-1.0, 1.0, self.limit.shape, np.float32)
        super().__init__(Sb3VecEnv(env, self.names), space, actions)

    def reset(self) -> np.ndarray:
        return flat(self.venv.reset(), self.names, self.num_envs)

    def step_async(self, actions: np.ndarray) -> None:
        self.venv.step_async(actions * self.limit)

    def step_wait(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, list[dict[str, Any]]]:
        streams, rewards, dones, infos = self.venv.step_wait()
        for env in np.flatnonzero(dones):
            infos[env]["terminal_observation"] = flat(infos[env]["terminal_observation"], self.names, 1)[0]
        return flat(streams, self.names, self.num_envs), rewards, dones, infos


class Check(BaseCallback):
    """Ends the training once the goal is done; evaluates where the weights have just changed."""

    def __init__(self, goal: Goal, exam: Exam, vector: FlatParameters, env: VecEnv) -> None:
        super().__init__()
        self.goal, self.exam, self.vector, self.env = goal, exam, vector, env

    def evaluate(self) -> float:
        def act(streams: dict[str, np.ndarray]) -> np.ndarray:
            seen = flat(streams, self.vector.names, self.exam.env.num_envs)
            seen = self.env.normalize_obs(seen) if isinstance(self.env, VecNormalize) else seen
            return self.model.predict(seen, deterministic=True)[0] * self.vector.limit

        return self.exam(act)

    def _on_rollout_start(self) -> None:
        if self.goal.done(self.num_timesteps, self.evaluate):
            raise StopIteration

    def _on_step(self) -> bool:
        return not self.goal.late


def learn(model: BaseAlgorithm, check: Check) -> int:
    """Train until the goal is done; returns environment steps."""
    with suppress(StopIteration):
        model.learn(10**9, callback=check)
    return model.num_timesteps


def ppo(task: str, num_envs: int, seed: int, goal: Goal, same: Settings | None) -> int:
    """PPO with its published defaults, or with our settings `same`."""
    vector = FlatParameters(make_env(task, num_envs, seed=seed))
    env: VecEnv = vector
    options: dict[str, Any] = {}
    if same is not None:
        algo, network = reference(same)
        env = VecNormalize(vector, norm_reward=False, clip_obs=10.0)
        steps = same.rollout.steps
        options = {
            "n_steps": steps,
            "batch_size": num_envs * steps // algo.minibatches,
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
    return learn(model, Check(goal, Exam(task, seed), vector, env))


def sac(task: str, seed: int, goal: Goal) -> int:
    """SAC as rl-baselines3-zoo has it for FetchPickAndPlace (hyperparams/her.yml), without hindsight goals, for the
    task has none; what that file leaves out is stable-baselines3's default. One environment, as there."""
    vector = FlatParameters(make_env(task, 1, num_threads=1, seed=seed))
    model = SAC(
        "MlpPolicy",
        vector,
        buffer_size=1_000_000,
        ent_coef="auto",
        gamma=0.95,
        learning_starts=1000,
        train_freq=1,
        seed=seed,
        device="cpu",
    )
    return learn(model, Check(goal, Exam(task, seed), vector, vector))
