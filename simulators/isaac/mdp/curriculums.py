"""Curriculum terms, called at resets. Their results are logged."""

from collections.abc import Sequence

import torch

from simulators.isaac.env import ManagerBasedRLEnv


def modify_reward_weight(
    env: ManagerBasedRLEnv, env_ids: Sequence[int] | torch.Tensor, term_name: str, weight: float, num_steps: int
) -> float:
    """Give reward `term_name` another `weight` once more than `num_steps` steps have been taken; returns its weight."""
    term = env.reward_manager.get_term_cfg(term_name)
    if env.common_step_counter > num_steps and term.weight != weight:
        term.weight = weight
        env.reward_manager.set_term_cfg(term_name, term)
    return term.weight
