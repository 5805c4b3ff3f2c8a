"""Registered environments: their configurations by id, and gymnasium's entry for each."""

import importlib
from typing import Any

import gymnasium

from simulators.isaac.errors import ConfigError, nearest

ENTRY = "simulators.isaac.env:ManagerBasedRLEnv"


def register(env_id: str, env_cfg: str, rsl_rl_cfg: str, entry_point: str = ENTRY) -> None:
    """Register an environment with gymnasium, as Isaac Lab's tasks are.

    Args:
        env_id: Such as `Embodied-Reach-Franka-v0`.
        env_cfg: `module:Class` of its configuration.
        rsl_rl_cfg: `module:Class` of the configuration of rsl_rl's runner.
        entry_point: `module:Class` of the environment.
    """
    gymnasium.register(
        id=env_id,
        entry_point=entry_point,
        disable_env_checker=True,
        kwargs={"env_cfg_entry_point": env_cfg, "rsl_rl_cfg_entry_point": rsl_rl_cfg},
    )


def load_cfg_from_registry(task_name: str, entry_point_key: str) -> Any:
    """A fresh configuration of a registered environment.

    Args:
        task_name: The id; a prefix up to a colon is skipped.
        entry_point_key: `env_cfg_entry_point` or `rsl_rl_cfg_entry_point`.

    Raises:
        ConfigError: No such environment or key is registered.
    """
    name = task_name.split(":")[-1]
    known = {env_id: spec for env_id, spec in gymnasium.registry.items() if "env_cfg_entry_point" in spec.kwargs}
    if name not in known:
        raise ConfigError(f"no environment is called {name!r}", "task", nearest(name, known))
    kwargs = known[name].kwargs
    if entry_point_key not in kwargs:
        keys = [key for key in kwargs if key.endswith("_entry_point")]
        raise ConfigError(f"{name} has no {entry_point_key!r}", "task", nearest(entry_point_key, keys))
    entry = kwargs[entry_point_key]
    if isinstance(entry, str):
        module, _, attribute = entry.partition(":")
        entry = getattr(importlib.import_module(module), attribute)
    return entry() if callable(entry) else entry


def parse_env_cfg(
    task_name: str, device: str = "cpu", num_envs: int | None = None, use_fabric: bool | None = None
) -> Any:
    """An environment's configuration with a device and a count; `use_fabric` means nothing here.

    Raises:
        ConfigError: The environment is unknown, or the device is not the CPU.
    """
    if device != "cpu":
        raise ConfigError(f"device {device!r}", "parse_env_cfg", "MuJoCo runs on the CPU: use device='cpu'")
    cfg = load_cfg_from_registry(task_name, "env_cfg_entry_point")
    cfg.sim.device = device
    if num_envs is not None:
        cfg.scene.num_envs = num_envs
    return cfg
