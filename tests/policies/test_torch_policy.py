"""Behaviour of every network's policy: rows in blocks, chunks of the right form, and versions taken over whole."""

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from embodied.data import Observation, Rows
from embodied.errors import SpecMismatch, WeightsRefused
from embodied.serving.versioned_policy import VersionedPolicy
from embodied.spec import Stream
from policies.base import Checking
from policies.network import INPUT_LIMIT, Inputs, PolicyNetwork, Sampled
from policies.senses import Senses
from policies.torch_policy import TorchPolicy
from tests.policies.pictured import AGENT, observe

PATH = Stream("path", (3,))


class Noted(PolicyNetwork):
    """Notes the rows it is given; its decision is the row's position and draw."""

    def __init__(self) -> None:
        super().__init__(2, [1.0, 1.0, 1.0], 4, 2)
        self.bias = nn.Parameter(torch.zeros(3))
        self.asked: list[int] = []
        self.given: list[set[str]] = []

    def sample_noise(self, noise_keys: NDArray[np.int64]) -> Tensor:
        return torch.from_numpy(noise_keys[:, 1].astype(np.float32))

    def sample(self, inputs: Inputs, noise: Tensor | None) -> Sampled:
        self.asked.append(len(inputs["state"]))
        self.given.append(set(inputs))
        rows = inputs["state"][:, 0] if noise is None else noise
        actions = rows[:, None, None] + self.bias.expand(len(rows), 2, 3)
        stored = {} if noise is None else {"path": rows[:, None].expand(-1, 3)}
        return Sampled(actions, torch.zeros_like(actions), rows, stored)


def make_policy(block: int = 4) -> TorchPolicy:
    senses = Senses.choose(AGENT, ["position"], critic=["goal"])
    return TorchPolicy("p", AGENT.actions, senses, Noted(), {"kind": "noted"}, 1, block, (PATH,))


@pytest.mark.parametrize("rows", [1, 3, 4, 5, 9])
def test_every_forward_pass_has_one_shape_and_answers_come_back_in_order(rows: int):
    policy, observation = make_policy(), observe(rows)
    chunk = policy.act(observation, observation.rows.noise_keys(0), "sample")
    assert policy.network.asked == [4] * -(-rows // 4)
    assert chunk.values.tolist() == list(range(rows))
    assert chunk.stored["path"].tolist() == [[float(row)] * 3 for row in range(rows)]
    assert chunk.actions.shape == (rows, 2, 3) and chunk.actions.dtype == np.float32
    assert (chunk.versions == 0).all() and chunk.policy == "p"
    np.testing.assert_array_equal(chunk.rows.env, observation.rows.env)
    assert all(given == {"state", "front", "words"} for given in policy.network.given), "nothing of the critic's"
    assert policy.act(observation, observation.rows.noise_keys(0), "mean").stored == {}


def test_the_spec_names_what_weights_fit():
    spec = make_policy().spec
    assert [s.name for s in spec.agent.observations] == ["position", "front", "instruction"]
    assert (spec.chunk, spec.execute, spec.stored) == (2, 1, (PATH,))
    assert spec.extra == {"kind": "noted", "tokenizer": "words/1024/16"}
    assert [s.name for s in spec.critic] == ["goal"]


def test_learners_read_more_than_actors_and_only_what_they_ask_for():
    policy, seen = make_policy(), observe(3).streams
    assert set(policy.inputs(seen, 3)) == {"state", "critic", "front", "words"}
    assert set(policy.inputs(seen, 3, rest=False)) == {"state", "critic"}
    assert set(policy.inputs(seen, 3, critic=False, rest=False)) == {"state"}
    np.testing.assert_array_equal(policy.flatten(seen, 3), np.concatenate([seen["position"], seen["goal"]], axis=1))
    with pytest.raises(SpecMismatch, match=r"policy\.critic"):
        policy.inputs({name: array for name, array in seen.items() if name != "goal"}, 3)


def test_what_is_normalised_stays_within_bounds():
    policy, seen = make_policy(), observe(2).streams
    policy.network.set_normaliser(torch.tensor([1.0, 2.0, 3.0, 4.0]), torch.tensor([2.0, 2.0, 1e-6, 1.0]))
    inputs = policy.inputs(seen, 2, rest=False)
    np.testing.assert_allclose(inputs["state"], (seen["position"] - [1.0, 2.0]) / 2.0, atol=1e-6)
    assert (inputs["critic"][:, 0].abs() == INPUT_LIMIT).all()


def test_a_host_asks_it_about_words_and_warms_it_up():
    policy = make_policy()
    assert isinstance(policy, Checking)
    host, observation = VersionedPolicy(policy), observe(3)
    host.warm_up(5)
    host.check(observation, observation.rows.noise_keys(0), "mean")
    nobody = Observation(Rows.of_envs(0), observe(0).streams, np.zeros(0))
    assert len(host.act(nobody, nobody.rows.noise_keys(0), "sample").actions) == 0


def test_a_version_is_a_copy():
    ours, theirs = make_policy(), make_policy()
    tensors = ours.tensors()
    tensors["bias"][:] = 3.0
    assert not ours.tensors()["bias"].any()
    theirs.load(tensors)
    tensors["bias"][:] = 4.0
    assert (theirs.tensors()["bias"] == 3.0).all()


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [("action_scale", 5.0, r"action_scale\[1\] is 5, and 1 in this policy"), ("std", 0.0, "std holds.*above zero"),
     ("std", -1.0, "std holds.*above zero"), ("std", np.inf, "std holds.*not finite")],
)  # fmt: skip
def test_scales_that_are_not_its_own_or_no_scales_are_refused(name: str, value: float, said: str):
    policy, tensors = make_policy(), make_policy().tensors()
    tensors[name][1] = value
    with pytest.raises(WeightsRefused, match=said) as error:
        policy.load(tensors)
    assert "\n" not in error.value.line() and error.value.fix
    assert policy.tensors()[name][1] == 1.0


def test_a_version_keeps_the_bits_of_bfloat16_and_uint64_tensors() -> None:
    ours, theirs = make_policy(), make_policy()
    for policy, value in ((ours, 1.5), (theirs, 0.0)):
        policy.network.register_buffer("counts", torch.tensor([2**63 + 1 if value else 0], dtype=torch.uint64))
        policy.network.bias.data = torch.full_like(policy.network.bias, value, dtype=torch.bfloat16)
    tensors = ours.tensors()
    assert tensors["bias"].dtype == np.uint16 and tensors["counts"].dtype == np.uint64
    theirs.load(tensors)
    assert theirs.network.bias.dtype == torch.bfloat16 and (theirs.network.bias == 1.5).all()
    assert theirs.tensors()["counts"][0] == 2**63 + 1
    wide = tensors | {"bias": np.full(tensors["bias"].shape, 1.5, np.float32)}
    with pytest.raises(WeightsRefused, match=r"bias is float32.*not bfloat16.*convert it to bfloat16"):
        theirs.load(wide)
    infinite = tensors | {"bias": np.full_like(tensors["bias"], 0x7F80)}
    with pytest.raises(WeightsRefused, match="bias holds numbers that are not finite"):
        theirs.load(infinite)
