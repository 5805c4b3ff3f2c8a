"""rsl_rl's PPO with the environment's state in its checkpoints, for the unmodified runner to save and load."""

import logging
from typing import Any

import rsl_rl.algorithms

log = logging.getLogger(__name__)


class PPO(rsl_rl.algorithms.PPO):
    """PPO whose checkpoints resume curricula: steps taken, generator and weights of the environment are in them."""

    _env: Any

    @staticmethod
    def construct_algorithm(obs: Any, env: Any, cfg: dict[str, Any], device: str) -> Any:
        algorithm = rsl_rl.algorithms.PPO.construct_algorithm(obs, env, cfg, device)
        algorithm._env = env
        return algorithm

    def save(self) -> dict[str, Any]:
        return {**super().save(), "env_state_dict": self._env.state_dict()}

    def load(self, loaded_dict: dict[str, Any], load_cfg: dict[str, Any] | None, strict: bool) -> bool:
        """As rsl_rl's; the environment's state is loaded with the iteration."""
        resumes = super().load(loaded_dict, load_cfg, strict)
        if resumes and "env_state_dict" in loaded_dict:
            self._env.load_state_dict(loaded_dict["env_state_dict"])
        elif resumes:
            log.warning("the checkpoint has no state of the environment: curricula begin at step 0")
        return resumes
