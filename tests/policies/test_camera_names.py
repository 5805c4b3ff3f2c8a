"""Cameras of any name: they are seen alike, and ordinary names are those of parameters."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from embodied.spec import AgentSpec
from policies.encoders import module_key
from policies.film import build as film
from policies.flow import build as flow
from policies.tokens import build as tokens
from policies.torch_policy import TorchPolicy
from tests.policies.pictured import AGENT, observe

SMALL: dict[str, Any] = {"chunk": 2, "state": ["position"], "channels": [4, 8], "width": 16, "critic_hidden": [8]}
BUILDS = {
    "film": (film, {"hidden": 16}),
    "flow": (flow, {"heads": 2, "layers": 1, "expert_width": 16, "steps": 2}),
    "tokens": (tokens, {"bins": 5, "layers": 1, "heads": 2, "kv_heads": 1, "ff": 16}),
}


def make_policy(kind: str, camera: str) -> TorchPolicy:
    streams = tuple(replace(s, name=camera) if s.name == "front" else s for s in AGENT.observations)
    build, sizes = BUILDS[kind]
    return build(AgentSpec(streams, AGENT.actions), name="p", **SMALL, **sizes)


@pytest.mark.parametrize("kind", list(BUILDS))
@pytest.mark.parametrize("camera", ["observation.images.front", "items", "training", "_modules", "camera:front"])
def test_a_camera_of_any_name_is_seen_alike(kind: str, camera: str):
    plain, policy, seen = make_policy(kind, "front"), make_policy(kind, camera), observe(2)
    keys = seen.rows.noise_keys(0)
    wanted = plain.act(seen, keys, "sample")
    seen.streams[camera] = seen.streams.pop("front")
    np.testing.assert_array_equal(policy.act(seen, keys, "sample").actions, wanted.actions)
    assert f"pictures/{camera}" in policy.probe(seen)
    policy.load(policy.tensors())


@pytest.mark.parametrize("name", ["wrist_rgb", "front_rgb", "front", "top-view", "Kamera 2", "50%"])
def test_ordinary_names_are_those_of_parameters(name: str):
    assert module_key(name) == name


@given(st.sets(st.one_of(st.text("a.%2E5:camer", min_size=1), st.text(min_size=1)), min_size=2))
def test_a_module_has_every_name_and_no_two_share_one(names: set[str]):
    layers = nn.ModuleDict({module_key(name): nn.Identity() for name in names})
    assert len(layers) == len(names)
