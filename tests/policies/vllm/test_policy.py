"""A policy of two processes, torch standing in for vLLM: what it says is one network's, and of one version."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from embodied.client import LocalClient
from embodied.errors import ConfigError, InfrastructureError, UserError, WeightsRefused
from embodied.serving.versioned_policy import VersionedPolicy
from embodied.weights.manifest import Manifest
from policies import tokens
from policies.base import Checking, Probing
from policies.tokens import TokenPolicy
from policies.vllm import policy as vllm_policy
from policies.vllm.engine import EngineSettings
from policies.vllm.policy import VLLMPolicy
from tests.policies.pictured import AGENT, observe

TORCH = str(Path(__file__).with_name("torch_engine.py"))
SIZES: dict[str, Any] = {
    "chunk": 2, "state": ["position"], "bins": 9, "width": 16, "layers": 1, "heads": 2, "kv_heads": 1, "ff": 32,
    "channels": [4, 8], "words": {"vocabulary": 64, "length": 6}, "block": 4,
}  # fmt: skip
ROWS = 6


def torch_policy(seed: int) -> TokenPolicy:
    made = tokens.build(AGENT, name="p", seed=seed, **SIZES)
    with torch.no_grad():
        made.network.decoder.lm_head.weight *= 100.0
    return made


@pytest.fixture(scope="module")
def dies(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file; while it is there, workers die when they are given weights."""
    return tmp_path_factory.mktemp("vllm") / "dies"


@pytest.fixture(scope="module")
def policy(dies: Path) -> Iterator[VLLMPolicy]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VLLM_TORCH_DIES", str(dies))
        with patch.context() as building:
            building.setattr(EngineSettings, "command", lambda self: [sys.executable, TORCH])
            made = vllm_policy.build(AGENT, name="p", seed=0, **SIZES)
        yield made
        made.close()


def assert_agrees(policy: VLLMPolicy, twin: TokenPolicy) -> None:
    observation = observe(ROWS)
    keys = observation.rows.noise_keys(3)
    inputs = twin.inputs(observation.streams, ROWS, critic=False)
    greedy = policy.act(observation, keys, "mean")
    np.testing.assert_array_equal(greedy.actions, twin.act(observation, keys, "mean").actions)
    for chunk in (policy.act(observation, keys, "sample"), greedy):
        with torch.inference_mode():
            evaluated = twin.network.evaluate_actions(inputs, torch.from_numpy(chunk.actions), {})
        np.testing.assert_allclose(chunk.log_probs, evaluated.log_probs.numpy(), rtol=0, atol=1e-4)
        np.testing.assert_allclose(chunk.values, evaluated.values.numpy(), rtol=0, atol=1e-5)


def test_it_is_the_torch_policy_in_all_but_where_it_decodes(policy: VLLMPolicy) -> None:
    twin = torch_policy(0)
    assert policy.spec.to_dict() == twin.spec.to_dict()
    for seed in (0, 1, 0):
        twin = torch_policy(seed)
        policy.load(twin.tensors())
        assert_agrees(policy, twin)
        for name, array in twin.tensors().items():
            np.testing.assert_array_equal(policy.tensors()[name], array)


def test_a_host_loads_it_in_place_and_shows_it(policy: VLLMPolicy) -> None:
    twin, observation = torch_policy(1), observe(ROWS)
    client = LocalClient(VersionedPolicy(policy))
    tensors, spec = twin.tensors(), policy.spec
    client.push(Manifest.of(spec.name, 5, tensors, spec.to_dict()), tensors)
    chunk = client.act(observation, observation.rows.noise_keys(0), "sample")
    assert chunk.versions.tolist() == [5] * ROWS
    assert policy.loads_in_place
    assert isinstance(policy, Checking)
    assert isinstance(policy, Probing)
    np.testing.assert_array_equal(
        policy.probe(observation)["network/actions"],
        twin.act(observation, np.zeros((ROWS, 5), np.int64), "mean").actions,
    )


def test_a_failed_load_leaves_the_old_version_on_both_sides(policy: VLLMPolicy, dies: Path) -> None:
    twin, other = torch_policy(0), torch_policy(2).tensors()
    policy.load(twin.tensors())
    worker = policy.engine.pid
    for bad in ({**other, "extra": np.zeros(1, np.float32)}, {**other, "mean": np.zeros(1, np.float32)}):
        with pytest.raises(WeightsRefused):
            policy.load(bad)
    assert policy.engine.pid == worker
    assert_agrees(policy, twin)
    dies.touch()
    with pytest.raises(InfrastructureError, match="died of SIGKILL while answering load"):
        policy.load(other)
    dies.unlink()
    assert_agrees(policy, twin)
    assert policy.engine.pid != worker


def test_mistakes_are_one_line() -> None:
    with pytest.raises(UserError, match="make peer-vllm"):
        vllm_policy.build(AGENT, engine={"python": "/nowhere/python"}, name="p", **SIZES)
    with pytest.raises(ConfigError, match="there is no setting thread"):
        vllm_policy.build(AGENT, engine={"thread": 1}, name="p", **SIZES)
