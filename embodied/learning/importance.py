"""Weights for decisions of older versions, or of an engine whose numbers differ: how likely they would be now."""

from typing import Literal

import torch
from torch import Tensor

from embodied.learning.losses import masked_mean

Correction = Literal["none", "truncated", "masked"]

# Beyond these bounds the data are too far from the policy for any weighting (see `diagnose`).
RATIO, LEAST_ESS, MOST_KL, MOST_CHI2 = (0.5, 2.0), 0.3, 0.1, 1.0


@torch.no_grad()
def importance_weights(
    log_ratio: Tensor,
    mask: Tensor,
    correction: Correction,
    truncate_at: float = 2.0,
    band: tuple[float, float] = (0.5, 5.0),
    veto: float = 1e-4,
) -> Tensor:
    """The factor w of decoupled PPO's objective: Hilton, Cobbe and Schulman 2022, "Batch size-invariance for policy
    optimization" (arXiv:2110.00641), section 2; per token in AReaL (Fu et al. 2025, arXiv:2505.24298), equation 5.

    rho = pi_prox / pi_behaviour, where pi_prox has the weights before the update.
    `truncated`: w = min(rho, C) (Ionides 2008, "Truncated Importance Sampling", where C grows with the root of the
    number of samples; fixed, and against the mismatch of rollout engines: Yao et al. 2025, "Your Efficient RL Framework
    Secretly Brings You Off-Policy RL Training").
    `masked`: w = rho where lo <= rho <= hi, else 0 (IcePop: Ling team 2025, "Every Step Evolves", arXiv:2510.18855).
    `none`: w = 1.
    A decision of which any rho is below `veto` gets no weight at all under either correction, as verl has it.

    Args:
        log_ratio, mask: [N, ...] log rho and what counts, from `reduce_log_ratio`.
        correction: Which.
        truncate_at: C.
        band: lo and hi.
        veto: Least rho of a decision that may train; 0 for none.

    Returns:
        w of the shape of `log_ratio`, without gradient; 0 where `mask` is not set.
    """
    ratio = torch.where(mask, torch.exp(log_ratio), 0.0)
    if correction == "none":
        return mask.to(log_ratio.dtype)
    if correction == "truncated":
        weights = ratio.clamp(max=truncate_at)
    else:
        weights = torch.where((ratio >= band[0]) & (ratio <= band[1]), ratio, 0.0)
    refused = (mask & (ratio < veto)).flatten(1).any(dim=1)
    return torch.where(refused.view(-1, *[1] * (ratio.dim() - 1)), 0.0, weights)


@torch.no_grad()
def diagnose(log_ratio: Tensor, mask: Tensor, weights: Tensor) -> dict[str, float]:
    """Whether the weights can be trusted.

    Args:
        log_ratio, mask: As for `importance_weights`, with at least one number that counts.
        weights: Of `importance_weights`.

    Returns:
        `ratio`, mean rho. `ess`, the effective sample size (sum rho)^2 / (N sum rho^2) as a share (Kong 1992, "A note
        on importance sampling using standardized weights"). `kl`, KL(behaviour || prox) as the mean of -log rho, which
        may be negative on few samples (k1 of Schulman 2020, "Approximating KL Divergence"). `chi2`, the mean of rho^2,
        less 1: chi-squared(prox || behaviour), the variance of rho, whose mean is 1 (Owen 2013, "Monte Carlo theory,
        methods and examples"). `masked`, the share of what counts that has weight 0. `alerts`, how many of the first
        four are out of bounds: a mean outside 0.5 to 2, an ESS below 0.3, |KL| above 0.1, chi-squared above 1.
    """
    log_rho = torch.where(mask, log_ratio, 0.0).double()
    rho = torch.where(mask, torch.exp(log_rho), 0.0)
    total, squares, count = rho.sum().item(), rho.square().sum().item(), int(mask.sum())
    ratio, kl, chi2 = total / count, -log_rho.sum().item() / count, squares / count - 1.0
    ess = total**2 / (count * squares) if squares else 0.0
    sound = (RATIO[0] <= ratio <= RATIO[1], ess >= LEAST_ESS, abs(kl) <= MOST_KL, chi2 <= MOST_CHI2)
    masked = masked_mean((weights == 0).float(), mask).item()
    return {"ratio": ratio, "ess": ess, "kl": kl, "chi2": chi2, "masked": masked, "alerts": float(sound.count(False))}
