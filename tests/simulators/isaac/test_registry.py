"""Registered environments, made as by scripts for Isaac Lab, and named mistakes."""

import gymnasium
import pytest
import torch

import simulators.isaac.tasks  # noqa: F401 -- registers the tasks
from embodied.errors import ConfigError
from simulators.isaac.registry import load_cfg_from_registry, parse_env_cfg
from simulators.isaac.rsl_rl import RslRlOnPolicyRunnerCfg

IDS = ("Embodied-Lift-Cube-Franka-v0", "Embodied-Reach-Franka-v0")
ALL = (*IDS, *(name.replace("-v0", "-Play-v0") for name in IDS))


@pytest.mark.parametrize("task", ALL)
def test_a_script_makes_and_steps_an_environment(task: str) -> None:
    cfg = parse_env_cfg(task, device="cpu", num_envs=3)
    env = gymnasium.make(task, cfg=cfg)
    observations, _ = env.reset(seed=7)
    assert env.unwrapped.num_envs == 3 and observations["policy"].shape[0] == 3  # type: ignore[attr-defined]
    action = torch.zeros(env.action_space.shape)  # type: ignore[arg-type]
    observations, reward, terminated, truncated, extras = env.step(action)
    assert isinstance(reward, torch.Tensor) and reward.shape == terminated.shape == truncated.shape == (3,)  # type: ignore[attr-defined]
    assert observations["policy"].shape == env.observation_space["policy"].shape  # type: ignore[index]
    assert "log" in extras
    env.close()


@pytest.mark.parametrize("task", ALL)
def test_registration_is_isaac_labs(task: str) -> None:
    spec = gymnasium.spec(task)
    assert spec.disable_env_checker and set(spec.kwargs) == {"env_cfg_entry_point", "rsl_rl_cfg_entry_point"}
    assert isinstance(load_cfg_from_registry(task, "rsl_rl_cfg_entry_point"), RslRlOnPolicyRunnerCfg)
    corrupted = load_cfg_from_registry(task, "env_cfg_entry_point").observations.policy.enable_corruption
    assert corrupted is ("Play" not in task)


def test_configurations_are_fresh() -> None:
    first = parse_env_cfg(IDS[1], num_envs=4)
    first.rewards.action_rate.weight = 7.0
    second = parse_env_cfg(f"my_package:{IDS[1]}")
    assert second.rewards.action_rate.weight == -0.0001 and second.scene.num_envs == 64


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: parse_env_cfg("Embodied-Reach-Frank-v0"), ["Embodied-Reach-Franka-v0"]),
        (lambda: load_cfg_from_registry(IDS[0], "rsl_rl_cfg"), ["rsl_rl_cfg_entry_point"]),
        (lambda: parse_env_cfg(IDS[0], device="cuda:0"), ["cuda:0", "CPU"]),
    ],
)
def test_mistakes_name_the_nearest_name(call: object, words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        call()  # type: ignore[operator]
    assert all(word in caught.value.line() for word in words)


def test_the_same_seed_repeats_bit_for_bit() -> None:
    seen = []
    for _ in range(2):
        cfg = parse_env_cfg(IDS[0], num_envs=4)
        cfg.seed = 11
        env = gymnasium.make(IDS[0], cfg=cfg)
        env.reset()
        steps = [env.step(torch.full((4, 8), 0.1 * step)) for step in range(5)]
        seen.append(torch.cat([observations["policy"] for observations, *_ in steps]))
    assert torch.equal(*seen)
