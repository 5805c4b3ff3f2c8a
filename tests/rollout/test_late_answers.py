"""A pushed environment, such as a robot's: answers come late, and segments still train on what was executed."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from embodied.client import Executor, RecedingHorizon
from embodied.data import ActionChunk, AgentStep, Observation, RewardStatus, Rows, Segment
from embodied.learning.batch import assemble, check_on_policy
from embodied.rollout.segment_recorder import SegmentRecorder
from tests.learning.chunks import chunk_policy

B, K, D = 2, 5, 2


def observe(rows: Rows) -> Observation:
    """Numbers that tell environment, episode and step."""
    x = np.stack([rows.env, rows.episode, 0.1 * rows.step], axis=1).astype(np.float32)
    return Observation(rows.take(slice(None)), {"x": x}, rows.step * 0.1)


def push(
    total: int, length: int, execute: int, delays: list[int], ends: list[int]
) -> tuple[list[Segment], list[dict[tuple[int, int, int], tuple[np.ndarray, np.ndarray]]]]:
    """Segments of `length` steps, and per segment what each row, episode and step executed: action, log-probability.

    Args:
        delays: Steps that the n-th answer takes, in turn. ends: Steps after which the episodes of both rows end.
    """
    policy = chunk_policy(K, execute)
    executor = Executor(B, policy.spec, RecedingHorizon(execute))
    recorder = SegmentRecorder(length, B, policy.spec, D)
    rows, waiting, segments = Rows.of_envs(B), list[tuple[int, np.ndarray, Observation, ActionChunk]](), list[Segment]()
    done: list[dict[tuple[int, int, int], tuple[np.ndarray, np.ndarray]]] = [{}]
    asked_so_far = 0
    for now in range(total):
        seen = observe(rows)
        due = np.flatnonzero(executor.due(rows, seen.time))
        if len(due):
            asked = seen.take(due)
            executor.ask(due, rows, seen.time)
            chunk = policy.act(asked, asked.rows.noise_keys(3), "sample")
            chunk.versions = np.full(len(due), now, np.int64)
            waiting.append((now + delays[asked_so_far % len(delays)], due, asked, chunk))
            asked_so_far += 1
        for item in [item for item in waiting if item[0] <= now]:
            waiting.remove(item)
            _, ids, asked, chunk = item
            taken = np.flatnonzero(executor.accept(ids, chunk, asked.time))
            if len(taken):
                ago = (rows.step[ids[taken]] - asked.rows.step[taken]).astype(np.int32)
                recorder.decide(ids[taken], chunk.take(taken), ago, asked.take(taken))
        step = executor.next(rows, seen.time)
        over = now + 1 in ends
        ended = np.arange(B, dtype=np.int32) if over else np.zeros(0, np.int32)
        rewards = np.full(B, 0.01 * now, np.float32)
        flags = np.full(B, over)
        result = AgentStep(
            seen, rewards, np.full(B, RewardStatus.SCORED, np.uint8), flags, np.zeros(B, bool), flags.astype(np.uint8),
            ended, observe(rows).take(ended).streams,
        )  # fmt: skip
        recorder.step(seen, step, result, np.zeros((B, D)))
        for b in np.flatnonzero(step.ready):
            key = int(b), int(rows.episode[b]), int(rows.step[b])
            assert step.decision[b] == rows.step[b] - step.k[b] >= 0
            answered = observe(Rows(*(np.array([v]) for v in (b, 0, rows.episode[b], step.decision[b]))))
            fresh = policy.act(answered, answered.rows.noise_keys(3), "sample")
            np.testing.assert_array_equal(fresh.actions[0, step.k[b]], step.actions[b])
            done[-1][key] = fresh.actions[0, step.k[b]], fresh.log_probs[0, step.k[b]]
        rows.step += 1
        if over:
            rows.episode += 1
            rows.step[:] = 0
        if recorder.length == length or now + 1 == total:
            after = observe(rows)
            segments.append(recorder.finish(after, id=f"s{now}", policy="p", task="t"))
            none = executor.next(rows, after.time).k < 0
            recorder = SegmentRecorder(length, B, policy.spec, D, recorder.carry(~none))
            done.append({})
    return segments, done[: len(segments)]


@settings(max_examples=40, deadline=None)
@given(
    length=st.integers(1, 9), execute=st.integers(1, K), delays=st.lists(st.integers(0, 3), min_size=1, max_size=4),
    ends=st.lists(st.integers(1, 17), max_size=2),
)  # fmt: skip
def test_each_executed_action_trains_once_with_the_log_probability_it_was_sampled_with(
    length: int, execute: int, delays: list[int], ends: list[int]
) -> None:
    segments, done = push(18, length, execute, delays, ends)
    policy = chunk_policy(K, execute)
    for segment, expected in zip(segments, done, strict=True):
        check_on_policy(segment)
        batch, _ = assemble(policy, [segment], 0.9, 0.95)
        n, k = np.nonzero(batch.executed.numpy())
        found = {
            (a.tobytes(), p.tobytes())
            for a, p in zip(batch.actions.numpy()[n, k], batch.log_probs.numpy()[n, k], strict=True)
        }
        assert len(n) == len(expected) == len(found)
        assert found == {(action.tobytes(), log_prob.tobytes()) for action, log_prob in expected.values()}
        with torch.no_grad():  # the observations are those answered, so the policy as it is says the same
            evaluated = policy.network.evaluate_actions(batch.inputs, batch.actions, batch.stored)
        mask = batch.executed.numpy()
        np.testing.assert_allclose(evaluated.log_probs.numpy()[mask], batch.log_probs.numpy()[mask], atol=1e-5)
        idle = segment.k < 0
        assert not segment.trainable[idle].any() and (segment.versions[idle] == -1).all()


def test_late_answers_are_advantages_of_the_step_that_begins_to_execute_them() -> None:
    """Answers take two steps: the first two steps have no action, and later ones the rest of the chunk before."""
    (segment,), _ = push(8, 8, 2, [2], [])
    assert segment.k[:, 0].tolist() == [-1, -1, 2, 3, 4, 2, 3, 4]
    assert segment.carried is None and segment.executed[:, 0].sum() == 6
    policy = chunk_policy(K, 2)
    batch, _ = assemble(policy, [segment], 0.5, 0.0)
    x = segment.observations["x"][:, 0]
    with torch.no_grad():
        values = policy.network.value({"state": torch.from_numpy(x)}).numpy()
        after = policy.network.value({"state": torch.from_numpy(segment.bootstrap["x"][:1])}).item()
    rewards = segment.rewards[:, 0]
    assert len(batch) == 4  # two of each row
    expected = [
        rewards[t] + rewards[t + 1] / 2 + rewards[t + 2] / 4 + arrived / 8 - values[t]
        for t, arrived in ((2, values[5]), (5, after))
    ]
    np.testing.assert_allclose(batch.advantages[0::2].numpy(), expected, atol=1e-5)
    assert batch.critic_inputs is not None
    np.testing.assert_array_equal(batch.critic_inputs["state"][0::2].numpy(), x[[2, 5]])
    np.testing.assert_array_equal(batch.inputs["state"][0::2].numpy(), x[[0, 3]])
    assert batch.versions[0::2].tolist() == [0, 3]


def test_a_step_of_a_decision_that_was_not_recorded_is_refused() -> None:
    policy = chunk_policy(K)
    executor, recorder, rows = (
        Executor(1, policy.spec, RecedingHorizon(K)),
        SegmentRecorder(3, 1, policy.spec, D),
        Rows.of_envs(1),
    )
    seen = observe(rows)
    executor.ask([0], rows, seen.time)
    executor.accept([0], policy.act(seen, rows.noise_keys(0), "sample"), seen.time)
    rows.step += 1
    step = executor.next(rows, seen.time)
    nothing = np.zeros(1, bool)
    result = AgentStep(seen, np.zeros(1, np.float32), np.zeros(1, np.uint8), nothing, nothing, np.zeros(1, np.uint8),
                       np.zeros(0, np.int32), {"x": seen.streams["x"][:0]})  # fmt: skip
    with pytest.raises(ValueError, match="row 0 executes a decision of step -1 that was not recorded"):
        recorder.step(seen, step, result, np.zeros((1, D)))
