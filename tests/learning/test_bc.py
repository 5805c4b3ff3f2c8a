"""Behaviour cloning: learns what demonstrators chose, resumes exactly, and hands over to PPO."""

import io
import math
from collections.abc import Mapping

import numpy as np
import pytest
import torch

from embodied.data import Source
from embodied.errors import ConfigError, CorruptFile, DataError
from embodied.learning.bc import BCConfig, BehaviourCloning
from embodied.learning.ppo import PPO, PPOConfig
from policies.mlp import GaussianActorCritic, MLPPolicy
from policies.senses import Senses
from policies.torch_policy import TorchPolicy
from simulators.one_agent import OneAgentEnv
from tests.learning.pointmass import AGENT, PointMass, collect, demonstrations, success


def make_policy(seed: int = 0) -> MLPPolicy:
    return MLPPolicy("p", AGENT, hidden=(32, 32), seed=seed)


def same(a: BehaviourCloning, b: BehaviourCloning) -> bool:
    ours, theirs = a.tensors(), b.tensors()
    return all(np.array_equal(ours[name], theirs[name]) for name in ours)


def test_learns_from_many_demonstrations():
    learner = BehaviourCloning(make_policy(), BCConfig(steps=700, initial_std=0.25))
    metrics = learner.fit(demonstrations(60, 500))
    assert metrics["learner/bc_loss"] < 0.05 < metrics["learner/bc_first_loss"]
    tensors = learner.tensors()
    np.testing.assert_allclose(np.exp(tensors["log_std"]), 0.25, rtol=1e-6)
    assert (tensors["std"] >= 1e-2).all()
    policy = make_policy(1)
    policy.load(tensors)
    assert success(policy) >= 0.9


def test_ppo_on_a_sparse_reward_mends_a_weak_clone():
    policy, serving = make_policy(), make_policy()
    cloning = BehaviourCloning(policy)
    cloning.fit(demonstrations(12, 500))
    weak = success(policy)
    config = PPOConfig(epochs=4, lr=1e-3, critic_only_updates=2, normaliser_steps=0)
    learner = PPO(policy, config, cloning.normaliser)
    env = PointMass(64, dense=False)
    observation, _ = OneAgentEnv(env).reset()
    for _ in range(20):
        serving.load(learner.tensors())
        segment, observation = collect(env, serving, observation, 16, seed=0)
        learner.update([segment])
    np.testing.assert_array_equal(serving.tensors()["mean"], cloning.tensors()["mean"])
    serving.load(learner.tensors())
    assert weak < 0.75
    assert success(serving) >= weak + 0.15


def test_reports_every_step_and_metrics_at_each_tenth_without_changing_what_is_learned():
    config, episodes = BCConfig(steps=40, held_out=0.25), demonstrations(8, 0)
    silent, told = (BehaviourCloning(make_policy(), config) for _ in range(2))
    reports: list[tuple[float, float, Mapping[str, float]]] = []
    silent.fit(episodes)
    metrics = told.fit(episodes, lambda *report: reports.append(report))
    assert same(silent, told)
    assert [share for share, _, _ in reports] == [(step + 1) / 40 for step in range(40)]
    rows = [(share, values) for share, _, values in reports if values]
    assert [share for share, _ in rows] == [n / 10 for n in range(1, 11)]
    assert all({"learner/bc_loss", "learner/bc_held_out_loss", "learner/bc_steps"} == set(row) for _, row in rows)
    assert rows[0][1]["learner/bc_held_out_loss"] > metrics["learner/bc_held_out_loss"] > 0


def test_episodes_held_out_are_not_learned_from():
    episodes = demonstrations(8, 0)
    learner = BehaviourCloning(make_policy(), BCConfig(steps=5, held_out=0.25))
    alone = BehaviourCloning(make_policy(), BCConfig(steps=5))
    learner.fit(episodes)
    alone.fit([episode for number, episode in enumerate(episodes, 1) if number % 4])
    assert same(learner, alone)


def test_goes_on_bit_for_bit_after_load():
    config, episodes = BCConfig(steps=50, seed=4), demonstrations(4, 0)
    learner, twin, resumed = (BehaviourCloning(make_policy(seed), config) for seed in (0, 0, 7))
    learner.fit(episodes)
    twin.fit(episodes)
    assert same(learner, twin)
    file = io.BytesIO()
    torch.save(learner.state(), file)
    file.seek(0)
    resumed.load(torch.load(file, weights_only=True))
    assert learner.fit(episodes) == resumed.fit(episodes)
    assert same(learner, resumed)
    assert not same(learner, twin)
    with pytest.raises(CorruptFile, match="another algorithm"):
        resumed.load(resumed.state() | {"algorithm": "ppo"})


def test_only_what_a_demonstrator_chose_is_learned():
    episode, *_ = demonstrations(1, 3)
    track = episode.agents["robot"]
    track.source[0], track.trainable[1] = Source.POLICY, False
    track.source[2] = Source.HUMAN
    track.actions[[0, 1]] = np.nan
    learner = BehaviourCloning(make_policy(), BCConfig(steps=5))
    metrics = learner.fit([episode])
    assert metrics["learner/samples"] == len(track) - 2
    assert metrics["learner/skipped_steps"] == 0


def test_a_policy_of_chunks_learns_from_single_actions():
    """The third step is the policy's own: windows end before it, and its action, not a number, is never met."""
    episode, *_ = demonstrations(1, 3)
    track = episode.agents["robot"]
    track.source[2], track.actions[2] = Source.POLICY, np.nan
    senses = Senses(AGENT.observations)
    policy = TorchPolicy("p", AGENT.actions, senses, GaussianActorCritic(4, 3, (1.0, 1.0), (16,), 0.5, 0), {})
    metrics = BehaviourCloning(policy, BCConfig(steps=20)).fit([episode])
    rest = len(track) - 3
    assert metrics["learner/samples"] == 2 + 1 + 3 * (rest - 2) + 2 + 1
    assert metrics["learner/skipped_steps"] == 0
    assert metrics["learner/bc_loss"] < metrics["learner/bc_first_loss"]


def test_a_loss_that_is_not_finite_is_stepped_over_and_counted_then_raises():
    episode, *_ = demonstrations(1, 3)
    episode.agents["robot"].actions[:] = np.nan
    learner = BehaviourCloning(make_policy(), BCConfig(steps=10))
    before = learner.tensors()
    metrics = learner.fit([episode])
    assert metrics["learner/skipped_steps"] == 10
    assert np.array_equal(before["actor.0.weight"], learner.tensors()["actor.0.weight"])
    with pytest.raises(DataError, match="17 times in a row"):
        learner.fit([episode])


def test_nothing_to_learn_from_is_said():
    episode, *_ = demonstrations(1, 3)
    learner = BehaviourCloning(make_policy())
    with pytest.raises(DataError, match="human or a script"):
        learner.fit([])
    own = episode.agents["robot"]
    episode.agents = {"left": own}
    with pytest.raises(DataError, match="no agent robot"):
        BehaviourCloning(make_policy(), BCConfig(agent="robot")).fit([episode])
    episode.agents = {"left": own, "right": own}
    with pytest.raises(DataError, match=r"it has 2 agents.*left, right"):
        learner.fit([episode])


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("steps", 0), ("steps", 1.5), ("steps", None), ("batch", 0), ("batch", True), ("lr", 0.0), ("lr", math.inf),
        ("lr", "fast"), ("std_floor", math.inf), ("std_floor", 0.0), ("initial_std", math.inf), ("initial_std", 1e-9),
        ("seconds", math.nan), ("seconds", -1.0), ("word_dropout", 1.0), ("picture_jitter", 1.5), ("picture_shift", -1),
        ("max_grad_norm", -1.0), ("max_grad_norm", 0.0), ("max_grad_norm", math.nan), ("agent", ""), ("seed", 0.5),
        ("device", 3),
    ],
)  # fmt: skip
def test_settings_that_make_no_sense_are_refused(key: str, value: object) -> None:
    with pytest.raises(ConfigError, match=rf"^{key} cannot be .*\(algo\.{key}\): give a") as caught:
        BCConfig(**{key: value})
    assert "\n" not in caught.value.line()


@pytest.mark.parametrize("device", ["foo", "cuda:77", "meta"])
def test_a_device_that_is_not_there_is_refused(device: str) -> None:
    with pytest.raises(ConfigError, match=f"no device={device} on this machine"):
        BehaviourCloning(make_policy(), BCConfig(device=device))


def test_however_short_the_time_is_a_step_is_taken() -> None:
    learner = BehaviourCloning(make_policy(), BCConfig(steps=10**9, seconds=1e-9))
    before = learner.tensors()["actor.0.weight"]
    assert learner.fit(demonstrations(2, 0))["learner/bc_steps"] == 1
    assert not np.array_equal(before, learner.tensors()["actor.0.weight"])
