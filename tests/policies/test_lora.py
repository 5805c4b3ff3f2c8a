"""Adapters: they alone are trained and sent, merge into the weights they adapt, and fit one base only."""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from embodied.errors import CorruptFile, SpecMismatch, WeightsRefused
from embodied.files import sealed
from embodied.learning.bc import BCConfig, BehaviourCloning
from embodied.learning.ppo import PPO, PPOConfig
from embodied.serving.versioned_policy import VersionedPolicy
from embodied.weights.manifest import Manifest
from embodied.weights.tensors import write_tensors
from policies.lora import fingerprint, frozen
from policies.tokens import TokenPolicy, build
from tests.policies.pictured import AGENT, demonstration, observe, segment

WIDE: dict[str, Any] = {
    "chunk": 2, "state": ["position"], "bins": 8, "width": 32, "layers": 2, "heads": 2, "kv_heads": 2, "ff": 256,
    "channels": [4, 4], "block": 4, "words": {"vocabulary": 32, "length": 6}, "critic_hidden": [8],
}  # fmt: skip
LORA = {"rank": 2, "targets": ["q_proj", "v_proj", "down_proj"]}


def make_policy(seed: int = 0, **options: Any) -> TokenPolicy:
    return build(AGENT, name="p", seed=seed, **(WIDE | {"lora": LORA} | options))


def disturb(policy: TokenPolicy) -> None:
    """Move every adapter away from where it does nothing."""
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for name, parameter in policy.network.decoder.named_parameters():
            if "lora_B" in name:
                parameter.normal_(0.0, 0.2, generator=generator)


def test_only_adapters_and_what_is_no_decoder_are_trained_and_sent(capfd: pytest.CaptureFixture[str]):
    torch.manual_seed(0)
    state = torch.get_rng_state()
    policy = make_policy()
    assert torch.equal(state, torch.get_rng_state())
    assert capfd.readouterr() == ("", "")
    sent, whole = policy.tensors(), policy.network.state_dict()
    kept = frozen(policy.network)
    assert set(sent) == set(whole) - kept
    of_decoder = {name for name in sent if name.startswith("decoder.")}
    assert of_decoder and all(".lora_A." in name or ".lora_B." in name for name in of_decoder)
    assert {"mean", "std", "action_scale", "critic.layers.0.weight", "eyes.front.project.weight"} <= set(sent)
    full = sum(array.nbytes for array in make_policy(lora=None).tensors().values())
    assert sum(array.nbytes for array in sent.values()) < 0.4 * full


def test_learners_never_touch_the_base():
    policy = make_policy()
    base = {name: policy.network.state_dict()[name].clone() for name in frozen(policy.network)}
    before = policy.tensors()
    BehaviourCloning(policy, BCConfig(steps=3, batch=8)).fit([demonstration(20, 0)])
    learner = PPO(policy, PPOConfig(epochs=1, minibatches=1))
    metrics = learner.update([segment(policy, 4, 3)])
    assert metrics["learner/ratio_at_start"] == pytest.approx(1.0, abs=1e-5)
    for name, tensor in base.items():
        assert torch.equal(policy.network.state_dict()[name], tensor), name
        assert not policy.network.get_parameter(name).requires_grad
    changed = {name for name, array in policy.tensors().items() if (array != before[name]).any()}
    assert any("lora_A" in name for name in changed)
    assert any("lora_B" in name for name in changed)
    assert set(learner.state()["model"]) == set(before)


def test_merged_weights_say_what_the_adapted_ones_say():
    policy, observation = make_policy(), observe(5)
    disturb(policy)
    net = policy.network
    plain = Qwen2ForCausalLM(Qwen2Config(**net.decoder_config())).eval()
    untouched = plain.state_dict()
    state = net.decoder_state()
    assert set(state) == set(untouched)
    plain.load_state_dict(state, strict=True)
    with torch.no_grad():
        prompt = net.prompt(policy.inputs(observation.streams, 5))
        ours, theirs = net.decoder(inputs_embeds=prompt).logits, plain(inputs_embeds=prompt).logits
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)
    layer = net.decoder.model.layers[1].self_attn.v_proj
    a, b = (getattr(layer, name)["default"].weight.detach().numpy() for name in ("lora_A", "lora_B"))
    expected = layer.base_layer.weight.detach().numpy() + 2.0 * b @ a
    np.testing.assert_allclose(state["model.layers.1.self_attn.v_proj.weight"].numpy(), expected, atol=1e-6)
    assert np.abs(2.0 * b @ a).max() > 0.01


def test_fresh_adapters_change_nothing():
    observation = observe(3)
    keys = observation.rows.noise_keys(0)
    adapted, plain = (make_policy(lora=lora).act(observation, keys, "sample") for lora in (LORA, None))
    np.testing.assert_array_equal(adapted.actions, plain.actions)
    np.testing.assert_allclose(adapted.log_probs, plain.log_probs, atol=1e-6)


def test_a_version_of_adapters_round_trips_and_names_its_base():
    ours, theirs, observation = make_policy(0), make_policy(0), observe(3)
    disturb(ours)
    assert ours.spec == theirs.spec
    theirs.load(ours.tensors())
    keys = observation.rows.noise_keys(0)
    np.testing.assert_array_equal(
        theirs.act(observation, keys, "sample").log_probs, ours.act(observation, keys, "sample").log_probs
    )
    assert make_policy(1).spec.extra["base"] != ours.spec.extra["base"]
    assert ours.spec.extra["lora"] == {"rank": 2, "alpha": 4.0, "targets": LORA["targets"]}
    one = {"a": torch.zeros(2, 3)}
    prints = {fingerprint(t) for t in (one, {"b": one["a"]}, {"a": torch.zeros(3, 2)}, {"a": one["a"] - 0.0})}
    assert len(prints) == 3


def test_a_server_refuses_adapters_of_another_base():
    ours, theirs = make_policy(0), make_policy(1)
    with pytest.raises(WeightsRefused, match=r"extra\.base"):
        VersionedPolicy(ours).admit(Manifest.of("p", 2, theirs.tensors(), theirs.spec.to_dict()))
    assert VersionedPolicy(ours).admit(Manifest.of("p", 2, ours.tensors(), ours.spec.to_dict()))


def test_a_base_is_a_version_without_adapters(tmp_path: Path):
    trained, path = make_policy(5, lora=None), tmp_path / "model.safetensors"
    write_tensors(path, trained.tensors())
    policy, observation = make_policy(0, base=str(path)), observe(3)
    assert policy.spec.extra["base"] == make_policy(5).spec.extra["base"]
    keys = observation.rows.noise_keys(0)
    ours, theirs = policy.act(observation, keys, "sample"), trained.act(observation, keys, "sample")
    np.testing.assert_allclose(ours.log_probs, theirs.log_probs, atol=1e-6)


@pytest.mark.parametrize("damage", ["missing", "extra", "reshaped", "absent", "cut"])
def test_a_base_that_does_not_fit_is_refused_in_one_line(tmp_path: Path, damage: str):
    name, path = "decoder.lm_head.weight", tmp_path / "model.safetensors"
    tensors = make_policy(lora=None).tensors()
    if damage == "missing":
        del tensors[name]
    elif damage == "extra":
        name = "decoder.more.weight"
        tensors[name] = np.zeros(1, np.float32)
    elif damage == "reshaped":
        tensors[name] = tensors[name][:-1]
    if damage != "absent":
        write_tensors(path, tensors)
    if damage == "cut":
        path.write_bytes(path.read_bytes()[:-10])
    expected = (CorruptFile, str(path)) if damage in ("absent", "cut") else (WeightsRefused, f"tensor {name}")
    with pytest.raises(expected[0], match=expected[1]) as caught:
        make_policy(base=str(path))
    assert str(path) in caught.value.line()


@pytest.mark.parametrize("kind", ["checkpoint", "version"])
def test_a_base_is_of_the_policy_that_is_told_of_beside_it(tmp_path: Path, kind: str):
    trained = make_policy(5, lora=None)
    spec, path = trained.spec.to_dict(), tmp_path / "model.safetensors"
    write_tensors(path, trained.tensors())

    def tell() -> None:
        if kind == "checkpoint":
            (tmp_path / "policy.json").write_text(json.dumps(spec))
        else:
            manifest = Manifest.of("p", 1, trained.tensors(), spec)
            (tmp_path / "manifest.json").write_bytes(sealed(manifest.to_dict()))

    spec["name"] = "another"
    tell()
    make_policy(base=str(path))
    spec["extra"]["tokenizer"] = "words/32/5"
    tell()
    with pytest.raises(SpecMismatch, match=r"extra\.tokenizer.*without lora") as caught:
        make_policy(base=str(path))
    assert str(path) in caught.value.line() and "\n" not in caught.value.line()


def test_a_base_that_is_a_pipe_or_of_another_action_scale_is_refused(tmp_path: Path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(CorruptFile, match="is no regular file"):
        make_policy(base=str(tmp_path / "pipe"))
    tensors = make_policy(lora=None).tensors()
    tensors["action_scale"] *= 100
    write_tensors(tmp_path / "model.safetensors", tensors)
    with pytest.raises(WeightsRefused, match="action_scale"):
        make_policy(base=str(tmp_path / "model.safetensors"))
