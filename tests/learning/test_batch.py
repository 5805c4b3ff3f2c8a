"""Decisions of chunks against each followed on its own, whatever cut them short."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from embodied.data import Segment, Source
from embodied.errors import DataError
from embodied.learning.batch import assemble, check_on_policy
from embodied.learning.decisions import decisions, on_policy
from policies.torch_policy import TorchPolicy
from tests.learning.chunks import chunk_policy, draw_segment, follow


def valued(policy: TorchPolicy, segment: Segment) -> list[np.ndarray]:
    """Values of the observations [T, B], behind the last step [B] and at the ends [M]."""
    parts = [part["x"] for part in (segment.observations, segment.bootstrap, segment.final)]
    with torch.no_grad():
        return [policy.network.value({"state": torch.from_numpy(part)}).numpy() for part in parts]


@settings(deadline=None, max_examples=60)
@given(
    seed=st.integers(0, 2**32), steps=st.integers(1, 10), envs=st.integers(1, 3), chunk=st.integers(1, 4),
    less=st.integers(0, 2), ends=st.sampled_from([0.0, 0.2, 0.8]), faults=st.sampled_from([0.0, 0.2]),
    takeovers=st.sampled_from([0.0, 0.3]), gamma=st.floats(0.5, 1), lam=st.floats(0, 1),
    unseen=st.sampled_from([0.0, 0.0, 0.3]),
)  # fmt: skip
def test_equals_decisions_followed_one_by_one(
    seed, steps, envs, chunk, less, ends, faults, takeovers, gamma, lam, unseen
) -> None:
    execute = max(chunk - less, 1)
    segment = draw_segment(seed, steps, envs, chunk, execute, ends, faults, takeovers)
    rng = np.random.default_rng(seed + 1)
    for part in (segment.observations["x"], segment.bootstrap["x"], segment.final["x"]):
        part[rng.random(part.shape[:-1]) < unseen, 0] = np.nan
    policy = chunk_policy(chunk, execute)
    check_on_policy(segment)
    expected = follow(segment, *valued(policy, segment), gamma, lam)
    batch, flat = assemble(policy, [segment], gamma, lam)
    assert len(batch) == len(expected)
    assert len(flat) == segment.steps + envs + len(segment.final_at)
    decisions = [expected[at] for at in sorted(expected)]
    at = np.array(sorted(expected), int).reshape(-1, 2).T
    executed = np.zeros((len(decisions), chunk), bool)
    for row, decision in zip(executed, decisions, strict=True):
        row[decision.actions] = True
    np.testing.assert_array_equal(batch.executed.numpy(), executed)
    advantages, values = (np.array([getattr(d, name) for d in decisions]) for name in ("advantage", "value"))
    np.testing.assert_allclose(batch.advantages.numpy(), advantages, atol=1e-4)
    np.testing.assert_allclose(batch.returns.numpy(), advantages + values, atol=1e-4)
    seen = segment.observations["x"][*at]
    for mine, theirs in ((batch.numbers, seen), (batch.inputs["state"], seen), (batch.versions, segment.versions[*at])):
        np.testing.assert_array_equal(mine.numpy(), theirs)
    for mine, theirs in ((batch.actions, segment.actions), (batch.log_probs, segment.log_probs)):
        np.testing.assert_array_equal(mine.numpy()[executed], theirs[*at][executed])
    assert batch.actions.isfinite().all()


def single(chunk: int, steps: int) -> Segment:
    """One row that executes whole chunks and never ends, all of it training."""
    return draw_segment(0, steps, 1, chunk, chunk, 0.0, 0.0, 0.0)


def test_a_takeover_in_mid_chunk_ends_the_decision_where_it_arrived() -> None:
    segment, policy = single(4, 8), chunk_policy(4)
    segment.source[2, 0] = Source.HUMAN
    assert decisions(segment, on_policy(segment)).executed[0].tolist() == [True, True, False, False]
    batch, _ = assemble(policy, [segment], 0.9, 0.95)
    values = valued(policy, segment)[0][:, 0]
    rewards = segment.rewards[:, 0]
    assert len(batch) == 2
    expected = rewards[0] + 0.9 * rewards[1] + 0.81 * values[2] - values[0]
    assert batch.advantages[0].item() == pytest.approx(expected, abs=1e-5)
    before = batch.advantages.clone()
    segment.rewards[2:4] = np.nan  # what the person did, and what the chunk would have done after
    assert torch.equal(assemble(policy, [segment], 0.9, 0.95)[0].advantages, before)


def test_a_fault_in_mid_chunk_is_no_reward_and_no_end() -> None:
    segment, policy = single(3, 6), chunk_policy(3)
    segment.truncated[4, 0], segment.trainable[4, 0] = True, False
    segment.final_at, segment.final = np.array([[4, 0]], np.int32), {"x": np.full((1, 3), 9.0, np.float32)}
    segment.k[5], segment.executed[5, 0], segment.executed[3, 0] = 0, [True, False, False], [True, True, False]
    segment.actions[5], segment.log_probs[5], segment.rewards[4] = 0.0, 0.0, np.nan
    batch, _ = assemble(policy, [segment], 0.9, 1.0)
    values = valued(policy, segment)[0][:, 0]
    assert batch.executed.tolist() == [[True, True, True], [True, False, False], [True, False, False]]
    second = segment.rewards[3, 0] + 0.9 * values[4] - values[3]
    assert batch.advantages[1].item() == pytest.approx(second, abs=1e-5)


def test_a_step_that_led_to_what_nobody_saw_is_left_out() -> None:
    """At the end of a chunk, in its middle where nothing reads it, behind the last step, and at an episode's end."""
    segment, policy = single(2, 6), chunk_policy(2)
    whole, _ = assemble(policy, [segment], 0.9, 0.95)
    segment.observations["x"][1] = np.nan
    assert torch.equal(assemble(policy, [segment], 0.9, 0.95)[0].advantages, whole.advantages)
    segment.observations["x"][1] = 0.5
    segment.bootstrap["x"][:], segment.trainable[2] = np.nan, False
    segment.observations["x"][2] = np.nan
    values, rewards = valued(policy, segment)[0][:, 0], segment.rewards[:, 0]
    batch, _ = assemble(policy, [segment], 0.9, 0.95)
    assert batch.executed.tolist() == [[True, False], [True, False]]
    expected = [rewards[t] + 0.9 * values[t + 1] - values[t] for t in (0, 4)]
    np.testing.assert_allclose(batch.advantages.numpy(), expected, atol=1e-5)
    segment.terminated[5] = True
    segment.final_at, segment.final = np.array([[5, 0]], np.int32), {"x": np.full((1, 3), np.nan, np.float32)}
    assert assemble(policy, [segment], 0.9, 0.95)[0].executed.tolist() == [[True, False], [True, True]]


def test_the_end_of_a_segment_in_mid_chunk_bootstraps_by_the_steps_executed() -> None:
    segment, policy = single(4, 6), chunk_policy(4)
    batch, _ = assemble(policy, [segment], 0.5, 1.0)
    values, (after,), _ = valued(policy, segment)
    rewards = segment.rewards[:, 0]
    assert batch.executed[1].tolist() == [True, True, False, False]
    expected = rewards[4] + 0.5 * rewards[5] + 0.25 * after - values[4, 0]
    assert batch.advantages[1].item() == pytest.approx(expected, abs=1e-5)


def test_several_segments_are_one_batch() -> None:
    policy, segments = chunk_policy(2), [draw_segment(seed, 6, 2, 2, 2) for seed in (1, 2)]
    batch, flat = assemble(policy, segments, 0.9, 0.9)
    alone = [assemble(policy, [segment], 0.9, 0.9) for segment in segments]
    assert torch.equal(batch.advantages, torch.cat([part.advantages for part, _ in alone]))
    np.testing.assert_array_equal(flat, np.concatenate([numbers for _, numbers in alone]))
    half = batch.take(slice(0, 2))
    assert len(half) == 2 and half.weights is None and half.inputs["state"].shape == (2, 3)


def test_what_the_policy_stored_comes_with_its_decision() -> None:
    segment, policy = draw_segment(3, 6, 2, 2, 2), chunk_policy(2)
    segment.stored["path"] = np.arange(12, dtype=np.float32).reshape(6, 2)
    batch, _ = assemble(policy, [segment], 0.9, 0.9)
    train = (segment.k == 0) & on_policy(segment)
    np.testing.assert_array_equal(batch.stored["path"].numpy(), segment.stored["path"][train])


def test_a_stream_that_was_not_recorded_is_named() -> None:
    segment = single(1, 3)
    segment.observations = {"y": segment.observations["x"]}
    with pytest.raises(DataError, match="no stream x"):
        assemble(chunk_policy(1), [segment], 0.9, 0.9)
