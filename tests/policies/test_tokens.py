"""The token policy: probabilities of exactly what was sampled, the same row the same bits, and a seam for engines."""

import json
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from transformers import Qwen2Config, Qwen2ForCausalLM

from embodied import noise
from embodied.data import Observation
from embodied.errors import ConfigError, DataError, SpecMismatch, WeightsRefused
from embodied.learning.bc import BCConfig, BehaviourCloning
from embodied.learning.ppo import PPO, PPOConfig
from embodied.serving.versioned_policy import VersionedPolicy
from embodied.spec import AgentSpec
from policies import bins
from policies.mlp import ACTION_NOISE
from policies.tokens import TokenPolicy, build
from tests.policies.pictured import AGENT, demonstration, observe, segment

SMALL: dict[str, Any] = {
    "token_dropout": 0.0,
    "chunk": 2, "state": ["position"], "bins": 9, "width": 16, "layers": 2, "heads": 2, "kv_heads": 1, "ff": 32,
    "channels": [4, 8, 8], "vision_layers": 1, "block": 4, "words": {"vocabulary": 64, "length": 6},
}  # fmt: skip
TOKENS, ROWS = 6, 11
ONE = torch.tensor([1])


def make_policy(seed: int = 0, **options: Any) -> TokenPolicy:
    """A policy whose distributions are far from uniform."""
    policy = build(AGENT, name="p", seed=seed, **(SMALL | options))
    with torch.no_grad():
        policy.network.decoder.lm_head.weight *= 100.0
        policy.network.decoder.model.embed_tokens.weight *= 50.0
    return policy


def assert_same_rows(chunk: object, whole: object, index: NDArray[np.int64]) -> None:
    for name in ("actions", "log_probs", "values"):
        np.testing.assert_array_equal(getattr(chunk, name), getattr(whole, name)[index], err_msg=name)


def test_rows_give_the_same_bits_in_any_batch_and_place():
    policy, everything = make_policy(), observe(ROWS)
    keys = everything.rows.noise_keys(3)
    whole = policy.act(everything, keys, "sample")
    assert whole.actions.shape == whole.log_probs.shape == (ROWS, 2, 3)
    assert np.isfinite(whole.values).all()
    rng = np.random.default_rng(1)
    for size in range(1, ROWS + 1):
        index = rng.permutation(ROWS)[:size]
        assert_same_rows(policy.act(everything.take(index), keys[index], "sample"), whole, index)


def test_noise_comes_from_the_keys_alone():
    torch.manual_seed(0)
    state = torch.get_rng_state()
    policy, observation = make_policy(), observe(5)
    assert torch.equal(state, torch.get_rng_state())
    first = policy.act(observation, observation.rows.noise_keys(0), "sample")
    torch.manual_seed(7)
    twin = make_policy().act(observation, observation.rows.noise_keys(0), "sample")
    other = policy.act(observation, observation.rows.noise_keys(1), "sample")
    assert_same_rows(first, twin, np.arange(5))
    assert (first.actions != other.actions).any()  # sharp distributions: most rows say the same


def test_samples_and_log_probs_are_those_of_an_independent_softmax():
    policy, observation = make_policy(), observe(ROWS)
    net, keys = policy.network, observation.rows.noise_keys(5)
    uniforms = noise.uniform(keys, TOKENS, ACTION_NOISE)
    with torch.no_grad():
        prompt = net.prompt(policy.inputs(observation.streams, ROWS))
    table = net.decoder.model.embed_tokens.weight.detach()
    for mode in ("sample", "mean"):
        made = policy.act(observation, keys, mode)
        for row in range(ROWS):
            embeds = prompt[row]
            for i in range(TOKENS):
                with torch.no_grad():
                    logits = net.decoder(inputs_embeds=embeds[None]).logits[0, -1].double().numpy()
                p = np.exp(logits - logits.max())
                p /= p.sum()
                token = int(
                    np.searchsorted(np.cumsum(p), uniforms[row, i], "right") if mode == "sample" else p.argmax()
                )
                at = (row, *divmod(i, 3))
                scale = [0.5, 0.5, 1.0][at[2]]
                assert made.actions[at] == pytest.approx((-1 + 2 * token / 8) * scale, abs=1e-6)
                assert made.log_probs[at] == pytest.approx(np.log(p[token]), abs=1e-5)
                embeds = torch.cat([embeds, table[token][None]])


def test_a_learner_finds_the_probabilities_that_the_actor_had():
    policy, observation = make_policy(critic=["goal"]), observe(ROWS)
    made = policy.act(observation, observation.rows.noise_keys(0), "sample")
    assert np.isnan(made.values).all()
    inputs = policy.inputs(observation.streams, ROWS)
    actions = torch.from_numpy(made.actions)
    evaluated = policy.network.evaluate_actions(inputs, actions, {})
    np.testing.assert_allclose(evaluated.log_probs.detach().numpy(), made.log_probs, atol=1e-5)
    assert torch.isfinite(evaluated.values).all()
    torch.testing.assert_close(evaluated.values, policy.network.value(inputs))
    loss = policy.network.clone_loss(inputs, actions, torch.Generator())
    np.testing.assert_allclose(loss.detach().numpy(), -made.log_probs.mean(-1), atol=1e-5)
    logits = policy.network.logits(policy.network.prompt(inputs), policy.network.tokens_of(actions))
    p = np.exp(logits.detach().double().numpy())
    p /= p.sum(-1, keepdims=True)
    expected = -(p * np.log(p)).sum(-1).reshape(ROWS, 2, 3)
    np.testing.assert_allclose(evaluated.entropy.detach().numpy(), expected, atol=1e-5)


def test_cloning_replaces_some_of_what_was_said_before():
    heard = []
    policy, observation = make_policy(token_dropout=0.25, chunk=64), observe(ROWS)
    inputs, actions = policy.inputs(observation.streams, ROWS), torch.zeros(ROWS, 64, 3)
    logits = policy.network.logits
    policy.network.logits = lambda prompt, tokens: heard.append(tokens) or logits(prompt, tokens)
    policy.network.clone_loss(inputs, actions, torch.Generator().manual_seed(0))
    others = heard[0] != policy.network.tokens_of(actions)
    assert 0.15 < others.float().mean() < 0.3  # a ninth of what replaces a token is that token
    assert len(heard[0][others].unique()) == 8


def test_what_was_not_executed_changes_nothing_of_what_was():
    policy, observation = make_policy(), observe(4)
    inputs, generator = policy.inputs(observation.streams, 4), torch.Generator()
    one, other = torch.zeros(4, 2, 3), torch.zeros(4, 2, 3)
    other[:, 1] = torch.tensor([0.5, torch.nan, -7.0])
    losses = [policy.network.clone_loss(inputs, actions, generator) for actions in (one, other)]
    torch.testing.assert_close(losses[0][:, 0], losses[1][:, 0])
    assert torch.isfinite(losses[1]).all()


def test_padding_after_the_words_means_nothing():
    policy, observation = make_policy(), observe(6)
    keys = observation.rows.noise_keys(0)
    before = policy.act(observation, keys, "sample")
    words = policy.network.words.encoder
    with torch.no_grad():
        words.embedding.weight[0] += 5.0
        words.position_embedding.weight[5] += 5.0  # no instruction of six words is among them
    assert_same_rows(policy.act(observation, keys, "sample"), before, np.arange(6))
    with torch.no_grad():
        words.position_embedding.weight[0] += 5.0
    assert (policy.act(observation, keys, "sample").log_probs != before.log_probs).any()


def test_every_stream_is_read():
    policy, observation = make_policy(), observe(6)
    keys = observation.rows.noise_keys(0)
    before = policy.act(observation, keys, "sample").log_probs
    for name in ("position", "front", "instruction"):
        changed = observation.streams | {name: np.roll(observation.streams[name], 1, axis=0)}
        after = policy.act(Observation(observation.rows, changed, observation.time), keys, "sample").log_probs
        assert (after != before).any(axis=(1, 2)).all(), name


@given(st.integers(2, 300), st.floats(1e-3, 100.0), st.integers(0, 2**16))
def test_a_bin_is_found_again_and_a_number_goes_to_the_nearest(count: int, scale: float, seed: int):
    centres = bins.centres(count)
    unit = torch.tensor(scale, dtype=torch.float32)
    assert torch.equal(bins.nearest(centres * unit / unit, count), torch.arange(count))
    raw = torch.from_numpy(np.random.default_rng(seed).uniform(-1.5, 1.5, 20))
    distance = (centres.double()[bins.nearest(raw, count)] - raw).abs()
    torch.testing.assert_close(distance, (centres.double() - raw[:, None]).abs().amin(1), atol=1e-6, rtol=0)


def test_inversion_samples_each_token_as_often_as_it_is_probable():
    logits = torch.tensor([0.3, -40.0, 2.0, -1.0, 1.2])
    grid = (torch.arange(100_000, dtype=torch.float64) + 0.5) / 100_000
    tokens = bins.inverse_cdf(logits.expand(len(grid), -1), grid)
    share = np.bincount(tokens.numpy(), minlength=5) / len(grid)
    p = np.exp(logits.numpy().astype(float))
    np.testing.assert_allclose(share, p / p.sum(), atol=1e-5)
    edges = torch.tensor([0.0, bins.U_BELOW_ONE])
    assert bins.inverse_cdf(torch.tensor([-1e4, 0.0, 0.0, -1e4]).expand(2, -1), edges).tolist() == [1, 2]


def test_another_engine_decodes_the_same_from_what_it_is_handed():
    policy, observation = make_policy(), observe(4)
    net = policy.network
    other = Qwen2ForCausalLM(Qwen2Config(**json.loads(json.dumps(net.decoder_config())))).eval()
    other.load_state_dict(net.decoder_state(), strict=True)
    with torch.no_grad():
        prompt = net.prompt(policy.inputs(observation.streams, 4))
        tokens, _ = net.generate(prompt, None)
        answers = other.generate(inputs_embeds=prompt, max_new_tokens=TOKENS, do_sample=False)
    assert torch.equal(answers, tokens)
    made = policy.act(observation, observation.rows.noise_keys(0), "mean")
    np.testing.assert_array_equal(net.actions_of(tokens).numpy(), made.actions)


def test_a_version_round_trips_exactly():
    ours, theirs, observation = make_policy(0), make_policy(1), observe(3)
    keys = observation.rows.noise_keys(0)
    theirs.load(ours.tensors())
    assert_same_rows(theirs.act(observation, keys, "sample"), ours.act(observation, keys, "sample"), np.arange(3))
    tensors = ours.tensors()
    del tensors["decoder.lm_head.weight"]
    with pytest.raises(WeightsRefused, match="weight is missing"):
        theirs.load(tensors)


def test_a_second_fit_after_load_equals_one_without():
    config, episodes = BCConfig(steps=2, batch=8), [demonstration(9, 0)]
    learner, resumed = (BehaviourCloning(make_policy(seed), config) for seed in (0, 1))
    learner.fit(episodes)
    resumed.load(learner.state())
    assert learner.fit(episodes) == resumed.fit(episodes)
    ours, theirs = learner.tensors(), resumed.tensors()
    assert all(np.array_equal(ours[name], theirs[name]) for name in ours)


def test_cloning_lowers_the_loss():
    learner = BehaviourCloning(make_policy(), BCConfig(steps=25, batch=16, lr=3e-3))
    metrics = learner.fit([demonstration(16, seed) for seed in range(3)])
    assert metrics["learner/bc_loss"] < 0.8 * metrics["learner/bc_first_loss"]
    assert metrics["learner/skipped_steps"] == 0


@pytest.mark.parametrize("critic", [[], ["goal"]])
def test_ppo_starts_at_a_ratio_of_one_and_moves(critic: list[str]):
    policy = make_policy(critic=critic)
    before = policy.tensors()
    learner = PPO(policy, PPOConfig(epochs=1, minibatches=2, granularity="chunk", entropy=0.01))
    metrics = learner.update([segment(policy, 6, 5)])
    assert metrics["learner/samples"] == 15
    assert metrics["learner/ratio_at_start"] == pytest.approx(1.0, abs=1e-5)
    assert metrics["learner/max_log_ratio_at_start"] < 1e-4
    assert metrics["learner/skipped_steps"] == 0
    for part in ("decoder.model.layers.0.self_attn.q_proj.weight", "eyes.front.project.weight", "words.query"):
        assert (policy.tensors()[part] != before[part]).any(), part


def test_without_state_pictures_and_words_decide():
    policy, observation = make_policy(state=[]), observe(3)
    assert np.isfinite(policy.act(observation, observation.rows.noise_keys(0), "sample").log_probs).all()


@pytest.mark.parametrize(
    "config",
    [{"bin": 9}, {"bins": 1}, {"width": 18}, {"heads": 2, "kv_heads": 3}, {"layers": 0}, {"channels": []}, {"chunk": 0},
     {"chunk": 2.5}, {"execute": 3}, {"block": 0}, {"word_tokens": 0}, {"words": {"size": 3}}, {"lora": {"rank": 0}},
     {"lora": {"rang": 4}}, {"lora": {"targets": ["q_prj"]}}],
)  # fmt: skip
def test_a_wrong_config_is_refused(config: dict[str, Any]):
    with pytest.raises(ConfigError):
        build(AGENT, name="p", **(SMALL | config))


def test_what_it_cannot_read_is_refused_by_name():
    with pytest.raises(SpecMismatch, match="finds no picture"):
        build(AgentSpec(AGENT.observations[::2], AGENT.actions), name="p", **SMALL)
    with pytest.raises(SpecMismatch, match="reads no instruction"):
        build(AGENT, name="p", **SMALL, instruction=None)
    policy, observation = make_policy(), observe(3)
    observation.streams["instruction"][1] = 0
    with pytest.raises(DataError, match="row 1"):
        policy.act(observation, observation.rows.noise_keys(0), "mean")


def test_the_spec_holds_what_identifies_it():
    spec = make_policy().spec
    assert [stream.name for stream in spec.agent.observations] == ["position", "front", "instruction"]
    assert spec.extra["kind"] == "tokens"
    assert (spec.extra["bins"], spec.extra["width"], spec.extra["tokenizer"]) == (9, 16, "words/64/6")
    assert type(spec).from_dict(spec.to_dict()) == spec


def test_demonstrated_numbers_are_blurred_by_a_normal_distribution():
    raw, std, count = np.array([0.31, -1.0, 0.0]), 0.2, 65
    centres = np.linspace(-1, 1, count)
    density = np.exp(-((centres - raw[:, None]) ** 2) / (2 * std**2))
    expected = density / density.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(bins.blurred(torch.from_numpy(raw), count, std).numpy(), expected, atol=1e-7)
    sharp = bins.blurred(torch.from_numpy(raw), count, 0.0)
    assert sharp.sum(1).tolist() == [1.0, 1.0, 1.0]
    assert sharp.argmax(1).tolist() == [42, 0, 32]


@pytest.mark.parametrize("mode", ["sample", "mean"])
@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_logits_that_are_not_finite_give_no_action(mode: Any, value: float):
    policy, observation = make_policy(), observe(3)
    policy.network.decoder.lm_head.register_forward_hook(lambda layer, given, logits: logits.index_fill(0, ONE, value))
    made = policy.act(observation, observation.rows.noise_keys(0), mode)
    assert np.isnan(made.actions[1]).all() and np.isfinite(made.actions[[0, 2]]).all()
    with pytest.raises(DataError, match="not finite in row 1"):
        VersionedPolicy(policy).act(observation, observation.rows.noise_keys(0), mode)
