"""PPO's learning rates: the critic's own, and which of a checkpoint's and a config's goes on."""

from dataclasses import replace

import numpy as np
import pytest

from embodied.data import Segment
from embodied.errors import CorruptFile
from embodied.learning.ppo import PPO, PPOConfig
from policies.mlp import MLPPolicy
from simulators.one_agent import OneAgentEnv
from tests.learning.pointmass import AGENT, PointMass, collect

CONFIG = PPOConfig(epochs=4, lr=1e-3, seed=1)


def make_policy(seed: int = 0) -> MLPPolicy:
    return MLPPolicy("p", AGENT, hidden=(32, 32), seed=seed)


@pytest.fixture
def segment() -> Segment:
    env = PointMass(8, seed=0)
    return collect(env, make_policy(), OneAgentEnv(env).reset()[0], 40, 0)[0]


def test_the_critic_may_have_a_learning_rate_of_its_own(segment: Segment):
    same, apart = (PPO(make_policy(), replace(CONFIG, critic_lr=rate)) for rate in (0.0, 0.1))
    for learner in (same, apart):
        learner.update([segment])
    moved = {name: np.abs(apart.tensors()[name] - array).max() for name, array in same.tensors().items()}
    assert moved["critic.0.weight"] > 0.01
    assert moved["actor.0.weight"] < 1e-3
    assert apart.optimiser.lr != 0.1
    again = PPO(make_policy(3), replace(CONFIG, critic_lr=0.1))
    again.load(apart.state())
    again.update([segment])
    apart.update([segment])
    ours, theirs = again.tensors(), apart.tensors()
    assert all(np.array_equal(ours[name], theirs[name]) for name in ours)
    with pytest.raises(CorruptFile, match="parameters"):
        PPO(make_policy(), CONFIG).load(apart.state())


def rates(learner: PPO) -> list[float]:
    return [group["lr"] for group in learner.optimiser.adam.param_groups]


def test_a_learning_rate_that_is_given_anew_wins_over_the_one_that_was_saved():
    config = replace(CONFIG, critic_lr=0.1, lr=1e-3, lr_max=1.0)
    learner = PPO(make_policy(), config)
    learner.optimiser.lr = 2e-3  # as a KL target moves it
    state = learner.state()
    for changed, expected in (
        ({}, [2e-3, 0.1]),
        ({"lr": 1e-4}, [1e-4, 0.1]),
        ({"critic_lr": 0.01}, [2e-3, 0.01]),
        ({"lr": 5e-4, "target_kl": 0.0, "critic_lr": 1.0}, [5e-4, 1.0]),
        ({"lr_max": 1.5e-3}, [1.5e-3, 0.1]),
    ):
        resumed = PPO(make_policy(3), replace(config, **changed))
        resumed.load(state)
        assert rates(resumed) == expected
        further = PPO(make_policy(4), replace(config, **changed))
        further.load(resumed.state())
        assert rates(further) == expected


def test_a_state_that_tells_no_learning_rates_is_taken_up(segment: Segment):
    config = replace(CONFIG, critic_lr=0.1)
    learner = PPO(make_policy(), config)
    learner.update([segment])
    state = learner.state()
    state["optimiser"].pop("rates")
    resumed, slower = PPO(make_policy(3), config), PPO(make_policy(3), replace(config, critic_lr=0.01))
    resumed.load(state)
    slower.load(state)
    assert rates(resumed) == rates(learner) and rates(slower) == [rates(learner)[0], 0.01]
    state["optimiser"]["rates"] = ["fast", 1.0]
    with pytest.raises(CorruptFile, match="optimiser's state cannot be read"):
        resumed.load(state)
