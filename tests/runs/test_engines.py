"""Engines of `embodied serve`: the policy stays what it was, but for what computes it."""

from typing import Any

import pytest
from omegaconf import OmegaConf

from embodied.cli.compose import compose_config
from embodied.errors import ConfigError
from embodied.runs.engines import with_engine


def engine(*words: str) -> dict[str, Any]:
    made = OmegaConf.to_container(compose_config("serve", words).engine)
    assert isinstance(made, dict)
    return {str(key): value for key, value in made.items()}


def test_torch_leaves_the_policy_as_it_was_trained() -> None:
    policy = {"_target_": "policies.mlp.build", "hidden": [8]}
    assert with_engine(policy, engine()) == with_engine(policy, {}) == policy


def test_vllm_takes_what_the_token_policy_takes() -> None:
    policy = {"_target_": "policies.tokens.build", "bins": 8}
    made = with_engine(policy, engine("engine=vllm", "engine.threads=4"))
    assert made.pop("engine") == {
        "python": ".venvs/vllm/bin/python", "threads": 4, "kv_cache_mb": 256, "rows": 64, "timeout_s": 60,
        "start_s": 300,
    }  # fmt: skip
    assert made == {"_target_": "policies.vllm.policy.build", "bins": 8}


def test_an_engine_is_refused_for_a_policy_that_it_cannot_stand_for() -> None:
    with pytest.raises(ConfigError) as caught:
        with_engine({"_target_": "policies.mlp.build"}, engine("engine=vllm"))
    assert caught.value.line() == (
        "this engine is for policies of policies.tokens.build, this one is of policies.mlp.build (engine): engine=torch"
    )
    with pytest.raises(ConfigError, match="unknown engine 'vlm'"):
        engine("engine=vlm")
    with pytest.raises(ConfigError, match=r"engine\.thread"):
        engine("engine=vllm", "engine.thread=1")
