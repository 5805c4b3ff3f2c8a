"""Advantages against a slow reference that follows each step's future one by one."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from embodied.errors import DataError
from embodied.learning.advantages import gae, next_values
from tests.learning.chunks import draw_segment, follow


def reference(data: dict, gamma: float, lam: float) -> np.ndarray:
    """The sum of discounted temporal differences, written out per step."""
    steps, envs = data["rewards"].shape
    final = {tuple(at): value for at, value in zip(data["final_at"].tolist(), data["final_values"], strict=True)}
    result = np.zeros((steps, envs))
    for b in range(envs):
        for start in range(steps):
            weight, t = 1.0, start
            while t < steps and data["valid"][t, b]:
                if data["terminated"][t, b]:
                    after = 0.0
                elif data["truncated"][t, b]:
                    after = final[t, b]
                else:
                    after = data["values"][t + 1, b] if t + 1 < steps else data["bootstrap"][b]
                result[start, b] += weight * (data["rewards"][t, b] + gamma * after - data["values"][t, b])
                if data["terminated"][t, b] or data["truncated"][t, b]:
                    break
                weight *= gamma * lam
                t += 1
    return result


def draw(seed: int, steps: int, envs: int, ends: float, gaps: float) -> dict:
    rng = np.random.default_rng(seed)
    shape = (steps, envs)
    terminated, truncated = rng.random(shape) < ends, rng.random(shape) < ends
    final_at = np.argwhere(terminated | truncated).astype(np.int32)
    floats = {name: rng.normal(size=shape).astype(np.float32) for name in ("rewards", "values")}
    return floats | {
        "bootstrap": rng.normal(size=envs).astype(np.float32),
        "final_at": final_at,
        "final_values": rng.normal(size=len(final_at)).astype(np.float32),
        "terminated": terminated,
        "truncated": truncated,
        "valid": rng.random(shape) >= gaps,
    }


def compute(data: dict, gamma: float, lam: float) -> tuple[np.ndarray, np.ndarray]:
    names = ("values", "bootstrap", "final_at", "final_values", "terminated", "truncated")
    after = next_values(*(data[name] for name in names))
    ended = data["terminated"] | data["truncated"]
    return gae(data["rewards"], data["values"], after, ended, data["valid"], gamma, lam)


@settings(deadline=None, max_examples=150)
@given(
    seed=st.integers(0, 2**32), steps=st.integers(1, 12), envs=st.integers(1, 4),
    ends=st.sampled_from([0.0, 0.2, 0.9]), gaps=st.sampled_from([0.0, 0.3, 1.0]),
    gamma=st.floats(0, 1), lam=st.floats(0, 1),
)  # fmt: skip
def test_equals_the_reference(seed, steps, envs, ends, gaps, gamma, lam):
    data = draw(seed, steps, envs, ends, gaps)
    advantages, returns = compute(data, gamma, lam)
    np.testing.assert_allclose(advantages, reference(data, gamma, lam), atol=1e-4)
    np.testing.assert_allclose(returns, advantages + data["values"], atol=1e-5)
    assert advantages.dtype == returns.dtype == np.float32
    assert not advantages[~data["valid"]].any()


def test_truncation_bootstraps_and_termination_does_not():
    data = draw(0, 1, 2, 0.0, 0.0)
    data["terminated"], data["truncated"] = np.array([[True, False]]), np.array([[False, True]])
    data["final_at"], data["final_values"] = np.array([[0, 0], [0, 1]], np.int32), np.array([7.0, 5.0], np.float32)
    advantages, _ = compute(data, 0.5, 1.0)
    np.testing.assert_allclose(advantages[0], data["rewards"][0] - data["values"][0] + [0.0, 2.5], rtol=1e-6)


def test_a_step_that_may_not_train_leaks_nothing_but_its_value():
    data = draw(1, 5, 1, 0.0, 0.0)
    data["valid"][3] = False
    before = compute(data, 0.9, 0.9)[0]
    data["rewards"][3], data["values"][4] = 1e6, -1e6
    after = compute(data, 0.9, 0.9)[0]
    np.testing.assert_array_equal(before[:3], after[:3])
    data["rewards"][3] = np.nan
    np.testing.assert_array_equal(before[:3], compute(data, 0.9, 0.9)[0][:3])
    delta = data["rewards"][2] + 0.9 * data["values"][3] - data["values"][2]
    np.testing.assert_allclose(after[2], delta, rtol=1e-6)


def test_a_truncated_step_without_its_final_observation_is_refused():
    data = draw(0, 3, 1, 0.0, 0.0)
    data["truncated"][1] = True
    with pytest.raises(DataError, match="final observation"):
        compute(data, 0.9, 0.9)


@settings(deadline=None, max_examples=100)
@given(
    seed=st.integers(0, 2**32), steps=st.integers(1, 12), chunk=st.integers(1, 5), ends=st.sampled_from([0.0, 0.2]),
    faults=st.sampled_from([0.0, 0.3]), takeovers=st.sampled_from([0.0, 0.3]),
    gamma=st.floats(0, 1), lam=st.floats(0, 1),
)  # fmt: skip
def test_chunks_equal_decisions_followed_one_by_one(seed, steps, chunk, ends, faults, takeovers, gamma, lam):
    segment = draw_segment(seed, steps, 2, chunk, chunk, ends, faults, takeovers)
    rng = np.random.default_rng(seed)
    values, bootstrap, final = (
        rng.normal(size=size).astype(np.float32) for size in ((steps, 2), 2, len(segment.final_at))
    )
    valid = segment.trainable & (segment.source == 0)
    after = next_values(values, bootstrap, segment.final_at, final, segment.terminated, segment.truncated)
    ended = segment.terminated | segment.truncated
    advantages, returns = gae(segment.rewards, values, after, ended, valid, gamma, lam, segment.k)
    expected = follow(segment, values, bootstrap, final, gamma, lam)
    for at, decision in expected.items():
        assert advantages[at] == pytest.approx(decision.advantage, abs=1e-4)
        assert returns[at] == pytest.approx(decision.advantage + decision.value, abs=1e-4)


def test_a_chunk_by_hand():
    """Two decisions of two and one actions; gamma 1/2, lambda 1/2; the episode ends by a time limit."""
    rewards, values = np.array([[1.0], [2.0], [4.0]], np.float32), np.array([[1.0], [99.0], [3.0]], np.float32)
    k, ended = np.array([[0], [1], [0]], np.int32), np.array([[False], [False], [True]])
    final_at, final = np.array([[2, 0]], np.int32), np.array([8.0], np.float32)
    after = next_values(values, np.zeros(1, np.float32), final_at, final, np.zeros((3, 1), bool), ended)
    advantages, _ = gae(rewards, values, after, ended, np.ones((3, 1), bool), 0.5, 0.5, k)
    second = 4.0 + 0.5 * 8.0 - 3.0
    first = 1.0 + 0.5 * 2.0 + 0.25 * 3.0 - 1.0 + 0.5 * 0.25 * second
    np.testing.assert_allclose(advantages[[0, 2], 0], [first, second])
