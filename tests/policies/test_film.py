"""The CNN-FiLM policy: the same row the same bits, noise from keys alone, and a critic that leaves the actor alone."""

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from embodied.data import Observation, Rows
from embodied.errors import ConfigError, DataError, SpecMismatch, WeightsRefused
from embodied.learning.bc import BCConfig, BehaviourCloning
from embodied.learning.ppo import PPO, PPOConfig
from embodied.spec import AgentSpec, PolicySpec, Stream
from policies.film import FiLMPolicy, build
from tests.policies.pictured import AGENT, demonstration, observe, segment, streams

SMALL: dict[str, Any] = {
    "chunk": 2, "state": ["position"], "channels": [8, 16, 16], "width": 16, "hidden": 32, "critic_hidden": [16],
    "words": {"vocabulary": 64, "length": 6},
}  # fmt: skip
ROWS = 41
LARGER = AgentSpec(
    tuple(replace(s, shape=(32, 32, 3)) if s.name == "front" else s for s in AGENT.observations), AGENT.actions
)


def make_policy(seed: int = 0, agent: AgentSpec = AGENT, **options: Any) -> FiLMPolicy:
    """A policy whose means differ from row to row."""
    policy = build(agent, name="p", seed=seed, **(SMALL | options))
    with torch.no_grad():
        policy.network.actor[-1].weight *= 100.0
    return policy


def assert_same_rows(chunk: object, whole: object, index: NDArray[np.int64]) -> None:
    for name in ("actions", "log_probs", "values"):
        np.testing.assert_array_equal(getattr(chunk, name), getattr(whole, name)[index], err_msg=name)


def test_rows_give_the_same_bits_in_any_batch_and_place():
    rng = np.random.default_rng(1)
    seen = streams(ROWS) | {"front": rng.integers(0, 256, (ROWS, 32, 32, 3), dtype=np.uint8)}
    policy, everything = make_policy(agent=LARGER), Observation(Rows.of_envs(ROWS), seen, np.zeros(ROWS))
    keys = everything.rows.noise_keys(3)
    whole = policy.act(everything, keys, "sample")
    assert whole.actions.shape == whole.log_probs.shape == (ROWS, 2, 3)
    assert np.isfinite(whole.values).all()
    for size in range(1, ROWS):
        index = rng.permutation(ROWS)[:size]
        assert_same_rows(policy.act(everything.take(index), keys[index], "sample"), whole, index)


def test_noise_comes_from_the_keys_alone():
    torch.manual_seed(0)
    state = torch.get_rng_state()
    policy, observation = make_policy(), observe(5)
    first = policy.act(observation, observation.rows.noise_keys(0), "sample")
    torch.manual_seed(1)
    again = make_policy().act(observation, observation.rows.noise_keys(0), "sample")
    np.testing.assert_array_equal(first.actions, again.actions)
    other = policy.act(observation, observation.rows.noise_keys(1), "sample")
    mean = policy.act(observation, observation.rows.noise_keys(0), "mean")
    assert not np.isclose(first.actions, other.actions).any()
    assert not np.isclose(first.actions, mean.actions).any()
    torch.manual_seed(0)
    make_policy().act(observation, observation.rows.noise_keys(0), "sample")
    assert torch.equal(state, torch.get_rng_state())


def test_other_words_give_other_actions_and_unseen_ones_do_no_harm():
    policy, observation = make_policy(), observe(3)
    keys = observation.rows.noise_keys(0)
    before = policy.act(observation, keys, "mean").actions
    observation.streams["instruction"][:] = observation.streams["instruction"][1]
    said = policy.act(observation, keys, "mean").actions
    assert (said[0] != before[0]).all() and (said[1] == before[1]).all()
    new = np.frombuffer("glorp zyx ÆØÅ 42".encode().ljust(24, b"\0"), np.uint8)
    observation.streams["instruction"][:] = new
    assert np.isfinite(policy.act(observation, keys, "sample").actions).all()


@pytest.mark.parametrize("critic", [[], ["goal"]])
def test_the_learner_judges_what_was_decided(critic: list[str]):
    policy, observation = make_policy(critic=critic, init_std=0.5), observe(20)
    keys = observation.rows.noise_keys(0)
    sample, mean = (policy.act(observation, keys, mode) for mode in ("sample", "mean"))
    z = (sample.actions.astype(float) - mean.actions) / [0.5, 0.5, 1.0] / 0.5
    expected = -0.5 * z**2 - np.log(0.5) - 0.5 * np.log(2 * np.pi)
    np.testing.assert_allclose(sample.log_probs, expected, atol=1e-4)
    inputs = policy.inputs(observation.streams, 20)
    evaluated = policy.network.evaluate_actions(inputs, torch.from_numpy(sample.actions), {})
    np.testing.assert_allclose(evaluated.log_probs.detach(), sample.log_probs, atol=1e-4)
    np.testing.assert_allclose(evaluated.entropy.detach(), 0.5 * np.log(2 * np.pi * np.e * 0.25), atol=1e-5)
    values = policy.network.value(inputs).detach()
    np.testing.assert_allclose(evaluated.values.detach(), values, atol=1e-5)
    if critic:
        assert np.isnan(sample.values).all() and torch.isfinite(values).all()
    else:
        np.testing.assert_allclose(sample.values, values, atol=1e-4)


@pytest.mark.parametrize("critic", [[], ["goal"]])
def test_the_value_reaches_the_critic_alone(critic: list[str]):
    network = (policy := make_policy(critic=critic)).network
    inputs, actions = policy.inputs(streams(4), 4), torch.zeros(4, 2, 3)
    for value in (network.value(inputs), network.evaluate_actions(inputs, actions, {}).values):
        network.zero_grad(set_to_none=True)
        value.square().sum().backward()
        assert {name.split(".")[0] for name, p in network.named_parameters() if p.grad is not None} == {"critic"}


@pytest.mark.parametrize("critic", [[], ["goal"]])
def test_critic_only_updates_leave_the_actor_and_then_all_of_it_learns(critic: list[str]):
    policy = make_policy(critic=critic)
    learner = PPO(policy, PPOConfig(epochs=1, minibatches=1, critic_only_updates=1, normaliser_steps=0))
    before = learner.tensors()
    learner.update([segment(policy, 4, 6)])
    between = learner.tensors()
    assert {n.split(".")[0] for n in before if not np.array_equal(before[n], between[n])} == {"critic"}
    metrics = learner.update([segment(policy, 4, 6, seed=1)])
    after = learner.tensors()
    changed = {n.split(".")[0] for n in between if not np.array_equal(between[n], after[n])}
    assert changed == {"actor", "critic", "eyes", "words", "points", "log_std"}
    assert metrics["learner/max_log_ratio_at_start"] < 1e-4
    assert metrics["learner/skipped_steps"] == 0


def test_it_learns_what_is_shown_and_said():
    policy = make_policy(chunk=1)
    with torch.no_grad():
        policy.network.actor[-1].weight *= 0.01
    learner = BehaviourCloning(policy, BCConfig(steps=100, batch=32, lr=3e-3))
    metrics = learner.fit([demonstration(40, seed) for seed in range(4)])
    assert metrics["learner/bc_loss"] < 0.3 * metrics["learner/bc_first_loss"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"chunk": 0}, "chunk cannot be 0"),
        ({"chunk": 2.5}, r"chunk cannot be 2\.5"),
        ({"chunk": 10**9}, "chunk cannot be 1000000000.*1 to 1024"),
        ({"execute": 3}, "execute 3"),
        ({"execute": -1}, "execute cannot be -1"),
        ({"width": 0}, "width"),
        ({"width": 18}, "multiple of 4"),
        ({"channels": []}, "channels"),
        ({"channels": [8, 0]}, "channels"),
        ({"critic_hidden": [0]}, "critic_hidden"),
        ({"init_std": 0.0}, "init_std"),
        ({"words": {"vocabulary": 1}}, "vocabulary"),
        ({"words": {"lenght": 1}}, "lenght"),
        ({"chanels": [8]}, "chanels"),
    ],
)
def test_a_wrong_config_is_refused_in_one_line(options: dict, said: str):
    with pytest.raises(ConfigError, match=said) as error:
        make_policy(**options)
    assert "\n" not in error.value.line()


def test_a_body_that_cannot_see_or_be_told_is_refused_with_what_mends_it():
    blind = AgentSpec(tuple(s for s in AGENT.observations if s.name != "front"), AGENT.actions)
    with pytest.raises(SpecMismatch, match=r"no picture.*env\.cameras"):
        make_policy(agent=blind)
    with pytest.raises(SpecMismatch, match=r"front.*env\.cameras"):
        make_policy(agent=blind, pictures=["front"])
    deaf = AgentSpec(tuple(s for s in AGENT.observations if s.name != "instruction"), AGENT.actions)
    with pytest.raises(SpecMismatch, match="stream instruction"):
        make_policy(agent=deaf)
    with pytest.raises(SpecMismatch, match="instruction"):
        make_policy(instruction="")
    with pytest.raises(SpecMismatch, match="stream token"):
        make_policy(agent=AgentSpec(AGENT.observations, (Stream("token", (1,), "int32"),)))


def test_an_instruction_without_a_word_is_refused_by_row():
    policy, observation = make_policy(), observe(3)
    observation.streams["instruction"][1] = 0
    for ask in (policy.check, lambda seen: policy.act(seen, seen.rows.noise_keys(0), "mean")):
        with pytest.raises(DataError, match=r"no word.*row 1"):
            ask(observation)


@pytest.mark.parametrize("damage", ["missing", "unknown", "shape", "dtype", "nan"])
def test_a_version_that_does_not_fit_is_refused_by_name(damage: str):
    policy, tensors, name = make_policy(), make_policy(1).tensors(), "eyes.front.layers.1.weight"
    before = policy.tensors()
    if damage == "missing":
        del tensors[name]
    elif damage == "unknown":
        tensors[name + "2"] = tensors[name]
    elif damage == "shape":
        tensors[name] = tensors[name][1:]
    elif damage == "dtype":
        tensors[name] = tensors[name].astype(np.float16)
    else:
        tensors[name][0] = np.nan
    with pytest.raises(WeightsRefused, match=f"tensor {name}"):
        policy.load(tensors)
    assert all(np.array_equal(before[n], array) for n, array in policy.tensors().items())


def test_its_spec_alone_makes_it_again():
    policy = make_policy(critic=["goal"])
    sent = PolicySpec.from_dict(json.loads(json.dumps(policy.spec.to_dict())))
    assert [stream.name for stream in sent.critic] == ["goal"]
    assert "goal" not in [stream.name for stream in sent.agent.observations]
    again = make_policy(1, sent.whole_agent, critic=["goal"])
    assert again.spec.to_dict() == policy.spec.to_dict()
    again.load(policy.tensors())
    assert make_policy().spec.whole_agent == make_policy().spec.agent
