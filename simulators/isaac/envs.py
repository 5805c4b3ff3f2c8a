"""Isaac Lab's `envs`, and its `mdp` functions."""

from simulators.isaac import mdp
from simulators.isaac.cfg import DirectRLEnvCfg, ManagerBasedRLEnvCfg
from simulators.isaac.direct import DirectRLEnv
from simulators.isaac.env import ManagerBasedRLEnv

__all__ = ["DirectRLEnv", "DirectRLEnvCfg", "ManagerBasedRLEnv", "ManagerBasedRLEnvCfg", "mdp"]
