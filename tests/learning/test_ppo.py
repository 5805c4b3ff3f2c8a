"""PPO: learns, repeats bit for bit, resumes bit for bit, and refuses what it may not learn from."""

import io
from dataclasses import replace

import numpy as np
import pytest
import torch
from pointmass import AGENT, PointMass, collect, success

from embodied.data import Observation, Segment, Source
from embodied.errors import ConfigError, CorruptFile, DataError
from embodied.learning.ppo import PPO, PPOConfig
from policies.mlp import MLPPolicy

CONFIG = PPOConfig(epochs=4, lr=1e-3, seed=1)


def make_policy(seed: int = 0) -> MLPPolicy:
    return MLPPolicy("p", AGENT, hidden=(32, 32), seed=seed)


class Loop:
    """A body, the policy that serves, and the learner's own one."""

    def __init__(self, config: PPOConfig = CONFIG, seed: int = 0, bodies: int = 64) -> None:
        self.learner, self.serving, self.seed = PPO(make_policy(seed), config), make_policy(), seed
        self.body = PointMass(bodies, seed=seed)
        self.observation: Observation = self.body.reset()[0]

    def collect(self, steps: int = 16) -> Segment:
        self.serving.load(self.learner.tensors())
        segment, self.observation = collect(self.body, self.serving, self.observation, steps, self.seed)
        return segment

    def update(self) -> dict[str, float]:
        return self.learner.update([self.collect()])


@pytest.fixture
def segment() -> Segment:
    return Loop(bodies=8).collect(40)


def assert_equal_weights(a: PPO, b: PPO, equal: bool = True) -> None:
    ours, theirs = a.tensors(), b.tensors()
    assert all(np.array_equal(ours[name], theirs[name]) for name in ours) == equal


def test_learns_to_reach_the_goal_from_nothing():
    loop = Loop()
    before = success(loop.serving)
    for _ in range(18):
        metrics = loop.update()
        assert metrics["learner/ratio_at_start"] == pytest.approx(1.0, abs=1e-5)
        assert metrics["learner/max_log_ratio_at_start"] < 1e-4
    loop.serving.load(loop.learner.tensors())
    assert before < 0.3
    assert success(loop.serving) >= 0.85


def test_one_seed_gives_one_result():
    loops = [Loop(), Loop(), Loop(replace(CONFIG, seed=2))]
    metrics = [[loop.update() for _ in range(3)][-1] for loop in loops]
    assert metrics[0] == metrics[1]
    assert_equal_weights(loops[0].learner, loops[1].learner)
    assert_equal_weights(loops[0].learner, loops[2].learner, equal=False)


def test_an_update_after_load_equals_one_without():
    loop = Loop()
    for _ in range(3):
        loop.update()
    file = io.BytesIO()
    torch.save(loop.learner.state(), file)
    file.seek(0)
    resumed = PPO(make_policy(5), CONFIG)
    state = torch.load(file, weights_only=True)
    resumed.load(state)
    assert_equal_weights(loop.learner, resumed)
    for _ in range(2):
        segment = loop.collect()
        assert loop.learner.update([segment]) == resumed.update([segment])
        assert_equal_weights(loop.learner, resumed)
    again = PPO(make_policy(6), CONFIG)
    again.load(state)
    assert again.updates == 3
    assert_equal_weights(again, resumed, equal=False)


def test_state_of_something_else_is_refused():
    learner, other = PPO(make_policy(), CONFIG), PPO(MLPPolicy("p", AGENT, hidden=(16,)), CONFIG)
    before = learner.tensors()
    with pytest.raises(CorruptFile, match="another spec"):
        learner.load(other.state())
    with pytest.raises(CorruptFile, match="another algorithm"):
        learner.load(other.state() | {"algorithm": "bc"})
    with pytest.raises(CorruptFile, match="no generator"):
        learner.load({name: value for name, value in learner.state().items() if name != "generator"})
    assert all(np.array_equal(before[name], array) for name, array in learner.tensors().items())


def test_the_normaliser_moves_after_the_update_only(segment: Segment):
    learner = PPO(make_policy(), CONFIG)
    assert learner.update([segment])["learner/max_log_ratio_at_start"] < 1e-4
    seen = np.concatenate([segment.observations["position"].reshape(-1, 2), segment.bootstrap["position"]])
    seen = np.concatenate([seen, segment.final["position"]])
    np.testing.assert_allclose(learner.tensors()["mean"][:2], seen.mean(axis=0), atol=1e-5)
    still = PPO(make_policy(), replace(CONFIG, normaliser_steps=0))
    still.update([segment])
    assert not still.tensors()["mean"].any()


def test_old_data_are_known_by_their_ratio(segment: Segment):
    other = PPO(make_policy(3), CONFIG)
    with torch.no_grad():
        other.network.actor[-1].bias += 0.3
    assert other.update([segment])["learner/max_log_ratio_at_start"] > 0.1


def test_what_may_not_train_changes_nothing(segment: Segment):
    segment.trainable[3, 2] = segment.trainable[10, 5] = False
    segment.source[20, 1] = Source.HUMAN
    config = replace(CONFIG, normaliser_steps=0)
    first, second = PPO(make_policy(), config), PPO(make_policy(), config)
    metrics = first.update([segment])
    assert metrics["learner/samples"] == segment.steps - 3
    for t, b in ((3, 2), (10, 5), (20, 1)):
        segment.rewards[t, b] = 1e9
        segment.actions[t, b] = segment.log_probs[t, b] = np.nan
    assert second.update([segment]) == metrics
    assert_equal_weights(first, second)


def test_nothing_that_may_train_is_no_step(segment: Segment):
    segment.trainable[:] = False
    learner = PPO(make_policy(), replace(CONFIG, normaliser_steps=0))
    before = learner.tensors()
    assert learner.update([segment])["learner/trainable_share"] == 0.0
    assert all(np.array_equal(before[name], array) for name, array in learner.tensors().items())


def test_two_segments_train_like_one_of_all_their_bodies():
    loops = Loop(bodies=8, seed=0), Loop(bodies=8, seed=1)
    segments = [loop.collect() for loop in loops]
    learner = PPO(make_policy(), CONFIG)
    assert learner.update(segments)["learner/samples"] == sum(segment.steps for segment in segments)


def test_a_cloned_actor_stands_still_while_its_critic_learns(segment: Segment):
    learner = PPO(make_policy(), replace(CONFIG, critic_only_updates=1, normaliser_steps=0))
    before = learner.tensors()
    learner.update([segment])
    after = learner.tensors()
    changed = {name.split(".")[0] for name in before if not np.array_equal(before[name], after[name])}
    assert changed == {"critic"}
    learner.update([segment])
    assert not np.array_equal(learner.tensors()["actor.0.weight"], after["actor.0.weight"])


@pytest.mark.parametrize("mode", ["evaluation", "demonstration"])
def test_segments_of_other_modes_are_refused(segment: Segment, mode: str):
    with pytest.raises(DataError, match=mode):
        PPO(make_policy(), CONFIG).update([replace(segment, mode=mode)])


def test_missing_log_probabilities_are_refused(segment: Segment):
    segment.log_probs[5, 5] = np.nan
    with pytest.raises(DataError, match="log-probability"):
        PPO(make_policy(), CONFIG).update([segment])


def test_chunks_of_several_actions_are_refused(segment: Segment):
    segment.k[1] = 1
    with pytest.raises(DataError, match="execute"):
        PPO(make_policy(), CONFIG).update([segment])


def test_a_loss_that_is_not_finite_is_stepped_over_and_counted_then_raises(segment: Segment):
    learner = PPO(make_policy(), replace(CONFIG, epochs=1, minibatches=8))
    segment.rewards[0, 0] = np.inf
    before = learner.tensors()
    metrics = learner.update([segment])
    assert metrics["learner/skipped_steps"] == 8
    assert np.array_equal(before["actor.0.weight"], learner.tensors()["actor.0.weight"])
    learner.update([segment])
    with pytest.raises(DataError, match="17 times in a row"):
        learner.update([segment])


@pytest.mark.parametrize("wrong", [{"epochs": 0}, {"gamma": 1.5}, {"lr": -1.0}, {"granularity": "word"}])
def test_a_wrong_config_is_refused(wrong: dict):
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        PPOConfig(**wrong)
