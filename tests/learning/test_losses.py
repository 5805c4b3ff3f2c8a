"""Losses: means over what may train only, and gradients that what is masked never touches."""

import pytest
import torch

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
    assert torch.equal(chunk, torch.tensor([[3.0], [13.0]]))
    assert mask.all()


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
