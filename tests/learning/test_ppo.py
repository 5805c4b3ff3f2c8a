"""PPO: learns, repeats bit for bit, resumes bit for bit, and refuses what it may not learn from."""

import io
import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from embodied.data import Observation, Segment, Source
from embodied.errors import ConfigError, CorruptFile, DataError
from embodied.learning.batch import Batch, assemble
from embodied.learning.decisions import decisions, on_policy
from embodied.learning.ppo import PPO, PPOConfig
from embodied.weights.manifest import Version
from policies.mlp import MLPPolicy
from policies.torch_policy import TorchPolicy
from simulators.one_agent import OneAgentEnv
from tests.learning.chunks import chunk_policy, draw_segment
from tests.learning.pointmass import AGENT, PointMass, collect, success

CONFIG = PPOConfig(epochs=4, lr=1e-3, seed=1)


def make_policy(seed: int = 0) -> MLPPolicy:
    return MLPPolicy("p", AGENT, hidden=(32, 32), seed=seed)


class Loop:
    """A env, the policy that serves, and the learner's own one."""

    def __init__(self, config: PPOConfig = CONFIG, seed: int = 0, envs: int = 64) -> None:
        self.learner, self.serving, self.seed = PPO(make_policy(seed), config), make_policy(), seed
        self.env = PointMass(envs, seed=seed)
        self.observation: Observation = OneAgentEnv(self.env).reset()[0]

    def collect(self, steps: int = 16) -> Segment:
        self.serving.load(self.learner.tensors())
        segment, self.observation = collect(self.env, self.serving, self.observation, steps, self.seed)
        return segment

    def update(self) -> dict[str, float]:
        return self.learner.update([self.collect()])


@pytest.fixture
def segment() -> Segment:
    return Loop(envs=8).collect(40)


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
    state = learner.state()
    for damaged in ({}, state["model"] | {"log_std": torch.full((2,), torch.nan)}):
        with pytest.raises(CorruptFile, match="weights do not fit"):
            learner.load(state | {"model": damaged})
    with pytest.raises(CorruptFile, match="weights cannot be read"):
        learner.load(state | {"model": {"log_std": 3}})
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
    loops = Loop(envs=8, seed=0), Loop(envs=8, seed=1)
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


def decide(policy: TorchPolicy, segment: Segment, seed: int) -> Segment:
    """The segment with decisions of `policy` on its observations."""
    decided = segment.k == 0
    inputs = policy.inputs({"x": segment.observations["x"][decided]}, int(decided.sum()))
    noise = torch.randn(len(inputs["state"]), policy.spec.chunk, 2, generator=torch.Generator().manual_seed(seed))
    with torch.no_grad():
        made = policy.network.sample(inputs, noise)
    segment.actions[decided], segment.log_probs[decided] = made.actions.numpy(), made.log_probs.numpy()
    segment.versions[:] = 0
    return segment


@pytest.mark.parametrize("granularity", ["token", "action", "chunk"])
@pytest.mark.parametrize("correction", ["none", "truncated", "masked"])
def test_chunks_of_several_actions_train_what_was_executed(granularity: str, correction: str):
    """Actions that a fault, a takeover or an episode's end kept from being executed change nothing."""
    config = replace(CONFIG, granularity=granularity, correction=correction, per_dimension=True, normaliser_steps=0)
    first, second = (PPO(chunk_policy(3, 2), config) for _ in range(2))
    segment = decide(chunk_policy(3, 2), draw_segment(5, 12, 6, 3, 2), 0)
    found, executed = decisions(segment, on_policy(segment)), np.zeros_like(segment.executed)
    executed[found.answered, found.b] = found.executed
    before = first.tensors()
    metrics = first.update([segment])
    assert metrics["learner/ratio_at_start"] == pytest.approx(1.0, abs=1e-5)
    assert metrics["learner/trainable_share"] == pytest.approx(executed.sum() / segment.steps)
    assert metrics["learner/skipped_steps"] == 0
    assert not np.array_equal(before["actor.0.weight"], first.tensors()["actor.0.weight"])
    segment.actions[~executed] = segment.log_probs[~executed] = np.nan
    second.update([segment])
    assert_equal_weights(first, second)


def test_the_importance_weight_enters_the_gradient(segment: Segment):
    """Twice as likely now as when decided: all weights are 2, and so are the gradients of the policy's loss."""
    config = replace(CONFIG, epochs=1, minibatches=1, correction="truncated", truncate_at=5.0, target_kl=0)
    segment.log_probs -= np.float32(math.log(2.0) / 2)  # two numbers make an action

    def gradient(correction: str, shift: float) -> np.ndarray:
        learner = PPO(make_policy(), replace(config, correction=correction))
        moved = replace(segment, log_probs=segment.log_probs + np.float32(shift))
        batch, _ = assemble(learner.policy, [moved], 0.9, 0.9)
        evaluated = learner._evaluate_all(batch)
        batch, found = learner._corrected(batch, evaluated)
        if correction != "none":
            assert found["importance_ratio"] == pytest.approx(math.exp(-2 * shift) * 2, rel=1e-4)
        learner._loss(batch).backward()
        return learner.network.actor[0].weight.grad.numpy()

    even = gradient("none", math.log(2.0) / 2)
    assert np.abs(even).max() > 1e-5
    np.testing.assert_allclose(gradient("truncated", 0.0), 2.0 * even, rtol=1e-3, atol=1e-8)
    np.testing.assert_allclose(gradient("masked", 0.0), 2.0 * even, rtol=1e-3, atol=1e-8)
    np.testing.assert_allclose(gradient("truncated", math.log(2.0) / 2), even, rtol=1e-3, atol=1e-8)
    assert not gradient("truncated", 6.0).any()  # vetoed


def test_corrected_data_of_the_present_version_train_as_uncorrected(segment: Segment):
    plain, weighed = PPO(make_policy(), CONFIG), PPO(make_policy(), replace(CONFIG, correction="truncated"))
    plain.update([segment])
    metrics = weighed.update([segment])
    assert metrics["learner/importance_ratio"] == pytest.approx(1.0, abs=1e-4)
    assert metrics["learner/importance_ess"] == pytest.approx(1.0, abs=1e-4)
    assert metrics["learner/importance_masked"] == metrics["learner/importance_alerts"] == 0
    ours, theirs = plain.tensors(), weighed.tensors()
    np.testing.assert_allclose(ours["actor.0.weight"], theirs["actor.0.weight"], atol=1e-3)


def test_what_needs_no_gradient_is_never_touched(segment: Segment):
    policy = make_policy()
    policy.network.log_std.requires_grad_(False)
    policy.network.actor[0].requires_grad_(False)
    before = policy.tensors()
    learner = PPO(policy, replace(CONFIG, normaliser_steps=0))
    learner.update([segment])
    after = policy.tensors()
    still = {name for name in before if np.array_equal(before[name], after[name])}
    assert still == {"mean", "std", "action_scale", "log_std", "actor.0.weight", "actor.0.bias"}
    with pytest.raises(CorruptFile, match=r"optimiser's state is of \d+ parameters, not of \d+") as caught:
        learner.load(trained_state(segment))
    assert "\n" not in caught.value.line()
    assert all(np.array_equal(after[name], array) for name, array in policy.tensors().items())
    policy.network.requires_grad_(False)
    with pytest.raises(ConfigError, match="no parameter to train"):
        PPO(policy, CONFIG)


def trained_state(segment: Segment) -> dict:
    """Of a learner that trains every parameter."""
    learner = PPO(make_policy(), CONFIG)
    learner.update([segment])
    return learner.state()


def test_a_state_holds_the_tensors_of_the_policy(segment: Segment):
    state, damaged = trained_state(segment), trained_state(segment)
    learner = PPO(make_policy(3), CONFIG)
    learner.load(state)
    assert state["model"].keys() == learner.tensors().keys()
    assert all(np.array_equal(state["model"][name].numpy(), array) for name, array in learner.tensors().items())
    del damaged["optimiser"]["adam"]["state"][0]["exp_avg"]
    with pytest.raises(CorruptFile, match="optimiser's state cannot be read"):
        learner.load(damaged)


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


@pytest.mark.parametrize("granularity", ["token", "action", "chunk"])
@pytest.mark.parametrize("size", [1, 5, 1000])
def test_parts_of_a_minibatch_have_its_gradient(granularity: str, size: int) -> None:
    """Faults and takeovers leave decisions with other numbers of executed actions, which the means have to mind."""
    config = PPOConfig(granularity=granularity, correction="truncated", entropy=0.1, reference_kl=0.5)
    segment = decide(chunk_policy(3, 2), draw_segment(5, 12, 6, 3, 2), 0)
    norms, gradients = [], []
    for cut in (0, size):
        learner = PPO(chunk_policy(3, 2), replace(config, micro_batch=cut))
        learner.published(Version(0, "a" * 12))
        with torch.no_grad():
            learner.network.actor[-1].bias += 0.05
        batch, _ = assemble(learner.policy, [segment], 0.9, 0.9, learner.at_once)
        batch, _ = learner._corrected(batch, learner._evaluate_all(batch))
        batch = learner._compared(batch)
        assert len(batch.executed.sum(1).unique()) > 1
        norms.append(learner.optimiser.step(learner._losses(batch, torch.arange(1, len(batch)))))
        gradients.append([p.grad.clone() for p in learner.network.parameters()])
    assert norms[1] == pytest.approx(norms[0], rel=1e-4)
    for whole, parts in zip(*gradients, strict=True):
        assert torch.allclose(whole, parts, rtol=1e-4, atol=1e-6)


def test_no_pass_through_the_network_takes_more_than_a_micro_batch(segment: Segment) -> None:
    sizes = []
    learner = PPO(make_policy(), replace(CONFIG, epochs=1, minibatches=2, micro_batch=7))
    learner.network.critic.register_forward_hook(lambda module, given, made: sizes.append(len(given[0])))
    metrics = learner.update([segment])
    assert max(sizes) == 7 and metrics["learner/skipped_steps"] == 0
    whole = PPO(make_policy(), replace(CONFIG, epochs=1, minibatches=2))
    assert metrics["learner/kl"] == pytest.approx(whole.update([segment])["learner/kl"], rel=0.01)
    np.testing.assert_allclose(learner.tensors()["critic.0.weight"], whole.tensors()["critic.0.weight"], atol=1e-4)


def test_a_minibatch_alone_is_gathered(segment: Segment, monkeypatch: pytest.MonkeyPatch) -> None:
    learner, taken = PPO(make_policy(), replace(CONFIG, epochs=2, minibatches=4)), []
    take = Batch.take
    monkeypatch.setattr(Batch, "take", lambda batch, index: taken.append(len(index)) or take(batch, index))
    learner.update([segment])
    assert taken == [segment.steps // 4] * 8


def test_a_part_of_a_minibatch_that_is_not_finite_skips_its_step(segment: Segment) -> None:
    learner = PPO(make_policy(), replace(CONFIG, epochs=1, minibatches=1, micro_batch=64))
    before = learner.tensors()
    batch, _ = assemble(learner.policy, [segment], 0.9, 0.9)
    batch.returns[100] = torch.nan
    assert math.isnan(learner.optimiser.step(learner._losses(batch, torch.arange(len(batch)))))
    assert learner.optimiser.skipped == 1
    assert all(np.array_equal(before[name], array) for name, array in learner.tensors().items())


def test_sensors_that_fail_at_a_fault_skip_no_step(segment: Segment) -> None:
    fault = (20, 3)
    segment.trainable[fault], segment.truncated[fault], segment.terminated[fault] = False, True, False
    segment.final_at = np.concatenate([segment.final_at, [fault]]).astype(np.int32)
    segment.final = {name: np.concatenate([array, array[:1]]) for name, array in segment.final.items()}
    expected, _ = assemble(make_policy(), [segment], 0.9, 0.9)
    for name in ("position", "goal"):
        segment.observations[name][fault] = np.nan
    batch, _ = assemble(make_policy(), [segment], 0.9, 0.9)
    assert len(batch) == len(expected) - 1
    learner = PPO(make_policy(), CONFIG)
    metrics = learner.update([segment])
    assert metrics["learner/skipped_steps"] == 0 and metrics["learner/samples"] == len(batch)
    assert all(math.isfinite(value) for value in metrics.values())
    assert all(np.isfinite(array).all() for array in learner.tensors().values())
