"""Environments as rsl_rl's VecEnv, with the real rsl_rl."""

import csv
import subprocess
import sys
from pathlib import Path

import gymnasium
import pytest
import torch

import simulators.isaac.tasks  # noqa: F401 -- registers the tasks
from embodied.errors import ConfigError
from simulators.isaac.registry import load_cfg_from_registry, parse_env_cfg
from simulators.isaac.rsl_rl import RslRlVecEnvWrapper

ROOT = Path(__file__).parents[3]
TASK = "Embodied-Reach-Franka-v0"
N = 8


def wrapped(task: str = TASK, clip_actions: float | None = None, **changes: object) -> RslRlVecEnvWrapper:
    cfg = parse_env_cfg(task, num_envs=N)
    cfg.seed = 3
    for name, value in changes.items():
        setattr(cfg, name, value)
    return RslRlVecEnvWrapper(gymnasium.make(task, cfg=cfg), clip_actions)


def test_the_wrapper_has_the_attributes_of_vec_env() -> None:
    from rsl_rl.env import VecEnv
    from tensordict import TensorDict

    env = wrapped()
    for name in (*VecEnv.__annotations__, *VecEnv.__abstractmethods__):
        assert hasattr(env, name), name
    assert (env.num_envs, env.num_actions, env.max_episode_length, env.device) == (N, 7, 360, "cpu")
    observations = env.get_observations()
    assert isinstance(observations, TensorDict) and observations.batch_size == torch.Size([N])
    assert observations["policy"].shape == (N, 32)
    observations, reward, dones, extras = env.step(torch.zeros(N, 7))
    assert isinstance(observations, TensorDict) and reward.shape == (N,) and reward.dtype == torch.float32
    assert dones.dtype == torch.long and not dones.any()
    assert extras["time_outs"].dtype == torch.bool and "log" in extras


def test_a_time_out_is_no_termination_and_is_logged() -> None:
    env = wrapped()
    env.episode_length_buf = torch.tensor([359] * 2 + [0] * (N - 2))
    assert env.episode_length_buf.tolist() == [359] * 2 + [0] * (N - 2)
    _, _, dones, extras = env.step(torch.zeros(N, 7))
    assert dones.tolist() == [1] * 2 + [0] * (N - 2) and torch.equal(extras["time_outs"], dones.bool())
    assert extras["log"]["Episode_Termination/time_out"] == 2
    assert {"Metrics/ee_pose/position_error", "Episode_Reward/joint_vel"} <= set(extras["log"])


def test_a_finite_horizon_has_no_time_outs() -> None:
    assert "time_outs" not in wrapped(is_finite_horizon=True).step(torch.zeros(N, 7))[3]


def test_observations_are_not_overwritten_by_the_next_step() -> None:
    """rsl_rl stores an observation only after the step that follows it."""
    env = wrapped("Embodied-Lift-Cube-Franka-v0")
    observations = env.get_observations()
    before = observations.clone()
    env.step(torch.ones(N, 8))
    assert torch.equal(observations["policy"], before["policy"])
    assert not torch.equal(observations["policy"], env.get_observations()["policy"])


def test_actions_are_clipped() -> None:
    env = wrapped(clip_actions=0.5)
    env.step(torch.full((N, 7), 3.0))
    assert torch.equal(env.unwrapped.action_manager.action, torch.full((N, 7), 0.5))
    with pytest.raises(ConfigError, match="clip_actions"):
        wrapped(clip_actions=0.0)


@pytest.mark.parametrize("task", [TASK, "Embodied-Lift-Cube-Franka-v0"])
def test_the_unmodified_runner_learns_saves_and_acts(task: str, tmp_path: Path) -> None:
    from rsl_rl.runners import OnPolicyRunner

    agent = load_cfg_from_registry(task, "rsl_rl_cfg_entry_point")
    agent.num_steps_per_env = 4
    env = wrapped(task)
    runner = OnPolicyRunner(env, agent.to_dict(), log_dir=str(tmp_path), device="cpu")
    before = [parameter.clone() for parameter in runner.alg.get_policy().parameters()]
    runner.learn(2, init_at_random_ep_len=True)
    assert any((a != b).any() for a, b in zip(before, runner.alg.get_policy().parameters(), strict=True))
    assert sorted(path.name for path in tmp_path.glob("model_*.pt")) == ["model_0.pt", "model_1.pt"]
    # Environments stepped under inference mode can be stepped outside of it.
    observations, _ = env.reset()
    policy = runner.get_inference_policy()
    with torch.no_grad():
        assert env.step(policy(observations))[1].isfinite().all()
    runner.learn(1)


def test_a_resumed_run_goes_on_with_its_curriculum(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    from rsl_rl.runners import OnPolicyRunner

    agent = load_cfg_from_registry(TASK, "rsl_rl_cfg_entry_point")
    agent.num_steps_per_env = 3

    def run(log_dir: str | None) -> tuple[RslRlVecEnvWrapper, OnPolicyRunner]:
        cfg = parse_env_cfg(TASK, num_envs=N)
        cfg.curriculum.joint_vel.params |= {"num_steps": 4, "weight": -7.0}
        env = RslRlVecEnvWrapper(gymnasium.make(TASK, cfg=cfg))
        return env, OnPolicyRunner(env, agent.to_dict(), log_dir=log_dir, device="cpu")

    def weight(env: RslRlVecEnvWrapper) -> float:
        return env.unwrapped.reward_manager.get_term_cfg("joint_vel").weight

    env, runner = run(str(tmp_path))
    runner.learn(2)
    assert env.unwrapped.common_step_counter == 6 and weight(env) != -7.0  # no episode has ended since step 4
    path = str(tmp_path / "model_1.pt")
    other, resumed = run(None)
    drawn = other.get_observations()["policy"].clone()
    resumed.load(path)
    assert other.unwrapped.common_step_counter == 6 and resumed.current_learning_iteration == 1
    assert weight(other) == -7.0
    assert not torch.equal(other.get_observations()["policy"], drawn)
    acting, loaded = run(None)
    loaded.load(path, load_cfg={"actor": True})
    assert acting.unwrapped.common_step_counter == 0
    saved = torch.load(path, weights_only=False)
    torch.save({name: value for name, value in saved.items() if name != "env_state_dict"}, path)
    loaded.load(path)
    assert caplog.messages == ["the checkpoint has no state of the environment: curricula begin at step 0"]
    with pytest.raises(ConfigError, match="the state lacks generator, reward_weights"):
        env.load_state_dict({"common_step_counter": 3})


def test_a_time_limit_that_counts_as_a_failure_is_said(caplog: pytest.LogCaptureFixture) -> None:
    for finite in (False, True):
        cfg = parse_env_cfg(TASK, num_envs=N)
        cfg.terminations.time_out.time_out, cfg.is_finite_horizon = False, finite
        gymnasium.make(TASK, cfg=cfg)
        assert [message for message in caplog.messages if "set time_out=True" in message] == caplog.messages
    assert len(caplog.messages) == 1


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_rsl_rl_brings_the_hand_within_five_centimetres(tmp_path: Path) -> None:
    command = [sys.executable, "tools/isaac_rsl_rl.py", str(tmp_path / "curve"), "--iterations", "800"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=3500)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    rows = list(csv.DictReader((tmp_path / "curve.csv").read_text().splitlines()))
    assert float(rows[0]["position_error_m"]) > 0.15 and float(rows[-1]["position_error_m"]) < 0.05
    assert (tmp_path / "curve.png").stat().st_size > 1000
