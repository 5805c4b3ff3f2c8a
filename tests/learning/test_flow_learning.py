"""The flow policy learns: clones what was shown, and improves by the density of its noisy denoising."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from embodied.data import ActionChunk, Observation, Segment
from embodied.learning.bc import BCConfig, BehaviourCloning
from embodied.learning.ppo import PPO, PPOConfig
from policies.flow import FlowPolicy
from simulators.one_agent import OneAgentEnv
from tests.learning.pointmass import AGENT, PointMass, collect, demonstrations, success


def make_policy(seed: int = 0) -> FlowPolicy:
    return FlowPolicy(
        "p", AGENT, chunk=1, state=["position", "goal"], pictures=[], instruction=None, width=16, layers=1, heads=2,
        expert_width=32, steps=3, noise=0.5, times=2, critic_hidden=[32], seed=seed,
    )  # fmt: skip


class Keeping:
    """A policy that keeps the paths of its decisions, which `collect` knows nothing of."""

    def __init__(self, policy: FlowPolicy) -> None:
        self.policy, self.spec, self.paths = policy, policy.spec, []

    def act(self, observation: Observation, noise_keys: NDArray[np.int64], mode: Any) -> ActionChunk:
        chunk = self.policy.act(observation, noise_keys, mode)
        self.paths.append(chunk.stored["path"])
        return chunk


def collected(env: PointMass, policy: FlowPolicy, at: Observation, steps: int) -> tuple[Segment, Observation]:
    keeping = Keeping(policy)
    segment, at = collect(env, keeping, at, steps, 0)
    return replace(segment, stored={"path": np.stack(keeping.paths)}), at


def clone(steps: int) -> tuple[BehaviourCloning, dict[str, float]]:
    learner = BehaviourCloning(make_policy(), BCConfig(steps=steps, batch=64, lr=3e-3))
    return learner, learner.fit(demonstrations(6, seed=0))


def test_cloning_lowers_the_loss_and_repeats_bit_for_bit():
    (learner, metrics), (again, metrics_again) = clone(30), clone(30)
    assert metrics["learner/bc_loss"] < 0.6 * metrics["learner/bc_first_loss"]
    assert metrics == metrics_again
    ours, theirs = learner.tensors(), again.tensors()
    assert all(np.array_equal(array, theirs[name]) for name, array in ours.items())


def test_an_update_begins_at_a_ratio_of_one():
    learner, serving, env = PPO(make_policy(), PPOConfig(epochs=1, minibatches=2)), make_policy(), PointMass(8)
    serving.load(learner.tensors())
    segment, _ = collected(env, serving, OneAgentEnv(env).reset()[0], 12)
    metrics = learner.update([segment])
    assert metrics["learner/ratio_at_start"] == pytest.approx(1.0, abs=1e-5)
    assert metrics["learner/max_log_ratio_at_start"] < 1e-4
    assert metrics["learner/kl"] > 0.0
    segment.stored["path"][:, :, 1] += 0.5
    other = PPO(serving, PPOConfig(epochs=1, minibatches=2))
    assert other.update([segment])["learner/max_log_ratio_at_start"] > 0.1


@pytest.mark.slow
def test_noisy_denoising_learns_to_reach_the_goal_from_nothing():
    config = PPOConfig(epochs=4, lr=1e-3, target_kl=0.0, per_dimension=True, seed=1)
    learner, serving, env = PPO(make_policy(), config), make_policy(), PointMass(64)
    observation, before = OneAgentEnv(env).reset()[0], success(serving)
    for _ in range(15):
        serving.load(learner.tensors())
        segment, observation = collected(env, serving, observation, 16)
        assert learner.update([segment])["learner/max_log_ratio_at_start"] < 1e-3
    serving.load(learner.tensors())
    assert before < 0.3
    assert success(serving) > before + 0.3
