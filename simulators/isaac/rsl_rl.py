"""Adapter to rsl_rl's `VecEnv`, and the configurations of its runner, under Isaac Lab's names.

rsl_rl itself is not imported here: it needs the wrapper's attributes only. Tested with rsl-rl-lib 5.5.1.
"""

from typing import TYPE_CHECKING, Any

import gymnasium
import torch

from simulators.isaac.configclass import MISSING, configclass
from simulators.isaac.errors import ConfigError

if TYPE_CHECKING:
    from tensordict import TensorDict


class RslRlVecEnvWrapper:
    """View of an environment as rsl_rl's `VecEnv`. It resets the environment, since rsl_rl's runners never do.

    Args:
        env: A `ManagerBasedRLEnv` or `DirectRLEnv`, or gymnasium wrappers around one.
        clip_actions: Bound of actions, plus or minus; None for no clipping.

    Attributes:
        num_envs, num_actions, max_episode_length, device: As rsl_rl's `VecEnv` has them.

    Raises:
        ConfigError: tensordict is not installed, or `clip_actions` is not positive.
    """

    def __init__(self, env: gymnasium.Env, clip_actions: float | None = None) -> None:
        try:
            from tensordict import TensorDict
        except ImportError:
            raise ConfigError(
                "rsl_rl's environments give a TensorDict", "tensordict", "pip install rsl-rl-lib, which depends on it"
            ) from None
        if clip_actions is not None and not clip_actions > 0:
            raise ConfigError(f"clip_actions is {clip_actions}", "RslRlVecEnvWrapper", "give a positive number or None")
        self._tensordict = TensorDict
        self.env, self.clip_actions = env, clip_actions
        base: Any = env.unwrapped
        self.num_envs: int = base.num_envs
        self.device: str = base.device
        self.max_episode_length: int = base.max_episode_length
        self.num_actions: int = gymnasium.spaces.flatdim(base.single_action_space)
        self._observations = self._pack(env.reset()[0])

    @property
    def unwrapped(self) -> Any:
        return self.env.unwrapped

    @property
    def cfg(self) -> Any:
        return self.unwrapped.cfg

    @property
    def episode_length_buf(self) -> torch.Tensor:
        """[N] long steps of the present episodes; rsl_rl sets it to spread their ends."""
        return self.unwrapped.episode_length_buf

    @episode_length_buf.setter
    def episode_length_buf(self, value: torch.Tensor) -> None:
        self.unwrapped.episode_length_buf = value

    def seed(self, seed: int = -1) -> int:
        """Seed the environment; returns the seed."""
        return self.unwrapped.seed(seed)

    def reset(self) -> tuple["TensorDict", dict[str, Any]]:
        """Start all episodes anew; returns observations and extras."""
        observations, extras = self.env.reset()
        self._observations = self._pack(observations)
        return self._observations, extras

    def get_observations(self) -> "TensorDict":
        """The observations of the last step or reset, [N, width] per group."""
        return self._observations

    def step(self, actions: torch.Tensor) -> tuple["TensorDict", torch.Tensor, torch.Tensor, dict[str, Any]]:
        """One step of all environments.

        Args:
            actions: [N, num_actions].

        Returns:
            Observations, rewards [N], dones [N] long, and extras with `time_outs` [N] bool unless the task has a
            finite horizon, and `log`.
        """
        if self.clip_actions is not None:
            actions = actions.clamp(-self.clip_actions, self.clip_actions)
        stepped: Any = self.env.step(actions)
        observations, reward, terminated, truncated, extras = stepped
        if not getattr(self.cfg, "is_finite_horizon", False):
            extras["time_outs"] = truncated
        self._observations = self._pack(observations)
        return self._observations, reward, (terminated | truncated).long(), extras

    def state_dict(self) -> dict[str, Any]:
        """State of the environment that belongs into a checkpoint; `PPO` of `rsl_rl_ppo` puts it there."""
        return self.unwrapped.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over a `state_dict`, and begin the next episodes."""
        self.unwrapped.load_state_dict(state)
        self.reset()

    def close(self) -> None:
        self.env.close()

    def _pack(self, observations: dict[str, Any]) -> "TensorDict":
        return self._tensordict(observations, batch_size=[self.num_envs])


@configclass
class RslRlGaussianCfg:
    """Gaussian with a learned standard deviation for each action."""

    class_name: str = "GaussianDistribution"
    init_std: float = 1.0
    std_type: str = "scalar"


@configclass
class RslRlMLPModelCfg:
    """A network; the actor's has a distribution, the critic's none."""

    class_name: str = "MLPModel"
    hidden_dims: list[int] = MISSING
    activation: str = MISSING
    obs_normalization: bool = False
    distribution_cfg: RslRlGaussianCfg | None = None

    GaussianDistributionCfg = RslRlGaussianCfg


@configclass
class RslRlPpoAlgorithmCfg:
    """Proximal policy optimisation, with rsl_rl's parameters; its checkpoints hold the environment's state too."""

    class_name: str = "simulators.isaac.rsl_rl_ppo:PPO"
    num_learning_epochs: int = MISSING
    num_mini_batches: int = MISSING
    learning_rate: float = MISSING
    schedule: str = MISSING
    gamma: float = MISSING
    lam: float = MISSING
    entropy_coef: float = MISSING
    desired_kl: float = MISSING
    max_grad_norm: float = MISSING
    value_loss_coef: float = MISSING
    use_clipped_value_loss: bool = MISSING
    clip_param: float = MISSING
    normalize_advantage_per_mini_batch: bool = False


@configclass
class RslRlOnPolicyRunnerCfg:
    """Configuration of `OnPolicyRunner(env, cfg.to_dict(), log_dir, device)`."""

    class_name: str = "OnPolicyRunner"
    seed: int = 42
    device: str = "cpu"
    num_steps_per_env: int = MISSING
    max_iterations: int = MISSING
    save_interval: int = MISSING
    experiment_name: str = MISSING
    run_name: str = ""
    logger: str = "tensorboard"
    clip_actions: float | None = None
    obs_groups: dict[str, list[str]] = {"actor": ["policy"], "critic": ["policy"]}  # noqa: RUF012
    actor: RslRlMLPModelCfg = MISSING
    critic: RslRlMLPModelCfg = MISSING
    algorithm: RslRlPpoAlgorithmCfg = MISSING
