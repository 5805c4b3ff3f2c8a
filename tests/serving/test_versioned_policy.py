import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from embodied.data import ActionChunk, Outcome, Rows
from embodied.errors import DataError, MessageError, WeightsRefused
from embodied.serving.versioned_policy import VersionedPolicy
from embodied.weights.manifest import Manifest
from tests.serving.tiny import SPEC, TinyPolicy, manifest, observation, same, tensors


def test_versions_are_stamped_and_only_grow() -> None:
    host = VersionedPolicy(TinyPolicy())
    seen = observation(2)
    keys = seen.rows.noise_keys(0)
    assert host.version == (0, "")
    assert host.act(seen, keys, "mean").policy == "tiny"
    assert host.switch(manifest(3), tensors(3)) == host.version == manifest(3).version
    chunk = host.act(seen, keys, "mean")
    assert chunk.versions.tolist() == [3, 3] and chunk.versions.dtype == np.int64
    assert chunk.values.tolist() == [3, 3]
    assert host.switch(manifest(3), {}) == host.version  # the same again needs no tensors
    for number, tag, words in ((2, 2, "stale"), (3, 4, "another content")):
        with pytest.raises(WeightsRefused, match=words) as caught:
            host.switch(manifest(number, tag), tensors(tag))
        assert manifest(number, tag).label in caught.value.where and manifest(3).label in caught.value.what
    same(host.act(seen, keys, "mean"), chunk)


def test_weights_of_another_policy_partial_altered_or_unfit() -> None:
    host = VersionedPolicy(TinyPolicy())
    host.switch(manifest(1), tensors(1))
    whole = tensors(2)
    unfit = {"weight": np.zeros((5, 6), np.float32), "tag": whole["tag"]}
    for said, sent, words in (
        (Manifest.of("other", 2, whole, {}), whole, "other"),
        (manifest(2), {"tag": whole["tag"]}, "weight is missing"),
        (manifest(2), {**whole, "more": whole["tag"]}, "more"),
        (manifest(2), {**whole, "weight": whole["weight"] + 1}, "weight"),
        (manifest(2), {**whole, "weight": whole["weight"].astype(np.float64)}, "dtype"),
        (Manifest.of("tiny", 2, unfit, SPEC.to_dict()), unfit, "does not fit"),
    ):
        with pytest.raises(WeightsRefused, match=words):
            host.switch(said, sent)
        assert host.version == manifest(1).version
        assert host.act(observation(1), np.zeros((1, 5), np.int64), "mean").values.tolist() == [1]


@pytest.mark.parametrize("back", [False, True])
@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            lambda s: s["agent"]["observations"][0].update(unit="deg"),
            r"observations\[joint_pos\].unit \"deg\", the pol",
        ),
        (lambda s: s.update(execute=1), "execute 1, the policy served has 2"),
        (lambda s: s.update(agent=3), "agent 3, the"),
        (lambda s: s["agent"]["observations"].insert(0, 7), "observations"),
        (lambda s: s.update(more={"deep": [1]}), "more"),
        (lambda s: s.clear(), "agent missing"),
    ],
)
def test_weights_of_another_spec_are_refused(change: Any, words: str, back: bool) -> None:
    host, spec = VersionedPolicy(TinyPolicy()), json.loads(json.dumps(SPEC.to_dict()))
    change(spec)
    other = Manifest.of("tiny", 2, tensors(2), spec)
    with pytest.raises(WeightsRefused, match=words):
        host.switch(other, tensors(2), back)
    assert host.version == (0, "")


def test_whose_number_is_taken_is_told_what_to_do() -> None:
    host = VersionedPolicy(TinyPolicy())
    host.switch(manifest(3), tensors(3))
    for number, tag in ((2, 2), (3, 4)):
        with pytest.raises(WeightsRefused) as caught:
            host.admit(manifest(number, tag))
        assert "another run's versions are served here" in caught.value.fix and "weights=FOLDER" in caught.value.fix


def test_a_policy_that_breaks_its_spec_is_found_out() -> None:
    class Broken(TinyPolicy):
        def act(self, *args) -> ActionChunk:  # type: ignore[no-untyped-def]
            chunk = super().act(*args)
            chunk.actions = chunk.actions[:, :2]
            return chunk

    with pytest.raises(DataError, match="policy gave actions"):
        VersionedPolicy(Broken()).act(observation(2), np.zeros((2, 5), np.int64), "mean")


def test_outcomes_are_counted_per_version_and_bounded() -> None:
    host = VersionedPolicy(TinyPolicy())
    rows = Rows.of_envs(2)
    for number in range(100):
        host.outcome(rows, [Outcome.SUCCESS, Outcome.SAFETY_STOP], [number, number])
    assert len(host.outcomes) == 64 and host.outcomes[99].tolist() == [0, 1, 0, 0, 1, 0, 0]
    for outcomes in ([1], [1, 7], [1, -1]):
        with pytest.raises(MessageError):
            host.outcome(rows, outcomes)


def test_a_number_out_of_its_range_is_refused_by_stream_and_row() -> None:
    ranged = TinyPolicy()
    position, camera = SPEC.agent.observations
    streams = (replace(position, range=(-3.0, 3.0)), replace(camera, range=(0.0, 200.0)))
    ranged.spec = replace(SPEC, agent=replace(SPEC.agent, observations=streams))
    for policy, value, said in (
        (TinyPolicy(), 1e30, "holds 1e\\+30, beyond -1e\\+09 to 1e\\+09"),
        (ranged, -3.5, "holds -3.5, beyond -3 to 3"),
        (ranged, np.nan, "is not finite"),
    ):
        seen = observation(3)
        seen.streams["joint_pos"][1, 2] = value
        with pytest.raises(DataError, match=f"stream joint_pos {said}.* in row 1 .*env 1"):
            VersionedPolicy(policy).act(seen, seen.rows.noise_keys(0), "mean")
    seen = observation(3)
    seen.streams["camera"][:] = 0
    seen.streams["camera"][2, 0, 0, 0] = 201
    with pytest.raises(DataError, match="stream camera holds 201, beyond 0 to 200, in row 2"):
        VersionedPolicy(ranged).act(seen, seen.rows.noise_keys(0), "mean")


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("mode", ["sample", "mean"])
def test_an_action_that_is_not_finite_is_refused_by_version_and_row(value: float, mode: Any) -> None:
    class Diverged(TinyPolicy):
        def act(self, *given: Any) -> ActionChunk:
            chunk = super().act(*given)
            chunk.actions[2, 1, 0] = value
            return chunk

    host, seen = VersionedPolicy(Diverged()), observation(4, seed=7)
    host.switch(manifest(3), tensors(3))
    with pytest.raises(DataError, match=r"action that is not finite in row 2 .*env 2, episode 0, step 7") as caught:
        host.act(seen, seen.rows.noise_keys(0), mode)
    assert manifest(3).label in caught.value.where and "\n" not in caught.value.line()
