"""The MLP policy: the same row gives the same bits in any batch, and a version is taken over whole or not at all."""

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from embodied.data import Observation, Rows
from embodied.errors import ConfigError, SpecMismatch, WeightsRefused
from embodied.spec import AgentSpec, Stream
from policies.mlp import MLPPolicy, build

AGENT = AgentSpec(
    observations=(
        Stream("joint_pos", (7,)),
        Stream("image", (8, 8, 3), "uint8"),
        Stream("depth", (8, 8)),
        Stream("pose", (6,)),
    ),
    actions=(Stream("delta", (3,), unit="m"), Stream("gripper", (1,))),
)


def make_policy(seed: int = 0) -> MLPPolicy:
    policy = MLPPolicy("p", AGENT, init_std=0.5, action_scale={"delta": 0.04}, seed=seed)
    generator = torch.Generator().manual_seed(1)
    policy.network.set_normaliser(torch.randn(13, generator=generator), 0.5 + torch.rand(13, generator=generator))
    with torch.no_grad():
        policy.network.actor[-1].weight *= 100.0
    return policy


def observe(count: int) -> Observation:
    rng = np.random.default_rng(0)
    streams = {
        "joint_pos": rng.normal(size=(count, 7)).astype(np.float32),
        "pose": rng.normal(size=(count, 6)).astype(np.float32),
    }
    return Observation(Rows.of_envs(count), streams, np.zeros(count))


def assert_same_rows(chunk: object, whole: object, index: NDArray[np.int64]) -> None:
    for name in ("actions", "log_probs", "values"):
        np.testing.assert_array_equal(getattr(chunk, name), getattr(whole, name)[index], err_msg=name)


def test_rows_give_the_same_bits_in_any_batch_and_place():
    policy, everything = make_policy(), observe(200)
    keys = everything.rows.noise_keys(3)
    whole = policy.act(everything, keys, "sample")
    assert whole.actions.shape == whole.log_probs.shape == (200, 1, 4)
    assert whole.values.shape == (200,)
    rng = np.random.default_rng(1)
    for size in range(1, 201):
        index = rng.permutation(200)[:size]
        assert_same_rows(policy.act(everything.take(index), keys[index], "sample"), whole, index)


def test_noise_comes_from_the_keys_alone():
    policy, observation = make_policy(), observe(5)
    torch.manual_seed(0)
    first = policy.act(observation, observation.rows.noise_keys(0), "sample")
    state = torch.get_rng_state()
    again = policy.act(observation, observation.rows.noise_keys(0), "sample")
    other = policy.act(observation, observation.rows.noise_keys(1), "sample")
    mean = policy.act(observation, observation.rows.noise_keys(0), "mean")
    np.testing.assert_array_equal(first.actions, again.actions)
    assert not np.isclose(first.actions, other.actions).any()
    assert not np.isclose(first.actions, mean.actions).any()
    MLPPolicy("p", AGENT, seed=1)
    assert torch.equal(state, torch.get_rng_state())


def test_log_probs_are_of_the_raw_action():
    policy, observation = make_policy(), observe(50)
    keys = observation.rows.noise_keys(0)
    sample, mean = (policy.act(observation, keys, mode) for mode in ("sample", "mean"))
    scale = np.array([0.04, 0.04, 0.04, 1.0])
    z = (sample.actions.astype(float) - mean.actions) / scale / 0.5
    expected = -0.5 * z**2 - np.log(0.5) - 0.5 * np.log(2 * np.pi)
    np.testing.assert_allclose(sample.log_probs, expected, atol=1e-4)
    evaluated = policy.network.evaluate_actions(
        policy.inputs(observation.streams, 50), torch.from_numpy(sample.actions), {}
    )
    np.testing.assert_allclose(evaluated.log_probs.detach().numpy(), sample.log_probs, atol=1e-5)
    np.testing.assert_allclose(evaluated.values.detach().numpy(), sample.values, atol=1e-5)
    np.testing.assert_allclose(evaluated.entropy.detach().numpy(), 0.5 * np.log(2 * np.pi * np.e * 0.25), atol=1e-5)


def test_a_version_round_trips_exactly():
    ours, theirs, observation = make_policy(0), make_policy(1), observe(9)
    keys = observation.rows.noise_keys(0)
    theirs.load(ours.tensors())
    assert_same_rows(theirs.act(observation, keys, "sample"), ours.act(observation, keys, "sample"), np.arange(9))
    copies = ours.tensors()
    copies["log_std"] += 1.0
    assert ours.tensors()["log_std"][0] != copies["log_std"][0]


@pytest.mark.parametrize("damage", ["missing", "unknown", "shape", "dtype", "nan"])
def test_a_version_that_does_not_fit_is_refused_by_name(damage: str):
    policy, tensors = make_policy(0), make_policy(1).tensors()
    before = policy.tensors()
    if damage == "missing":
        del tensors["std"]
    elif damage == "unknown":
        tensors["std2"] = tensors["std"]
    elif damage == "shape":
        tensors["std"] = tensors["std"][:-1]
    elif damage == "dtype":
        tensors["std"] = tensors["std"].astype(np.float64)
    else:
        tensors["std"][3] = np.nan
    with pytest.raises(WeightsRefused, match="tensor std"):
        policy.load(tensors)
    for name, tensor in policy.tensors().items():
        np.testing.assert_array_equal(tensor, before[name])


def test_the_spec_holds_what_the_policy_uses():
    spec = make_policy().spec
    assert [stream.name for stream in spec.agent.observations] == ["joint_pos", "pose"]
    assert spec.agent.actions == AGENT.actions
    assert spec.extra["action_scale"] == [0.04, 0.04, 0.04, 1.0]
    assert build(AGENT, name="p", action_scale={"delta": 0.04}, hidden=[128, 128]).spec == spec


@pytest.mark.parametrize(
    "config",
    [{"hiden": [64]}, {"hidden": [0]}, {"init_std": 0.0}, {"action_scale": {"griper": 1.0}}, {"action_scale": -1.0}],
)
def test_a_wrong_config_is_refused(config: dict):
    with pytest.raises(ConfigError):
        build(AGENT, name="p", **config)


def test_streams_that_do_not_fit_are_refused_by_name():
    policy, observation = make_policy(), observe(3)
    keys = observation.rows.noise_keys(0)
    with pytest.raises(SpecMismatch, match="pose"):
        policy.act(
            Observation(observation.rows, {"joint_pos": observation.streams["joint_pos"]}, observation.time),
            keys,
            "mean",
        )
    with pytest.raises(SpecMismatch):
        MLPPolicy("p", AgentSpec((AGENT.observations[1],), AGENT.actions))
    with pytest.raises(SpecMismatch):
        MLPPolicy("p", AgentSpec(AGENT.observations, (Stream("token", (1,), "int32"),)))
