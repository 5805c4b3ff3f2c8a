"""Settings of PPO: what makes no sense is refused in one line that names its key."""

import math
from typing import get_type_hints

import pytest

from embodied.build import build
from embodied.errors import ConfigError
from embodied.learning.ppo import PPO
from embodied.learning.ppo_config import PPOConfig
from embodied.settings import described
from policies.mlp import MLPPolicy
from tests.learning.pointmass import AGENT

NUMBERS = [name for name, value in vars(PPOConfig()).items() if type(value) in (int, float)]
WHOLE = [name for name, value in vars(PPOConfig()).items() if type(value) is int]


UNBOUNDED = ("clip", "max_grad_norm", "truncate_at", "lr_max", "drift")
HINTS = get_type_hints(PPOConfig, include_extras=True)


def refused(key: str, value: object) -> str:
    with pytest.raises(ConfigError, match=f"^{key}") as caught:
        PPOConfig(**{key: value})  # type: ignore[arg-type]
    line = caught.value.line()
    assert len(line) < 200 and "\n" not in line and f"(algo.{key})" in line
    assert not any(word in line for word in ("None", "True", "False", "<", "class", "Error", "NoneType"))
    return line


@pytest.mark.parametrize("key", NUMBERS)
@pytest.mark.parametrize("value", ["two", [1], {"a": 1}, None, True, math.nan, [0.5] * 1000])
def test_every_number_has_to_be_one(key: str, value: object) -> None:
    assert "give a" in refused(key, value)


@pytest.mark.parametrize("key", WHOLE)
def test_whole_numbers_are_whole_and_have_64_bits(key: str) -> None:
    for value in (1.5, 2**70, math.inf):
        assert "whole number" in refused(key, value)


@pytest.mark.parametrize("key", sorted(set(NUMBERS) - {"seed"}))
def test_every_range_refuses_what_is_below_and_what_is_beyond(key: str) -> None:
    whole, words = key in WHOLE, described(HINTS[key])
    refused(key, -1 if whole else -1e-3)
    if "above 0" in words:
        refused(key, 0.0)
    if "to 1" in words:
        assert "from 0 to 1" in refused(key, 1.001)
    if key not in UNBOUNDED:
        refused(key, math.inf)


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("epochs", 0, "epochs cannot be 0 (algo.epochs): give a whole number of at least 1"),
        ("lr_factor", 0.5, "lr_factor cannot be 0.5 (algo.lr_factor): give a number of at least 1"),
        ("lr_min", 1.0, "lr_min=1 is above lr_max=0.003"),
        ("lr_max", 1e-6, "lr_min=1e-05 is above lr_max=1e-06"),
        ("lr", 0.1, "lr=0.1 is not within lr_min=1e-05 and lr_max=0.003"),
        ("lr", 1e-6, "give target_kl=0"),
        ("micro_batch", -1, "micro_batch cannot be -1"),
        ("granularity", "word", "give one of token, action, chunk"),
        ("granularity", ["token"], "give one of token, action, chunk"),
        ("correction", None, "correction cannot be null (algo.correction): give one of none, truncated, masked"),
        ("per_dimension", 1, "give true or false"),
        ("device", 3, "give a word"),
        ("device", "", "give a word"),
        ("band", (2.0, 3.0), "two numbers around 1"),
        ("band", "ab", "two numbers"),
        ("band", 1.0, "two numbers"),
        ("band", [0.5, True], "two numbers"),
        ("band", [0.5, math.nan], "two numbers"),
        ("band", {0.5: 1, 2.0: 1}, "two numbers"),
        ("seed", "x", "give a whole number"),
    ],
)
def test_what_makes_no_sense_is_refused(key: str, value: object, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        PPOConfig(**{key: value})  # type: ignore[arg-type]
    assert said in caught.value.line()


def test_what_makes_sense_is_taken() -> None:
    free = dict.fromkeys(UNBOUNDED, math.inf)
    PPOConfig(**free, gamma=1, lam=0, lr=1e-3, seed=-3, band=[1, math.inf], lr_min=0, lr_factor=1)  # type: ignore[arg-type]
    PPOConfig(lr=1.0, target_kl=0)


@pytest.mark.parametrize("device", ["gpu", "meta", "cuda:77", "cpu cpu"])
def test_a_device_that_is_not_there_is_refused(device: str) -> None:
    with pytest.raises(ConfigError, match=f"no device={device} on this machine"):
        PPO(MLPPolicy("p", AGENT, hidden=(4,)), PPOConfig(device=device))


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("epochs", "two", "epochs cannot be 'two' (algo.epochs): give a whole number of at least 1"),
        ("lr", [1], "lr cannot be [1] (algo.lr): give a number above 0"),
        ("band", "two", "band cannot be 'two' (algo.band): give two numbers, around 1"),
        ("granularity", [1], "granularity cannot be [1] (algo.granularity): give one of"),
    ],
)
def test_a_configuration_of_a_wrong_type_names_its_key(key: str, value: object, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        build({"_target_": "embodied.learning.ppo.PPO", key: value}, "algo", MLPPolicy("p", AGENT, hidden=(4,)))
    assert said in caught.value.line()
