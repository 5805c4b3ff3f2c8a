"""Whether rollouts are the learner's own, and what is said where they are not."""

import math
import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from embodied.client import LocalClient
from embodied.data import ActionChunk, Segment, Source
from embodied.errors import DeadlineExceeded, RolloutMismatch, UserError
from embodied.learning.batch import assemble
from embodied.learning.consistency import ROWS, check_drift, decided, diagnose, explain, measure
from embodied.learning.ppo import PPO, PPOConfig
from embodied.serving.versioned_policy import VersionedPolicy
from embodied.weights.manifest import Manifest, Version
from embodied.wire.probe import PROBE_ROWS, ProbeResult
from policies.base import Policy
from policies.film import FiLMPolicy
from policies.mlp import MLPPolicy
from simulators.one_agent import OneAgentEnv
from tests.learning.planted import (
    FiLMAltered,
    FiLMHalf,
    FiLMMirrored,
    FiLMOtherLayer,
    FiLMOtherScale,
    FiLMOtherWords,
    film,
    seen,
)
from tests.learning.pointmass import AGENT, PointMass, collect

CONFIG = PPOConfig(epochs=1, minibatches=1, seed=1)
VERSION = Version(4, "0" * 12)
SOUND = "nothing differs that can be seen; the rollout's data were altered on the way"


def by_hand(log_ratio: np.ndarray, mask: np.ndarray) -> dict[str, float]:
    """Every number of `measure`, one at a time."""
    taken = [float(r) for r, counts in zip(log_ratio.ravel(), mask.ravel(), strict=True) if counts]
    weights = [math.exp(r) for r in taken]
    n = len(taken)
    return {
        "drift": sum(math.exp(abs(r)) for r in taken) / n - 1.0,
        "ratio": sum(weights) / n,
        "kl": sum(w - 1.0 - r for w, r in zip(weights, taken, strict=True)) / n,
        "ess": sum(weights) ** 2 / (n * sum(w * w for w in weights)),
        "max_log_ratio": max(abs(r) for r in taken),
    }


@given(st.integers(1, 40), st.floats(1e-6, 3.0), st.integers(0, 2**31))
def test_measured_as_by_hand(count: int, spread: float, seed: int) -> None:
    draw = np.random.default_rng(seed)
    log_ratio = (spread * draw.normal(size=(count, 3))).astype(np.float32)
    mask = draw.random((count, 3)) < 0.7
    mask[0, 0] = True
    log_ratio[~mask] = np.nan
    found = measure(torch.from_numpy(log_ratio), torch.from_numpy(mask))
    assert found == pytest.approx(by_hand(log_ratio, mask), rel=1e-9, abs=1e-12)
    assert 1 / mask.sum() - 1e-9 <= found["ess"] <= 1 + 1e-9


def test_the_effective_sample_size_is_kongs() -> None:
    """One weight of 4 and three of 1 are worth 49 / (4 * 19) of four samples: (sum w)^2 / (n sum w^2)."""
    found = measure(torch.tensor([math.log(4.0), 0.0, 0.0, 0.0]), torch.ones(4, dtype=torch.bool))
    assert found["ess"] == pytest.approx(49 / 76)
    assert found["drift"] == pytest.approx(3 / 4) and found["ratio"] == pytest.approx(7 / 4)


def test_equal_numbers_do_not_drift_and_none_are_no_number() -> None:
    same = measure(torch.zeros(5), torch.ones(5, dtype=torch.bool))
    assert same == {"drift": 0.0, "ratio": 1.0, "kl": 0.0, "ess": 1.0, "max_log_ratio": 0.0}
    assert all(math.isnan(value) for value in measure(torch.ones(5), torch.zeros(5, dtype=torch.bool)).values())


def test_the_bound() -> None:
    check_drift({"drift": 0.02}, 0.02, 3)
    check_drift({"drift": 9.0}, 0.0, 3)
    for drift in (0.0201, math.inf, math.nan):
        with pytest.raises(RolloutMismatch, match=r"drift by .* allowed are 0.02 \(version 3\)") as caught:
            check_drift({"drift": drift}, 0.02, 3)
        assert caught.value.code == "mismatch" and caught.value.exit_status == 3


@pytest.fixture
def learner() -> PPO:
    made = PPO(MLPPolicy("p", AGENT, hidden=(16,)), CONFIG)
    made.published(VERSION)
    return made


@pytest.fixture
def segment(learner: PPO) -> Segment:
    serving = MLPPolicy("p", AGENT, hidden=(16,), seed=9)
    serving.load(learner.tensors())
    env = PointMass(6)
    made, _ = collect(env, serving, OneAgentEnv(env).reset()[0], 20, 0)
    made.versions[:] = VERSION.number
    return made


def test_sound_rollouts_are_learned_from(learner: PPO, segment: Segment) -> None:
    found = learner.update([segment])
    assert found["learner/drift_at_start"] < 1e-5
    assert found["learner/ess_at_start"] == pytest.approx(1.0, abs=1e-6)
    assert found["learner/ratio_at_start"] == pytest.approx(1.0, abs=1e-6)


def test_beyond_the_bound_nothing_is_learned(learner: PPO, segment: Segment) -> None:
    segment.log_probs += 0.1
    before, state = learner.tensors(), learner.generator.get_state()
    with pytest.raises(RolloutMismatch, match="version 4"):
        learner.update([segment])
    after = learner.tensors()
    assert all(np.array_equal(before[name], after[name]) for name in before)
    assert learner.updates == learner.samples == 0 and torch.equal(state, learner.generator.get_state())
    learner.config = replace(CONFIG, drift=0.0)
    assert learner.update([segment])["learner/drift_at_start"] == pytest.approx(math.expm1(0.1), rel=1e-3)


def test_older_decisions_may_differ(learner: PPO, segment: Segment) -> None:
    segment.versions[:10] -= 1
    segment.log_probs[:10] -= 0.3
    assert learner.update([segment])["learner/drift_at_start"] < 1e-5
    segment.versions[:] -= 1
    found = learner.update([segment])
    assert all(math.isnan(found[f"learner/{name}_at_start"]) for name in ("drift", "ratio", "kl", "ess"))


def test_data_that_all_lag_are_checked_against_their_own_version(learner: PPO, segment: Segment) -> None:
    segment.versions[:] = VERSION.number - 1
    kept = {name: array.copy() for name, array in learner.tensors().items()}
    learner.older.read = {VERSION.number - 1: kept}.__getitem__
    with torch.no_grad():
        for parameter in learner.network.parameters():  # the learner has moved on since
            parameter.add_(0.05)
    found = learner.older.measure(assemble(learner.policy, [segment], 0.9, 0.9)[0], 1024)
    assert found is not None and found[0] == VERSION.number - 1 and found[1]["drift"] < 1e-5
    assert learner.update([segment])["learner/drift_at_start"] < 1e-5
    segment.log_probs += 0.1
    before = learner.tensors()
    with pytest.raises(RolloutMismatch, match=f"version {VERSION.number - 1}"):
        learner.update([segment])
    assert all(np.array_equal(before[name], after) for name, after in learner.tensors().items())


def test_the_newest_version_that_can_be_read_is_the_one_checked(learner: PPO, segment: Segment) -> None:
    segment.versions[:5], segment.versions[5:] = 2, 3
    segment.log_probs[5:] += 0.5  # of the version that is gone
    asked = []

    def read(number: int) -> dict[str, np.ndarray]:
        asked.append(number)
        if number == 3:
            raise UserError("it is gone", "version 3", "keep more")
        return learner.tensors()

    learner.older.read = read
    assert learner.update([segment])["learner/drift_at_start"] < 1e-5 and asked == [3, 2]


def test_it_is_said_once_that_drift_could_not_be_checked(learner: PPO, segment: Segment) -> None:
    said: list[str] = []
    learner.older.say = said.append
    segment.versions[:] -= 1
    for _ in range(2):
        assert math.isnan(learner.update([segment])["learner/drift_at_start"])
    assert said == ["drift is not checked: no version that decided can be read (3)"]
    learner.config = replace(CONFIG, drift=0.0)
    learner.older.read = None
    learner.update([segment])
    assert len(said) == 1


def test_one_fresh_decision_among_old_ones_is_enough_to_refuse(learner: PPO, segment: Segment) -> None:
    segment.versions[:] -= 1
    segment.versions[7, 3] += 1
    segment.log_probs[7, 3] += 0.2
    with pytest.raises(RolloutMismatch):
        learner.update([segment])


def hosted(policy: Policy, learner: Policy) -> LocalClient:
    host = VersionedPolicy(policy)
    tensors = learner.tensors()
    host.switch(Manifest.of(policy.spec.name, VERSION.number, tensors, policy.spec.to_dict()), tensors)
    return LocalClient(host)


PLANTED = [
    (FiLMAltered, r"parameter actor\.4\.bias differs on the server, and no other of \d+"),
    (FiLMHalf, "the dtype of computation is float32 and bfloat16 on the server, float32 in the learner"),
    (FiLMOtherScale, r"preprocessing step state differs, by up to \d"),
    (FiLMMirrored, r"preprocessing step pictures/front_rgb differs, by up to 2\d\d"),
    (FiLMOtherWords, "preprocessing step words differs, by up to 1"),
    (FiLMOtherLayer, r"the network's actor\.1 differs, by up to .*, though parameters and preprocessing are equal"),
]


@pytest.mark.parametrize(("kind", "said"), PLANTED, ids=lambda value: getattr(value, "__name__", ""))
def test_what_differs_is_named(kind: type, said: str) -> None:
    mine = film()
    found = diagnose(mine, hosted(film(kind, seed=3), mine), seen(6), VERSION.number)
    assert re.fullmatch(said + r"[\d.e+-]*", found), found


def test_equal_copies_show_nothing_and_other_versions_are_told_first() -> None:
    mine = film()
    client = hosted(film(seed=3), mine)
    assert diagnose(mine, client, seen(6), VERSION.number) == diagnose(mine, client, seen(1)) == SOUND
    other = diagnose(mine, client, seen(1), VERSION.number + 1)
    assert other == "the server answers with version 4, the learner has 5"
    assert "no decision of this version" in diagnose(mine, client, seen(0), VERSION.number)


def test_a_difference_in_a_later_row_is_found() -> None:
    class Rarely(FiLMPolicy):
        def inputs(self, streams, rows, *args, **options):  # type: ignore[no-untyped-def]
            made = super().inputs(streams, rows, *args, **options)
            said = np.asarray(streams["instruction"]).reshape(rows, -1)[:, 0] == ord("g")
            made["words"][:rows][torch.from_numpy(said)] = 7
            return made

    mine = film()
    client = hosted(film(Rarely), mine)
    rows = seen(PROBE_ROWS + 2)
    assert diagnose(mine, client, rows.take([0, 1, 3, 4])) == SOUND
    assert "preprocessing step words differs" in diagnose(mine, client, rows.take([0, 1, 3, 4, 5]))


class Shown:
    """A client that shows what it is told to."""

    def __init__(self, probed: ProbeResult | Exception) -> None:
        self.probed = probed

    def probe(self, observation: object) -> ProbeResult:
        if isinstance(self.probed, Exception):
            raise self.probed
        return self.probed


def test_what_a_server_may_show_otherwise() -> None:
    mine = film()
    own = hosted(mine, mine).probe(seen(1))
    first = next(iter(own.tensors))
    fewer = {name: found for name, found in own.tensors.items() if name != first}
    half, more = {**own.tensors, first: ("float16", "")}, {**own.tensors, "more": ("float32", "")}
    words, state = own.steps["words"], own.steps["state"]
    cases: list[tuple[ProbeResult | Exception, str]] = [
        (replace(own, tensors=half), f"the dtype of parameter {first} is float16 on the server, float32 in the"),
        (replace(own, tensors=more), "parameter more is missing in the learner"),
        (replace(own, tensors=fewer), f"{first} is missing on the server"),
        (replace(own, tensors={n: (d, "x") for n, (d, _) in own.tensors.items()}), f"parameter {first} differs on the"),
        (replace(own, steps={}), "the tensors are equal, and the policy served does not show its preprocessing"),
        (replace(own, steps={"state": state}), "the dtype of computation is unknown on the server"),
        (replace(own, steps={n: a for n, a in own.steps.items() if n != "words"}), "words is missing on the server"),
        (replace(own, steps={**own.steps, "words": words[:, :3]}), "step words is int64[1, 3] on the server, int64["),
        (replace(own, steps={**own.steps, "state": state * np.nan}), "step state differs, by up to inf"),
        (DeadlineExceeded("no answer", "policy server"), "what differs cannot be seen: no answer (policy server)"),
    ]
    for probed, said in cases:
        found = diagnose(mine, Shown(probed), seen(1))  # type: ignore[arg-type]
        assert said in found, found


def test_decisions_are_taken_from_all_over_the_segment(segment: Segment) -> None:
    spec = MLPPolicy("p", AGENT).spec
    segment.versions[12:] += 1
    segment.source[0] = Source.SCRIPT
    taken = decided(segment, spec, VERSION.number)
    assert len(taken.rows) == ROWS
    assert taken.streams["goal"].shape == (ROWS, 2) and taken.time.shape == (ROWS,)
    assert {0, 5} <= set(taken.rows.env.tolist()) and taken.rows.step.min() > 0 and taken.rows.step.max() <= 11
    assert len(decided(segment, spec, 77).rows) == 0


def test_the_error_says_what_differs(learner: PPO, segment: Segment) -> None:
    client = hosted(MLPPolicy("p", AGENT, hidden=(16,)), learner.policy)
    error = RolloutMismatch("it drifts", "version 4", "x")
    error.version = VERSION.number
    line = explain(error, learner.policy, client, [segment], VERSION.number, "mend that").line()
    assert line == f"it drifts (version 4, segment s): {SOUND}; mend that"


def test_drift_of_an_older_version_is_explained_on_its_own_observations(learner: PPO, segment: Segment) -> None:
    client = hosted(MLPPolicy("p", AGENT, hidden=(16,)), learner.policy)
    older = replace(segment, id="older", versions=segment.versions - 1)
    error = RolloutMismatch("it drifts", "version 3", "x")
    error.version = VERSION.number - 1
    line = explain(error, learner.policy, client, [segment, older], VERSION.number, "mend that").line()
    assert line == f"it drifts (version 3, segment older): {SOUND}; mend that"


def test_a_probe_leaves_the_policy_as_it_was() -> None:
    policy = film()
    rows = seen(3)
    keys = rows.rows.noise_keys(0)
    before: ActionChunk = policy.act(rows, keys, "sample")
    steps = policy.probe(rows)
    names = list(steps)
    assert names[:3] == ["state", "pictures/front_rgb", "words"]
    assert bytes(steps["compute_dtype"]) == b"float32" and names[-3:-1] == ["network/actions", "network/log_probs"]
    np.testing.assert_array_equal(steps["pictures/front_rgb"], rows.streams["front_rgb"])
    after = policy.act(rows, keys, "sample")
    np.testing.assert_array_equal(before.actions, after.actions)
    assert not any(layer._forward_hooks for layer in policy.network.modules())
