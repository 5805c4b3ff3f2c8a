"""Losses: means over what may train only, and gradients that what is masked never touches."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from embodied.learning.losses import (
    approximate_kl,
    clipped_policy_loss,
    masked_mean,
    reduce_log_ratio,
    value_loss,
)


def test_granularities_sum_and_count_what_was_executed():
    log_ratio = torch.arange(12.0).reshape(2, 3, 2)
    executed = torch.tensor([[True, True, False], [True, False, False]])
    token, mask = reduce_log_ratio(log_ratio, executed, "token")
    assert token.shape == mask.shape == (2, 3, 2)
    assert mask.sum() == 6
    action, mask = reduce_log_ratio(log_ratio, executed, "action")
    assert torch.equal(action, torch.tensor([[1.0, 5.0, 0.0], [13.0, 0.0, 0.0]]))
    assert torch.equal(mask, executed)
    chunk, mask = reduce_log_ratio(log_ratio, executed, "chunk")
    assert torch.equal(chunk, torch.tensor([[6.0], [13.0]]))
    assert mask.all()
    _, mask = reduce_log_ratio(log_ratio, executed & torch.tensor([[True], [False]]), "chunk")
    assert mask.tolist() == [[True], [False]]


@settings(deadline=None, max_examples=50)
@given(
    seed=st.integers(0, 2**32), n=st.integers(1, 4), k=st.integers(1, 4), d=st.integers(1, 3),
    granularity=st.sampled_from(["token", "action", "chunk"]), per_dimension=st.booleans(),
)  # fmt: skip
def test_granularities_equal_loops(seed, n, k, d, granularity, per_dimension):
    rng = np.random.default_rng(seed)
    log_ratio, executed = rng.normal(size=(n, k, d)), rng.random((n, k)) < 0.6
    found, mask = reduce_log_ratio(torch.from_numpy(log_ratio), torch.from_numpy(executed), granularity, per_dimension)
    for i in range(n):
        groups: dict[tuple, list[float]] = {}
        for a, b in itertools.product(range(k), range(d)):
            at = {"token": (a, b), "action": (a,), "chunk": (0,)}[granularity]
            groups.setdefault(at, []).extend([log_ratio[i, a, b]] if executed[i, a] else [])
        for at, numbers in groups.items():
            assert mask[(i, *at)].item() == bool(numbers)
            divisor = len(numbers) if per_dimension and numbers else 1
            assert found[(i, *at)].item() == pytest.approx(sum(numbers) / divisor)


@pytest.mark.parametrize("granularity", ["token", "action", "chunk"])
def test_nan_where_nothing_was_executed_reaches_no_gradient(granularity: str):
    new = torch.zeros(2, 2, 3, requires_grad=True)
    old = torch.full((2, 2, 3), 0.1)
    old[0, 1] = torch.nan
    executed = torch.tensor([[True, False], [True, True]])
    ratio, mask = reduce_log_ratio(new - old, executed, granularity)
    loss = clipped_policy_loss(ratio, mask, torch.tensor([1.0, 2.0]), 0.5) + approximate_kl(ratio, mask)
    loss.backward()
    assert torch.isfinite(loss)
    assert torch.isfinite(new.grad).all()
    assert not new.grad[0, 1].any()


def test_clipped_loss_by_hand():
    log_ratio = torch.log(torch.tensor([[1.5], [1.5], [0.5], [1.0], [9.0]]))
    mask = torch.tensor([[True], [True], [True], [True], [False]])
    advantages = torch.tensor([1.0, -1.0, 1.0, 2.0, 100.0])
    loss = clipped_policy_loss(log_ratio, mask, advantages, 0.2)
    assert loss.item() == pytest.approx(-(1.2 - 1.5 + 0.5 + 2.0) / 4)


def test_weights_multiply_the_clipped_gain_and_the_gradient():
    """By hand: the gradient of w * ratio * A with respect to the log ratio is w * ratio * A where it is not clipped."""
    log_ratio = torch.log(torch.tensor([[1.1], [0.9], [1.5], [1.0]])).requires_grad_()
    mask, weights = torch.ones(4, 1, dtype=torch.bool), torch.tensor([[2.0], [0.5], [3.0], [0.0]])
    advantages = torch.tensor([1.0, -1.0, 2.0, 7.0])
    loss = clipped_policy_loss(log_ratio, mask, advantages, 0.2, weights)
    assert loss.item() == pytest.approx(-(2.0 * 1.1 - 0.5 * 0.9 + 3.0 * 1.2 * 2.0) / 4)
    loss.backward()
    assert log_ratio.grad.flatten().tolist() == pytest.approx([-2.0 * 1.1 / 4, 0.5 * 0.9 / 4, 0.0, 0.0])


def test_empty_masks_give_zero():
    nothing = torch.zeros(3, 1, dtype=torch.bool)
    assert masked_mean(torch.ones(3, 1), nothing) == 0.0
    assert clipped_policy_loss(torch.ones(3, 1), nothing, torch.ones(3), 0.2) == 0.0


def test_value_loss_and_kl():
    assert value_loss(torch.tensor([1.0, 2.0]), torch.tensor([1.0, 4.0])) == 1.0
    same = torch.zeros(4, 1)
    assert approximate_kl(same, torch.ones(4, 1, dtype=torch.bool)) == 0.0
    generator = torch.Generator().manual_seed(0)
    old = torch.distributions.Normal(torch.zeros(200_000), 1.0)
    x = torch.randn(200_000, generator=generator)
    log_ratio = torch.distributions.Normal(0.3, 1.0).log_prob(x) - old.log_prob(x)
    kl = approximate_kl(log_ratio[:, None], torch.ones(200_000, 1, dtype=torch.bool))
    assert kl.item() == pytest.approx(0.3**2 / 2, rel=0.02)
