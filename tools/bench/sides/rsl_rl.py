"""rsl_rl's side: its `OnPolicyRunner` on our environments."""

from contextlib import redirect_stdout, suppress
from io import StringIO
from typing import Any

import numpy as np
import torch
from rsl_rl.env import VecEnv
from rsl_rl.runners import OnPolicyRunner
from sides.goal import Exam, Goal, flat, numbers
from sides.ours import reference
from tensordict import TensorDict
from torch import Tensor

from embodied.runs.settings import Settings
from simulators.env import BatchEnv
from simulators.isaac.tasks.lift import LiftCubePPORunnerCfg
from simulators.make import make_env
from simulators.one_agent import OneAgentEnv

PUBLISHED_ENVS = 4096


class Vector(VecEnv):
    """Our envs as rsl_rl takes them: one group of numbers, actions in units of their limits.

    Args:
        env: Environments that start their next episode themselves.
        goal: `step` raises `StopIteration` once it is late.
    """

    device = "cpu"

    def __init__(self, env: BatchEnv, goal: Goal) -> None:
        self.env, self.goal, self.names = env, goal, numbers(env)
        self.num_envs, self.num_actions = env.num_envs, len(env.action_limit)
        self.max_episode_length, self.cfg = env.spec.episode_steps, {}
        self.seen, _ = OneAgentEnv(env).reset()
        self.steps = 0

    @property
    def episode_length_buf(self) -> Tensor:
        return torch.from_numpy(self.env.snapshot()["step"].astype(np.int64))

    @episode_length_buf.setter
    def episode_length_buf(self, value: Tensor) -> None:
        state = self.env.snapshot()
        self.env.restore(state | {"step": value.numpy().astype(state["step"].dtype)})

    def get_observations(self) -> TensorDict:
        return self.pack(self.seen.streams, self.num_envs)

    def pack(self, streams: dict[str, np.ndarray], rows: int) -> TensorDict:
        return TensorDict({"policy": torch.from_numpy(flat(streams, self.names, rows))}, batch_size=[rows])

    def step(self, actions: Tensor) -> tuple[TensorDict, Tensor, Tensor, dict[str, Any]]:
        if self.goal.late:
            raise StopIteration
        result = OneAgentEnv(self.env).step(actions.numpy() * self.env.action_limit)
        self.seen, self.steps = result.observation, self.steps + self.num_envs
        dones = torch.from_numpy(result.terminated | result.truncated).long()
        rewards = torch.from_numpy(result.rewards.astype(np.float32))
        return self.get_observations(), rewards, dones, {"time_outs": torch.from_numpy(result.truncated)}


def settings_of(same: Settings | None) -> dict[str, Any]:
    """Isaac Lab's for lifting a cube with a Franka arm, or ours in rsl_rl's terms."""
    cfg = LiftCubePPORunnerCfg()
    if same is not None:
        algo, network = reference(same)
        cfg.num_steps_per_env = same.rollout.steps
        for model in (cfg.actor, cfg.critic):
            model.hidden_dims, model.activation, model.obs_normalization = network["hidden"], "tanh", True
        cfg.actor.distribution_cfg.init_std = network["std"]
        theirs = cfg.algorithm
        theirs.num_learning_epochs, theirs.num_mini_batches = algo.epochs, algo.minibatches
        theirs.learning_rate, theirs.desired_kl, theirs.clip_param = algo.lr, algo.target_kl, algo.clip
        theirs.gamma, theirs.lam, theirs.entropy_coef = algo.gamma, algo.lam, algo.entropy
        theirs.value_loss_coef, theirs.max_grad_norm = algo.value, algo.max_grad_norm
    return cfg.to_dict()


def ppo(task: str, seed: int, goal: Goal, same: Settings | None) -> int:
    """rsl_rl's PPO with Isaac Lab's settings and its 4096 environments, or with our settings `same`."""
    num_envs = PUBLISHED_ENVS if same is None else same.rollout.num_envs
    cfg, exam = settings_of(same), Exam(task, seed)
    torch.manual_seed(seed)  # rsl_rl draws from the global generator
    env = Vector(make_env(task, num_envs, seed=seed), goal)
    with redirect_stdout(StringIO()):  # it prints its networks
        runner = OnPolicyRunner(env, cfg, log_dir=None, device="cpu")

    @torch.inference_mode()
    def act(streams: dict[str, np.ndarray]) -> np.ndarray:
        rows = exam.env.num_envs
        return runner.get_inference_policy()(env.pack(streams, rows)).numpy() * exam.env.action_limit

    with suppress(StopIteration):
        while not goal.done(env.steps, lambda: exam(act)):
            runner.learn(1, init_at_random_ep_len=not env.steps)  # as Isaac Lab's script has it
    return env.steps
