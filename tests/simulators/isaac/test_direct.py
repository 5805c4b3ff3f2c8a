"""Direct environments: their hooks."""

import pytest
import torch

from embodied.errors import ConfigError, SpecMismatch
from simulators.isaac.managers import EventTermCfg
from simulators.isaac.noise import ConstantNoiseCfg
from tests.simulators.isaac.toys import SwingCfg, SwingEnv


def test_hooks_make_an_environment():
    env = SwingEnv(SwingCfg())
    observations, _ = env.reset()
    assert observations["policy"].shape == (4, 4) == env.observation_space["policy"].shape
    assert env.max_episode_length == 5 and env.action_space.shape == (4, 2)
    for step in range(1, 6):
        observations, reward, terminated, truncated, extras = env.step(torch.ones(4, 2))
        assert env.calls["apply"] == 3 * step and reward.shape == (4,) and not terminated.any()
        assert truncated.all() == (step == 5) == extras["time_outs"].all()
    assert (extras["final_obs"]["policy"][:, 2:].abs() > 0).all() and (observations["policy"][:, 2:] == 0).all()
    assert env.episode_length_buf.tolist() == [0] * 4 and env.common_step_counter == 5
    assert env.robot.data.applied_torque.abs().max() <= 5.0


class Buffered(SwingEnv):
    """Returns the same buffer every time, and holds its efforts over the decimation."""

    constant_over_decimation = True

    def _get_observations(self) -> dict:
        if not hasattr(self, "buffer"):
            self.buffer = torch.zeros(4, 4)
        self.buffer[:, :2] = self.robot.data.joint_pos
        self.buffer[:, 2:] = self.robot.data.joint_vel
        return {"policy": self.buffer}


def test_a_buffer_of_the_hook_does_not_lose_the_final_observation():
    env, plain = Buffered(SwingCfg()), SwingEnv(SwingCfg())
    env.reset()
    plain.reset()
    for _ in range(5):
        *_, extras = env.step(torch.ones(4, 2))
        *_, expected = plain.step(torch.ones(4, 2))
    assert torch.equal(extras["final_obs"]["policy"], expected["final_obs"]["policy"])
    assert env.calls["apply"] == 5


def test_noise_events_and_faults_work_in_direct_environments():
    def push(env, env_ids):
        env.pushed = env_ids

    cfg = SwingCfg(
        observation_noise_model=ConstantNoiseCfg(bias=10.0),
        action_noise_model=ConstantNoiseCfg(bias=0.0, operation="abs"),
        events={"push": EventTermCfg(func=push, mode="interval", interval_range_s=(0.12, 0.12))},
    )
    env = SwingEnv(cfg)
    assert (env.reset()[0]["policy"] > 5.0).all()
    env.step(torch.ones(4, 2))
    assert not env.actions.any() and not hasattr(env, "pushed")
    env.step(torch.ones(4, 2))
    assert env.pushed.tolist() == [0, 1, 2, 3]
    env.sim.batch.bind("qvel")[2, 0] = float("nan")
    observations, reward, terminated, truncated, extras = env.step(torch.ones(4, 2))
    assert truncated.tolist() == extras["faults"].tolist() == [False, False, True, False] and not terminated.any()
    assert reward[2] == 0.0 and torch.isfinite(observations["policy"]).all()
    assert torch.isfinite(extras["final_obs"]["policy"]).all() and extras["log"]["infrastructure_faults"] == 1


def test_wrong_use_is_refused():
    env = SwingEnv(SwingCfg())
    with pytest.raises(ConfigError, match="call reset"):
        env.step(torch.zeros(4, 2))
    env.reset()
    with pytest.raises(SpecMismatch, match=r"SwingEnv.: give \(4, 2\)"):
        env.step(torch.zeros(4, 3))
    with pytest.raises(SpecMismatch, match="of environment 3 is not finite"):
        env.step(torch.tensor([[0.0, 0.0]] * 3 + [[torch.nan, 0.0]]))
    with pytest.raises(ConfigError, match="action_space is missing"):
        from simulators.isaac.configclass import MISSING

        SwingEnv(SwingCfg(action_space=MISSING))
