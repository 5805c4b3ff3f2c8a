"""The flow policy: decisions that no batch changes, densities of the stored path, and cloning of two modes."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from embodied.data import ActionChunk, Observation, Rows
from embodied.errors import ConfigError, SpecMismatch, WeightsRefused
from embodied.learning.learner import Optimiser
from embodied.spec import AgentSpec, Stream
from policies.flow import FlowPolicy, build

AGENT = AgentSpec(
    observations=(
        Stream("joint_pos", (3,)),
        Stream("front_rgb", (18, 24, 3), "uint8"),
        Stream("wrist_rgb", (16, 16, 3), "uint8"),
        Stream("instruction", (32,), "uint8"),
        Stream("goal", (2,)),
    ),
    actions=(Stream("delta", (2,), unit="m", limit=0.04), Stream("gripper", (1,))),
)
SIZES: dict[str, Any] = {"channels": [8, 16], "width": 16, "expert_width": 16, "heads": 2, "critic_hidden": [16]}
SENTENCES = (b"reach the red cube", b"touch blue", b"go to the cube that is green")


def make_policy(seed: int = 0, **more: Any) -> FlowPolicy:
    policy = build(AGENT, name="p", state=["joint_pos"], chunk=3, seed=seed, **{**SIZES, **more})
    with torch.no_grad():
        policy.network.expert.velocity.weight *= 50.0  # begins near zero
    return policy


def observe(count: int) -> Observation:
    rng = np.random.default_rng(0)
    words = np.zeros((count, 32), np.uint8)
    for row in words:
        sentence = SENTENCES[rng.integers(3)]
        row[: len(sentence)] = list(sentence)
    streams: dict[str, NDArray[Any]] = {
        "joint_pos": rng.normal(size=(count, 3)).astype(np.float32),
        "front_rgb": rng.integers(0, 256, (count, 18, 24, 3), np.uint8),
        "wrist_rgb": rng.integers(0, 256, (count, 16, 16, 3), np.uint8),
        "instruction": words,
        "goal": rng.normal(size=(count, 2)).astype(np.float32),
    }
    return Observation(Rows.of_envs(count), streams, np.zeros(count))


def assert_same_rows(chunk: ActionChunk, whole: ActionChunk, index: NDArray[np.int64] | slice) -> None:
    for name in ("actions", "log_probs", "values"):
        np.testing.assert_array_equal(getattr(chunk, name), getattr(whole, name)[index], err_msg=name)
    assert chunk.stored.keys() == whole.stored.keys()
    for name, array in chunk.stored.items():
        np.testing.assert_array_equal(array, whole.stored[name][index])


@pytest.mark.parametrize("mode", ["sample", "mean"])
def test_rows_give_the_same_bits_in_any_batch_and_place(mode: Any):
    policy, everything = make_policy(), observe(40)
    keys = everything.rows.noise_keys(3)
    whole = policy.act(everything, keys, mode)
    assert whole.actions.shape == whole.log_probs.shape == (40, 3, 3)
    assert np.isfinite(whole.actions).all() and np.isfinite(whole.values).all()
    rng = np.random.default_rng(1)
    for size in (1, 2, 15, 16, 17, 33, 40):
        index = rng.permutation(40)[:size]
        assert_same_rows(policy.act(everything.take(index), keys[index], mode), whole, index)


def test_noise_comes_from_the_keys_alone():
    torch.manual_seed(0)
    state = torch.get_rng_state()
    policy, observation = make_policy(), observe(5)
    first, again, other = (policy.act(observation, observation.rows.noise_keys(seed), "sample") for seed in (0, 0, 1))
    assert torch.equal(state, torch.get_rng_state())
    assert_same_rows(first, again, slice(None))
    assert not np.isclose(first.actions, other.actions).any()
    means = [policy.act(observation, observation.rows.noise_keys(seed), "mean") for seed in (0, 1)]
    assert_same_rows(*means, slice(None))
    assert means[0].stored == {}
    assert np.isnan(means[0].log_probs).all()


def test_the_path_leads_from_the_drawn_noise_to_the_action():
    policy, observation = make_policy(steps=5), observe(6)
    keys = observation.rows.noise_keys(0)
    chunk = policy.act(observation, keys, "sample")
    path = chunk.stored["path"]
    assert [stream.name for stream in policy.spec.stored] == ["path"]
    assert path.shape == (6, *policy.spec.stored[0].shape) == (6, 6, 3, 3)
    np.testing.assert_array_equal(path[:, 0], policy.network.sample_noise(keys)[:, 0])
    np.testing.assert_allclose(path[:, -1] * [0.04, 0.04, 1.0], chunk.actions, rtol=1e-6)


def test_the_learner_finds_the_log_probabilities_of_the_rollout():
    policy, observation = make_policy(), observe(37)
    chunk = policy.act(observation, observation.rows.noise_keys(0), "sample")
    inputs = policy.inputs(observation.streams, 37)
    stored = {"path": torch.from_numpy(chunk.stored["path"])}
    evaluated = policy.network.evaluate_actions(inputs, torch.from_numpy(chunk.actions), stored)
    np.testing.assert_allclose(evaluated.log_probs.detach(), chunk.log_probs, atol=1e-5)
    np.testing.assert_allclose(evaluated.values.detach(), chunk.values, atol=1e-5)
    np.testing.assert_allclose(policy.network.value(inputs).detach(), chunk.values, atol=1e-5)
    assert evaluated.entropy.shape == (37, 3, 3)
    assert not evaluated.entropy.requires_grad
    evaluated.log_probs.sum().backward()
    assert all(p.grad is not None for name, p in policy.network.named_parameters() if not name.startswith("critic"))


def test_log_probabilities_are_the_densities_of_each_step_in_numpy():
    policy, observation = make_policy(noise=0.5, steps=3), observe(4)
    net, chunk = policy.network, policy.act(observation, observation.rows.noise_keys(0), "sample")
    path = chunk.stored["path"].astype(float)
    with torch.no_grad():
        layers, there = net.reader(policy.inputs(observation.streams, 4))
        memory, expected = net.expert.remember(layers), np.zeros((4, 3, 3))
        for i, t in enumerate((1.0, 2 / 3, 1 / 3)):
            x = torch.from_numpy(chunk.stored["path"][:, i : i + 1])
            v = net.expert(x, torch.tensor([t]), memory, there)[:, 0].double().numpy()
            variance = 0.25 * t / (1 - t if t < 1 else 1 / 3) / 3
            mean = path[:, i] - v / 3 - variance / (2 * t) * (path[:, i] + (1 - t) * v)
            expected -= (path[:, i + 1] - mean) ** 2 / (2 * variance) + 0.5 * np.log(2 * np.pi * variance)
    np.testing.assert_allclose(chunk.log_probs, expected, atol=1e-4)


def test_the_mode_is_where_the_equation_without_noise_leads_from_zero():
    policy, observation = make_policy(), observe(4)
    net = policy.network
    with torch.no_grad():
        layers, there = net.reader(policy.inputs(observation.streams, 4))
        x = torch.zeros(4, 1, 3, 3)
        for t in (1.0, 0.75, 0.5, 0.25):
            x = x - 0.25 * net.expert(x, torch.tensor([t]), net.expert.remember(layers), there)
    found = policy.act(observation, observation.rows.noise_keys(0), "mean").actions
    np.testing.assert_allclose(found, (x[:, 0] * net.action_scale).numpy(), atol=1e-6)
    assert np.abs(found).max() > 1e-3


def test_noisy_chunks_side_by_side_know_nothing_of_each_other():
    policy, observation = make_policy(), observe(3)
    net, generator = policy.network, torch.Generator().manual_seed(0)
    layers, there = net.reader(policy.inputs(observation.streams, 3))
    memory = net.expert.remember(layers)
    x, time = torch.randn(3, 4, 3, 3, generator=generator), torch.rand(3, 4, generator=generator)
    together = net.expert(x, time, memory, there)
    for i in range(4):
        alone = net.expert(x[:, i : i + 1], time[:, i : i + 1], memory, there)
        torch.testing.assert_close(together[:, i : i + 1], alone, atol=1e-5, rtol=1e-5)


def test_pictures_words_and_state_matter_and_empty_words_do_not():
    policy, observation = make_policy(), observe(4)
    keys = observation.rows.noise_keys(0)
    before = policy.act(observation, keys, "mean").actions
    for name in ("joint_pos", "front_rgb", "wrist_rgb", "instruction"):
        streams = dict(observation.streams) | {name: np.roll(observation.streams[name], 1, axis=0)}
        changed = policy.act(Observation(observation.rows, streams, observation.time), keys, "mean").actions
        assert np.abs(changed - before).max() > 1e-6, name
    with torch.no_grad():
        policy.network.reader.words.embedding.weight[0] += 1.0
    np.testing.assert_array_equal(policy.act(observation, keys, "mean").actions, before)


def test_a_critic_of_its_own_streams_is_silent_where_they_are_missing():
    policy, observation = make_policy(critic=["goal"]), observe(4)
    assert np.isnan(policy.act(observation, observation.rows.noise_keys(0), "sample").values).all()
    assert not policy.network.value_reads_rest
    values = policy.network.value(policy.inputs(observation.streams, 4, rest=False))
    assert values.shape == (4,) and values.isfinite().all()


@pytest.mark.parametrize("critic", [(), ("goal",)])
def test_the_value_teaches_the_critic_alone(critic: tuple[str, ...]):
    policy, observation = make_policy(critic=critic), observe(4)
    policy.network.value(policy.inputs(observation.streams, 4)).sum().backward()
    learning = {name.split(".")[0] for name, p in policy.network.named_parameters() if p.grad is not None}
    assert learning == {"critic"}


def test_a_version_round_trips_exactly():
    ours, theirs, observation = make_policy(0), make_policy(1), observe(9)
    keys = observation.rows.noise_keys(0)
    mine = ours.act(observation, keys, "sample")
    assert not np.isclose(theirs.act(observation, keys, "sample").actions, mine.actions).all()
    theirs.load(ours.tensors())
    assert_same_rows(theirs.act(observation, keys, "sample"), mine, slice(None))
    wrong = ours.tensors()
    del wrong["expert.velocity.weight"]
    with pytest.raises(WeightsRefused, match=r"tensor expert\.velocity\.weight is missing"):
        theirs.load(wrong)


def test_one_seed_gives_one_policy():
    first, again = make_policy(3).tensors(), make_policy(3).tensors()
    assert all(np.array_equal(array, again[name]) for name, array in first.items())


def test_the_spec_tells_policies_apart_that_sample_differently():
    spec = make_policy().spec
    assert spec.extra["action_scale"] == pytest.approx([0.04, 0.04, 1.0])
    assert make_policy(5).spec == spec
    for change in ({"noise": 0.4}, {"steps": 5}, {"layers": 1}, {"heads": 1}, {"words": {"vocabulary": 64}}):
        assert make_policy(**change).spec != spec


@pytest.mark.parametrize(
    "config",
    [{"widht": 8}, {"width": 18}, {"heads": 3}, {"steps": 1}, {"noise": 0.0}, {"noise": math.nan}, {"execute": 4},
     {"chunk": 0, "execute": 0}, {"chunk": 2.5}, {"chunk": 10**9}, {"layers": 0}, {"times": 0}, {"channels": []}],
)  # fmt: skip
def test_a_wrong_config_is_refused(config: dict[str, Any]):
    with pytest.raises(ConfigError):
        build(AGENT, **{"name": "p", "chunk": 3, **SIZES, **config})


def test_streams_that_do_not_fit_are_refused_by_name():
    blind = AgentSpec((AGENT.observations[0], AGENT.observations[3]), AGENT.actions)
    with pytest.raises(SpecMismatch, match=r"no picture.*env\.cameras"):
        build(blind, name="p", state=["joint_pos"])
    with pytest.raises(SpecMismatch, match="reads nothing"):
        build(blind, name="p", pictures=[], instruction=None)
    with pytest.raises(SpecMismatch, match="joint_pso"):
        build(AGENT, name="p", state=["joint_pso"])


def test_a_clone_of_two_modes_samples_both():
    """Actions are left-left or right-right with equal chance: a mean would be neither, mixed modes would be wrong."""
    agent = AgentSpec((Stream("s", (1,)),), (Stream("a", (1,)),))
    policy = FlowPolicy(
        "p", agent, chunk=2, state=["s"], pictures=[], instruction=None, width=16, expert_width=32, layers=1, heads=2,
        steps=6, noise=0.2, times=8,
    )  # fmt: skip
    net, generator = policy.network, torch.Generator().manual_seed(0)
    optimiser = Optimiser(net.parameters(), 3e-3, 1.0)
    inputs, losses = {"state": torch.zeros(32, 1)}, []
    for _ in range(250):
        side = torch.randint(2, (32, 1, 1), generator=generator) * 2.0 - 1.0
        actions = 0.7 * side + 0.05 * torch.randn(32, 2, 1, generator=generator)
        loss = net.clone_loss(inputs, actions, generator)
        assert loss.shape == (32, 2)
        losses.append(loss.mean().item())
        optimiser.step(loss.mean())
    assert np.mean(losses[-50:]) < 0.6 * np.mean(losses[:10])
    observation = Observation(Rows.of_envs(200), {"s": np.zeros((200, 1), np.float32)}, np.zeros(200))
    samples = policy.act(observation, observation.rows.noise_keys(0), "sample").actions[..., 0]
    right, left = ((np.abs(samples - side * 0.7) < 0.35).all(axis=1).mean() for side in (1, -1))
    assert right > 0.35 and left > 0.35 and right + left > 0.9
