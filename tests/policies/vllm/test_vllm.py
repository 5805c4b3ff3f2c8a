"""vLLM in its own environment (`make peer-vllm`) against the torch network: probabilities and greedy tokens, before and
after a version switch, in this process and through a server."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from omegaconf import OmegaConf

from embodied.cli.compose import compose_config
from embodied.client import RemoteClient
from embodied.data import Observation
from embodied.errors import InfrastructureError, WeightsRefused
from embodied.runs.parts import build_policy, make_env
from embodied.runs.run_folder import create
from embodied.weights.registry import Registry
from policies import tokens
from policies.tokens import TokenPolicy
from policies.vllm import policy as vllm_policy
from policies.vllm.engine import EngineSettings
from policies.vllm.policy import VLLMPolicy
from simulators.one_agent import OneAgentEnv
from tests.policies.pictured import AGENT, observe

pytestmark = [pytest.mark.peer, pytest.mark.timeout(1800)]

ROOT = Path(__file__).parents[3]
PYTHON = ROOT / ".venvs" / "vllm" / "bin" / "python"
FORGETFUL = Path(__file__).with_name("forgetful.py")
ENGINE = {"kv_cache_mb": 32, "rows": 8, "timeout_s": 300, "start_s": 1200}  # importing vLLM takes 20 s of a core
SIZES: dict[str, Any] = {
    "chunk": 2, "state": ["position"], "bins": 33, "width": 64, "layers": 2, "heads": 2, "kv_heads": 1, "ff": 96,
    "channels": [8, 8], "words": {"vocabulary": 64, "length": 6}, "block": 4,
}  # fmt: skip
ROWS = 11
TOLERANCE = 1e-4

Tensors = dict[str, NDArray[Any]]


@pytest.fixture(scope="module", autouse=True)
def _environment() -> None:
    if not PYTHON.exists():
        pytest.skip("make peer-vllm")


def torch_policy(seed: int = 0, **more: Any) -> TokenPolicy:
    """Policy whose distributions are far from uniform, so that a wrong weight shows."""
    made = tokens.build(AGENT, name="p", seed=seed, **(SIZES | more))
    sharpen(made)
    return made


def sharpen(policy: TokenPolicy) -> None:
    with torch.no_grad():
        policy.network.decoder.lm_head.weight *= 30.0
        policy.network.decoder.model.embed_tokens.weight *= 30.0


def other_decoder(seen: Tensors) -> Tensors:
    """A version with another decoder and the same encoder, so that the same prompts come again."""
    other = torch_policy(seed=7).tensors()
    return {name: other[name] if name.startswith("decoder.") else array for name, array in seen.items()}


def assert_agrees(engine: Any, twin: TokenPolicy, observation: Observation, seed: int = 3) -> None:
    """Samples have the probabilities that torch's `evaluate_actions` gives them, and the greedy tokens are torch's."""
    keys = observation.rows.noise_keys(seed)
    inputs = twin.inputs(observation.streams, len(observation.rows), critic=False)
    greedy = engine.act(observation, keys, "mean")
    np.testing.assert_array_equal(greedy.actions, twin.act(observation, keys, "mean").actions)
    for chunk in (engine.act(observation, keys, "sample"), greedy):
        with torch.inference_mode():
            evaluated = twin.network.evaluate_actions(inputs, torch.from_numpy(chunk.actions), {})
        np.testing.assert_allclose(chunk.log_probs, evaluated.log_probs.numpy(), rtol=0, atol=TOLERANCE)
        np.testing.assert_allclose(chunk.values, evaluated.values.numpy(), rtol=0, atol=TOLERANCE)


@pytest.fixture(scope="module")
def engine() -> Iterator[VLLMPolicy]:
    made = vllm_policy.build(AGENT, engine=ENGINE, name="p", seed=0, **SIZES)
    yield made
    made.close()


def test_probabilities_and_greedy_tokens_are_torchs_across_switches(engine: VLLMPolicy) -> None:
    twin, observation = torch_policy(), observe(ROWS)
    assert engine.spec == twin.spec
    assert engine.spec.to_dict() == twin.spec.to_dict()
    first = twin.tensors()
    everything = torch_policy(seed=5).tensors()
    for version in (first, other_decoder(first), everything, first):
        twin.load(version)
        engine.load(version)
        for _ in range(2):  # the second time from the cache
            assert_agrees(engine, twin, observation)
        for name, array in engine.tensors().items():
            np.testing.assert_array_equal(array, version[name])


def test_noise_is_of_the_row_alone(engine: VLLMPolicy) -> None:
    engine.load(torch_policy().tensors())
    observation = observe(ROWS)
    keys = observation.rows.noise_keys(0)
    whole = engine.act(observation, keys, "sample")
    for index in ([4], [9, 2, 7], list(range(ROWS))[::-1]):
        part = engine.act(observation.take(np.array(index)), keys[index], "sample")
        np.testing.assert_array_equal(part.actions, whole.actions[index])
        np.testing.assert_allclose(part.log_probs, whole.log_probs[index], rtol=0, atol=TOLERANCE)
    other = engine.act(observation, observation.rows.noise_keys(1), "sample")
    assert (other.actions != whole.actions).any(axis=(1, 2)).mean() > 0.7


def test_samples_follow_the_distribution(engine: VLLMPolicy) -> None:
    """The first token of one observation, asked with many keys, against the softmax that torch gives it."""
    policy = torch_policy()
    engine.load(policy.tensors())
    count, bins = 600, SIZES["bins"]
    one = observe(1)
    many = one.take(np.zeros(count, np.int64))
    keys = np.stack(
        [np.full(count, 11), np.arange(count), np.zeros(count), np.zeros(count), np.zeros(count)], axis=1
    ).astype(np.int64)
    said = engine.act(many, keys, "sample").actions[:, 0, 0]
    with torch.inference_mode():
        prompt = policy.network.prompt(policy.inputs(one.streams, 1, critic=False))
        expected = policy.network.logits(prompt, torch.zeros(1, policy.network.tokens, dtype=torch.long))[0, 0].softmax(
            -1
        )
    token = np.rint((said / AGENT.actions[0].limit + 1) * (bins - 1) / 2).astype(int)
    found = np.bincount(token, minlength=bins) / count
    spread = np.sqrt(expected.numpy() * (1 - expected.numpy()) / count)
    assert (np.abs(found - expected.numpy()) <= 4.5 * spread + 2 / count).all()


def test_a_version_that_does_not_fit_leaves_the_old_one_answering(engine: VLLMPolicy) -> None:
    twin, observation = torch_policy(), observe(ROWS)
    engine.load(twin.tensors())
    worker = engine.engine.pid
    new = torch_policy(seed=5).tensors()
    name = "decoder.lm_head.weight"
    for bad, says in (
        ({key: value for key, value in new.items() if key != name}, f"tensor {name} is missing"),
        (new | {name: new[name][:-1]}, f"tensor {name} is float32"),
        (new | {name: np.full_like(new[name], np.nan)}, "not finite"),
    ):
        with pytest.raises(WeightsRefused, match=re.escape(says)):
            engine.load(bad)
    assert engine.engine.pid == worker
    assert_agrees(engine, twin, observation)


def test_a_killed_worker_is_named_and_the_next_has_the_version_served(engine: VLLMPolicy) -> None:
    twin, observation = torch_policy(seed=5), observe(ROWS)
    keys = observation.rows.noise_keys(0)
    engine.load(twin.tensors())
    first = engine.engine.pid
    assert first is not None
    os.kill(first, signal.SIGSTOP)  # so that it dies in the middle of the request, or of the load
    killer = subprocess.Popen(["sh", "-c", f"sleep 1; kill -9 {first}"])
    with pytest.raises(InfrastructureError, match=f"the vLLM worker died of SIGKILL .*process {first}"):
        engine.act(observation, keys, "mean")
    killer.wait(10)
    assert_agrees(engine, twin, observation)
    second = engine.engine.pid
    assert second not in (None, first)
    os.kill(second or 0, signal.SIGSTOP)
    killer = subprocess.Popen(["sh", "-c", f"sleep 1; kill -9 {second}"])
    with pytest.raises(InfrastructureError, match=f"the vLLM worker died of SIGKILL .*process {second}"):
        engine.load(torch_policy(seed=9).tensors())
    killer.wait(10)
    assert_agrees(engine, twin, observation)


def test_a_cache_that_is_not_reset_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The check of this file fails where the switch leaves the cache's keys and values of the old weights."""
    monkeypatch.setattr(EngineSettings, "command", lambda self: [str(PYTHON), str(FORGETFUL)])
    forgetful = vllm_policy.build(AGENT, engine=ENGINE, name="p", seed=0, **SIZES)
    try:
        twin, observation = torch_policy(), observe(ROWS)
        forgetful.load(twin.tensors())
        assert_agrees(forgetful, twin, observation)
        version = other_decoder(twin.tensors())
        twin.load(version)
        forgetful.load(version)
        with pytest.raises(AssertionError):
            assert_agrees(forgetful, twin, observation)
    finally:
        forgetful.close()


def test_adapters_are_merged_for_vllm() -> None:
    lora = {"lora": {"rank": 2, "targets": ["q_proj", "v_proj"]}}
    twin, observation = torch_policy(**lora), observe(ROWS)
    tensors = twin.tensors()
    rng = np.random.default_rng(0)
    tensors |= {
        name: rng.normal(0, 0.3, array.shape).astype(np.float32) for name, array in tensors.items() if "lora" in name
    }
    twin.load(tensors)
    made = vllm_policy.build(AGENT, engine=ENGINE, name="p", seed=0, **(SIZES | lora))
    sharpen(made)
    made._next.network.load_state_dict(made.network.state_dict())  # type: ignore[union-attr]
    try:
        made.load(tensors)
        assert_agrees(made, twin, observation)
    finally:
        made.close()


def test_a_server_decides_with_vllm_and_follows_the_run(tmp_path: Path) -> None:
    words = ["task=reach_color", "policy=tokens", "env.cameras=[front]", "env.pixels=16"]
    sizes = ["width=64", "heads=2", "kv_heads=1", "ff=96", "layers=2", "bins=33", "channels=[8,8]", "chunk=2"]
    config = compose_config("train", [*words, *(f"policy.{size}" for size in sizes)])
    folder = create(tmp_path / "runs", "a")
    (folder / "config.yaml").write_text(OmegaConf.to_yaml(config))
    given: Any = OmegaConf.to_container(config, resolve=True)
    env = make_env(given["task"], given["env"], ROWS, seed=0)
    twin = build_policy(given["policy"], env.spec.agents["robot"], given["seed"])
    assert isinstance(twin, TokenPolicy)
    sharpen(twin)
    registry = Registry(folder / "weights", keep=5)
    number = registry.reserve(twin.spec.name, 2)
    registry.publish(twin.spec.name, number, twin.tensors(), twin.spec.to_dict())
    observation, _ = OneAgentEnv(env).reset(np.arange(ROWS))
    env.close()
    address = f"ipc://{tmp_path}/policy"
    options = [f"engine.{key}={value}" for key, value in ENGINE.items()]
    serve = ["serve", "run=a", f"address={address}", "engine=vllm", *options]
    server = subprocess.Popen(
        [sys.executable, "-m", "embodied.cli.main", *serve], cwd=tmp_path, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    try:
        client = RemoteClient(address, timeout_s=1200.0)
        assert client.hello() == twin.spec
        assert client.version()[0] == number
        assert_agrees(client, twin, observation)
        rng = np.random.default_rng(0)
        new = {
            name: array * rng.uniform(0.8, 1.2, array.shape).astype(np.float32) if "decoder" in name else array
            for name, array in twin.tensors().items()
        }
        twin.load(new)
        registry.publish(twin.spec.name, number + 1, new, twin.spec.to_dict())
        limit = time.monotonic() + 300
        while client.version()[0] == number and time.monotonic() < limit:
            time.sleep(0.1)
        assert client.version()[0] == number + 1
        assert_agrees(client, twin, observation)
        client.close()
    finally:
        server.send_signal(signal.SIGTERM)
        said, _ = server.communicate(timeout=60)
    assert server.returncode == 0, said
