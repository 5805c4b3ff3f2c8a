"""Actions as tokens: every number falls into one of equally spaced bins (RT-1, Brohan et al. 2022, arXiv:2212.06817,
section 5.1)."""

import torch
from torch import Tensor

U_BELOW_ONE = 1.0 - 2.0**-24
"""The largest float32 below 1."""


def centres(bins: int) -> Tensor:
    """[bins] raw numbers that the tokens stand for, from -1 to 1, both of which are among them."""
    return torch.linspace(-1.0, 1.0, bins)


def nearest(raw: Tensor, bins: int) -> Tensor:
    """Tokens, int64, of raw numbers of any shape: the nearest bin's; what is not a number falls in the middle."""
    return ((raw.nan_to_num(0.0).clamp(-1.0, 1.0) + 1.0) * (0.5 * (bins - 1))).round().long()


def blurred(raw: Tensor, bins: int, std: float) -> Tensor:
    """Shares [..., bins] of a normal distribution around raw numbers [...], so that a near miss is nearly right: the
    targets of HL-Gaussian (Imani and White 2018, arXiv:1806.04613), by the density at a bin's centre where they take
    its integral over the bin. With `std` 0 all is the nearest bin's.
    """
    if std <= 0:
        return torch.nn.functional.one_hot(nearest(raw, bins), bins).float()
    distance = (centres(bins).to(raw.device) - raw.nan_to_num(0.0).clamp(-1.0, 1.0).unsqueeze(-1)) / std
    return torch.softmax(-0.5 * distance.square(), dim=-1)


def inverse_cdf(logits: Tensor, uniforms: Tensor) -> Tensor:
    """Tokens [N] sampled from the softmax of logits [N, V]: the first whose cumulative probability exceeds the number
    in [0, 1) of its row [N] (inversion, Devroye 1986, "Non-Uniform Random Variate Generation", chapter III.2).

    Where logits are NaN it is token 0, whose `log_prob` is NaN.
    """
    cumulative = torch.softmax(logits.double(), dim=-1).cumsum(-1)
    reached = cumulative <= uniforms.double().unsqueeze(-1) * cumulative[:, -1:]
    return reached.sum(-1).clamp(max=logits.shape[-1] - 1)


def log_prob(logits: Tensor, tokens: Tensor) -> Tensor:
    """Log-probabilities [...] of tokens [...] under the softmax of logits [..., V]."""
    return torch.log_softmax(logits, dim=-1).gather(-1, tokens.unsqueeze(-1)).squeeze(-1)


def entropy(logits: Tensor) -> Tensor:
    """Nats [...] of the softmax of logits [..., V]."""
    log_probs = torch.log_softmax(logits, dim=-1)
    return -(log_probs.exp() * log_probs).sum(-1)
