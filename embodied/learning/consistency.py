"""Whether rollouts were made with the weights the learner has: log-probabilities of fresh decisions, twice computed."""

import torch
from torch import Tensor

from embodied.learning.losses import approximate_kl, masked_mean


@torch.no_grad()
def measure(log_ratio: Tensor, mask: Tensor) -> dict[str, float]:
    """How far recomputed log-probabilities are from those that came with the data; at equal weights not at all.

    Args:
        log_ratio: [...] learner's less rollout's.
        mask: [...] bool, what counts.

    Returns:
        `drift`, the mean of exp(|log ratio|) less 1; `ratio`, the mean ratio; `kl`, by `approximate_kl`; `ess`, the
        effective sample size (sum w)^2 / (N sum w^2) (Kong 1992) as a share; `max_log_ratio`. NaN where nothing counts.
    """
    if not mask.any():
        return dict.fromkeys(("drift", "ratio", "kl", "ess", "max_log_ratio"), float("nan"))
    log_ratio = torch.where(mask, log_ratio, 0.0).double()
    weights = torch.where(mask, torch.exp(log_ratio), 0.0)
    ess = weights.sum().square() / (mask.sum() * weights.square().sum())
    return {
        "drift": masked_mean(torch.expm1(log_ratio.abs()), mask).item(),
        "ratio": masked_mean(weights, mask).item(),
        "kl": approximate_kl(log_ratio, mask).item(),
        "ess": ess.item(),
        "max_log_ratio": log_ratio.abs().amax().item(),
    }
