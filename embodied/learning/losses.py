"""Losses with masks: every mean is over what may train, nothing else."""

from typing import Literal

import torch
from torch import Tensor

Granularity = Literal["token", "action", "chunk"]


def masked_mean(x: Tensor, mask: Tensor) -> Tensor:
    """Mean of `x` where `mask` (same shape, bool); 0 where nothing is."""
    return torch.where(mask, x, 0.0).sum() / mask.sum().clamp(min=1)


def reduce_log_ratio(
    log_ratio: Tensor, executed: Tensor, granularity: Granularity, per_dimension: bool = False
) -> tuple[Tensor, Tensor]:
    """Bring per-number log-ratios to the granularity of the ratio that is clipped.

    Args:
        log_ratio: [N, K, D].
        executed: [N, K] bool; actions that were never executed count for nothing.
        granularity: `token` keeps [N, K, D]; `action` sums over D, [N, K]; `chunk` sums over D and the executed
            actions, [N, 1].
        per_dimension: Divide each sum by how many executed numbers are in it, so that a clip limit means the same for
            chunks of any length and actions of any size: the geometric mean of the ratios, as sequences of words have
            it in GSPO (Zheng et al. 2025, arXiv:2507.18071, equation 7).

    Returns:
        The log-ratio and its mask, of equal shape.
    """
    log_ratio = torch.where(executed[..., None], log_ratio, 0.0)  # first, so that no gradient meets a NaN
    if granularity == "token":
        return log_ratio, executed[..., None].expand_as(log_ratio)
    per_action = log_ratio.mean(-1) if per_dimension else log_ratio.sum(-1)
    if granularity == "action":
        return per_action, executed
    count = executed.sum(-1, keepdim=True)
    total = per_action.sum(-1, keepdim=True)
    return (total / count.clamp(min=1) if per_dimension else total), count > 0


def clipped_policy_loss(
    log_ratio: Tensor, mask: Tensor, advantages: Tensor, clip: float, weights: Tensor | None = None
) -> Tensor:
    """PPO's clipped surrogate, negated: Schulman et al. 2017 (arXiv:1707.06347), equation 7; with weights the decoupled
    one of Hilton et al. 2022 (arXiv:2110.00641), section 2.

    Args:
        log_ratio, mask: From `reduce_log_ratio`.
        advantages: [N].
        clip: How far the ratio may pay off from 1.
        weights: Of the shape of `log_ratio`, from `embodied.learning.importance`. The mean is over all that `mask`
            counts, whatever has weight 0.
    """
    ratio = torch.exp(log_ratio)
    advantage = advantages.view(-1, *[1] * (ratio.dim() - 1))
    gain = torch.minimum(ratio * advantage, ratio.clamp(1.0 - clip, 1.0 + clip) * advantage)
    return -masked_mean(gain if weights is None else weights * gain, mask)


def value_loss(values: Tensor, returns: Tensor) -> Tensor:
    """Half the mean squared error of values [N]. L^VF of equation 9 of Schulman et al. 2017 (arXiv:1707.06347) has no
    half; a coefficient here is twice their c1."""
    return 0.5 * (values - returns).square().mean()


def approximate_kl(log_ratio: Tensor, mask: Tensor) -> Tensor:
    """KL(old || new) by (r - 1) - log r, unbiased where old drew the actions, and never negative: k3 of Schulman 2020,
    "Approximating KL Divergence"."""
    return masked_mean(torch.expm1(log_ratio) - log_ratio, mask)
