"""`Sb3VecEnv`: consistent with the environment below, and stable-baselines3 trains and evaluates on it."""

import gymnasium
import numpy as np
import pytest
from stable_baselines3 import PPO
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import VecMonitor

from embodied.data import Outcome
from embodied.errors import ConfigError, SpecMismatch
from simulators.adapters.sb3 import Sb3VecEnv
from simulators.make import make_env
from simulators.one_agent import OneAgentEnv

COUNT = 4


def test_environments_of_another_range_have_their_own_seeds():
    ours = Sb3VecEnv(make_env("reach", 2, num_threads=1, first=5))
    ours.seed(7)
    ours.reset()
    assert [info["episode_seed"] for info in ours.reset_infos] == [7, 8]


class Expert:
    """The scripted expert as SB3's evaluation asks a policy."""

    def __init__(self, env):
        self.env = env

    def predict(self, observation, state=None, episode_start=None, deterministic=True):
        return np.stack(self.env.env_method("expert")), None


def test_it_tells_what_the_environment_below_tells():
    ours, native = Sb3VecEnv(make_env("reach", COUNT, num_threads=1)), make_env("reach", COUNT, num_threads=1, seed=5)
    assert ours.seed(5) == [5, 6, 7, 8]
    observation = ours.reset()
    expected, starts = OneAgentEnv(native).reset([5, 6, 7, 8])
    assert [info["episode_seed"] for info in ours.reset_infos] == starts.seeds.tolist()
    rng, ended = np.random.default_rng(0), 0
    for _ in range(80):
        for name, values in expected.streams.items():
            assert np.array_equal(observation[name], values)
        assert ours.observation_space.contains({name: values[0] for name, values in observation.items()})
        noise = rng.normal(0, 1, (COUNT, 7)) * native.action_limit * [[0.0], [0.0], [0.5], [3.0]]
        actions = OneAgentEnv(native).expert() + noise.astype(np.float32)
        result, (observation, rewards, dones, infos) = OneAgentEnv(native).step(actions), ours.step(actions)
        expected = result.observation
        assert np.array_equal(rewards, result.rewards) and np.array_equal(dones, result.outcomes != Outcome.RUNNING)
        for at, row in enumerate(result.ended):
            last = infos[row]["terminal_observation"]
            assert all(np.array_equal(last[name], values[at]) for name, values in result.final.items())
            assert infos[row]["TimeLimit.truncated"] == (result.outcomes[row] == Outcome.TIME_LIMIT)
            assert infos[row]["is_success"] == (result.outcomes[row] == Outcome.SUCCESS)
        assert all(bool(info) == done for info, done in zip(infos, dones, strict=True))
        ended += len(result.ended)
    assert ended >= 6


def test_ppo_trains_and_its_evaluation_counts_successes():
    env = VecMonitor(Sb3VecEnv(make_env("reach", COUNT, num_threads=1), streams=["joint_pos", "ee_to_target"]))
    model = PPO("MultiInputPolicy", env, n_steps=32, batch_size=64, n_epochs=1, seed=1, device="cpu")
    before = [weights.detach().clone() for weights in model.policy.parameters()]
    model.learn(256)
    assert model.num_timesteps == 256
    assert any(
        not np.array_equal(b.numpy(), a.detach().numpy())
        for b, a in zip(before, model.policy.parameters(), strict=True)
    )
    found = []
    evaluate_policy(
        Expert(env), env, n_eval_episodes=8, callback=lambda seen, _: found.append(seen["info"].get("is_success"))
    )
    assert found.count(True) >= 8


def test_its_parts_are_reached_by_name():
    env = Sb3VecEnv(make_env("reach", COUNT, num_threads=1), None, "rgb_array", width=32, height=24, render_with="ray")
    env.reset()
    assert env.get_attr("seed", [0, 2]) == [0, 0] and env.get_attr("render_mode") == ["rgb_array"] * COUNT
    env.set_attr("seed", 9)
    assert env.env.seed == 9
    assert env.has_attr("spec") and not env.has_attr("nothing")
    assert np.array_equal(env.env_method("expert", indices=2), OneAgentEnv(env.env).expert()[2:3])
    assert env.env_is_wrapped(gymnasium.Wrapper) == [False] * COUNT
    assert len(env.get_images()) == COUNT and env.render().shape == (48, 64, 3)
    with pytest.raises(AttributeError, match="did you mean expert"):
        env.env_method("experts")
    with pytest.raises(ConfigError, match="shared by all environments"):
        env.set_attr("seed", 1, indices=[0])
    env.close()


def test_bad_input_is_one_line():
    with pytest.raises(ConfigError, match="did you mean joint_pos"):
        Sb3VecEnv(make_env("reach", COUNT, num_threads=1), streams=["joint_position"])
    env = Sb3VecEnv(make_env("reach", COUNT, num_threads=1))
    env.reset()
    with pytest.raises(SpecMismatch, match="NaN"):
        env.step(np.full((COUNT, 7), np.nan))
    with pytest.raises(SpecMismatch, match=r"give \(4, 7\)"):
        env.step(np.zeros((COUNT, 6)))
    with pytest.raises(ConfigError, match="step_wait without step_async"):
        env.step_wait()
    for seed in (-1, 2**63, 2**63 - 1, "abc", 1.5):
        with pytest.raises(ConfigError, match="the seed cannot be"):
            env.seed(seed)
    with pytest.raises(ConfigError, match="height cannot be -5"):
        Sb3VecEnv(make_env("reach", COUNT, num_threads=1), height=-5)
