"""The reference policy: frozen, versioned, normalised as its own version was; and the KL to it."""

import copy
import io
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from embodied.data import Segment
from embodied.errors import ConfigError, CorruptFile, DataError
from embodied.learning.ppo import PPO, PPOConfig
from embodied.learning.reference import Reference, reference_kl
from embodied.weights.manifest import Version
from tests.learning.chunks import chunk_policy, draw_segment

FIRST, SECOND, THIRD = Version(1, "a" * 12), Version(2, "b" * 12), Version(5, "c" * 12)


def fresh(learner: PPO, seed: int) -> Segment:
    """A segment whose actions the learner's policy chose."""
    segment = draw_segment(seed, 6, 4, 2, 2, faults=0.0, takeovers=0.0)
    segment.versions[:] = learner.version.number if learner.version else 0
    policy, decided = learner.policy, segment.k == 0
    inputs = policy.inputs({"x": segment.observations["x"][decided]}, int(decided.sum()))
    with torch.no_grad():
        noise = torch.randn(len(inputs["state"]), 2, 2, generator=torch.Generator().manual_seed(seed))
        made = policy.network.sample(inputs, noise)
    segment.actions[decided], segment.log_probs[decided] = made.actions.numpy(), made.log_probs.numpy()
    return segment


def weights(policy: object) -> dict[str, np.ndarray]:
    return {name: array.copy() for name, array in policy.tensors().items()}  # type: ignore[attr-defined]


def equal(one: dict[str, np.ndarray], two: dict[str, np.ndarray]) -> bool:
    return all(np.array_equal(one[name], two[name]) for name in one)


@settings(deadline=None, max_examples=40)
@given(seed=st.integers(0, 2**32), n=st.integers(1, 4), k=st.integers(1, 3))
def test_kl_equals_a_loop(seed, n, k) -> None:
    rng = np.random.default_rng(seed)
    own, reference = rng.normal(size=(n, k, 2)), rng.normal(size=(n, k, 2))
    executed = rng.random((n, k)) < 0.6
    reference[~executed] = np.nan
    terms = [
        np.exp(reference[i, a, d] - own[i, a, d]) - (reference[i, a, d] - own[i, a, d]) - 1.0
        for i, a, d in np.ndindex(n, k, 2)
        if executed[i, a]
    ]
    new = torch.from_numpy(own).requires_grad_()
    found = reference_kl(new, torch.from_numpy(reference), torch.from_numpy(executed))
    assert found.item() == pytest.approx(np.mean(terms) if terms else 0.0)
    found.backward()
    assert new.grad is not None and new.grad.isfinite().all() and not new.grad[~torch.from_numpy(executed)].any()


def test_kl_of_two_gaussians_is_the_closed_form() -> None:
    x = 0.3 + torch.randn(200_000, 1, 1, generator=torch.Generator().manual_seed(0))
    own, reference = (torch.distributions.Normal(mean, 1.0).log_prob(x) for mean in (0.3, 0.0))
    found = reference_kl(own, reference, torch.ones(200_000, 1, dtype=torch.bool))
    assert found.item() == pytest.approx(0.3**2 / 2, rel=0.02)


@pytest.mark.parametrize("log_ratio", [19.0, 20.0, 1e3, -19.0, -1e3])
def test_no_log_ratio_overflows_and_none_within_20_is_cut(log_ratio: float) -> None:
    """d/d log pi of r - 1 - log r is 1 - r: it leads back to the reference from wherever r is small."""
    own = torch.tensor([[[-log_ratio]]], requires_grad=True)
    found = reference_kl(own, torch.zeros(1, 1, 1), torch.ones(1, 1, dtype=torch.bool))
    found.backward()
    kept = min(log_ratio, 20.0)
    assert found.item() == pytest.approx(math.expm1(kept) - kept, rel=1e-5) and own.grad is not None
    slope = 0.0 if log_ratio > 20.0 else 1.0 - math.exp(log_ratio)
    assert own.grad.item() == pytest.approx(slope, rel=1e-5)


def test_it_holds_what_was_published_and_stays() -> None:
    policy = chunk_policy(2)
    learner = PPO(policy, PPOConfig(epochs=1, reference_kl=0.1))
    with pytest.raises(DataError, match="no version was published"):
        learner.update([fresh(learner, 0)])
    clone = weights(policy)
    learner.published(FIRST)
    metrics = learner.update([fresh(learner, 1)])
    assert metrics["learner/reference_version"] == 1 and metrics["learner/reference_kl"] > 0
    learner.published(SECOND)
    assert learner.reference is not None
    assert learner.reference.version == FIRST and learner.version == SECOND
    assert equal(weights(learner.reference.policy), clone) and not equal(weights(policy), clone)
    assert not any(p.requires_grad for p in learner.reference.network.parameters())


def test_it_moves_every_so_many_updates() -> None:
    learner = PPO(chunk_policy(2), PPOConfig(epochs=1, reference_kl=0.1, reference_every=2))
    held = []
    for number in range(1, 7):
        learner.published(Version(number, "d" * 12))
        held.append(learner.update([fresh(learner, number)])["learner/reference_version"])
    assert held == [1, 1, 3, 3, 5, 5]


def test_it_normalises_as_its_own_version_did() -> None:
    policy = chunk_policy(2)
    reference, segment = Reference(policy), draw_segment(0, 4, 2, 2, 2)
    numbers, actions = torch.from_numpy(segment.observations["x"][0]), torch.zeros(2, 2, 2)
    reference.take(policy, FIRST, 0)
    with torch.no_grad():
        before = policy.network.evaluate_actions(policy.network.normalise(numbers), actions, {}).log_probs
    policy.network.set_normaliser(torch.ones(3), 2.0 * torch.ones(3))
    now = policy.network.normalise(numbers)
    assert torch.equal(reference.log_probs(numbers, now, actions, {}), before)


def test_parameters_that_stand_still_are_shared() -> None:
    policy = chunk_policy(2)
    policy.network.critic.requires_grad_(False)
    reference = Reference(policy)
    mine, theirs = (dict(net.named_parameters()) for net in (policy.network, reference.network))
    same = {name.split(".")[0] for name in mine if mine[name].data_ptr() == theirs[name].data_ptr()}
    assert same == {"critic"}
    assert mine["actor.0.weight"].requires_grad and not theirs["actor.0.weight"].requires_grad


def test_a_weight_pulls_the_policy_back_to_it() -> None:
    far = []
    for pull in (1e-9, 10.0):
        learner = PPO(chunk_policy(2), PPOConfig(epochs=4, lr=3e-3, target_kl=0, reference_kl=pull, normaliser_steps=0))
        learner.published(FIRST)
        far.append([learner.update([fresh(learner, seed)])["learner/reference_kl"] for seed in range(4)][-1])
    assert far[1] < 0.5 * far[0]


def test_an_update_after_load_equals_one_without() -> None:
    config = PPOConfig(epochs=2, reference_kl=0.5, reference_every=2, correction="truncated")
    learner = PPO(chunk_policy(2), config)
    for number in range(1, 4):
        learner.published(Version(number, "d" * 12))
        learner.update([fresh(learner, number)])
    file = io.BytesIO()
    torch.save(learner.state(), file)
    file.seek(0)
    resumed = PPO(chunk_policy(2, seed=9), config)
    resumed.load(torch.load(file, weights_only=True))
    resumed.published(THIRD)  # a resumed run publishes its weights anew, which moves nothing
    learner.published(THIRD)
    for seed in (7, 8):
        segment = fresh(learner, seed)
        metrics = learner.update([copy.deepcopy(segment)])
        assert resumed.update([segment]) == metrics
        assert metrics["learner/reference_version"] in (3, 5)
        for one in (learner, resumed):
            one.published(THIRD)
    assert equal(weights(learner), weights(resumed))


def test_states_that_do_not_fit_are_refused() -> None:
    config = PPOConfig(reference_kl=0.5)
    learner = PPO(chunk_policy(2), config)
    with pytest.raises(ConfigError, match=r"without a reference.*reference_kl=0, or start a new run") as said:
        learner.load(PPO(chunk_policy(2), PPOConfig()).state())
    assert "\n" not in said.value.line() and "older checkpoint" not in said.value.line()
    learner.published(FIRST)
    state = learner.state()
    before = weights(learner)
    other = PPO(chunk_policy(2, seed=4), config).state()
    for broken in ({"updates": 1}, state["reference"] | {"model": {}}, state["reference"] | {"version": 3}):
        with pytest.raises(CorruptFile, match="reference policy's state") as caught:
            learner.load(other | {"reference": broken})
        assert "\n" not in caught.value.line()
    assert equal(weights(learner), before)
    with pytest.raises(ConfigError, match="reference_every cannot be -1"):
        PPOConfig(reference_every=-1)
