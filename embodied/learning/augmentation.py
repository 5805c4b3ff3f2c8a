"""Augmentation of the words and pictures of demonstrations."""

import torch
from torch import Tensor


def vary_words(tokens: Tensor, dropout: float, vocabulary: int, generator: torch.Generator) -> Tensor:
    """Instructions with unknown words, which begin later: word dropout (Iyyer et al. 2015, "Deep unordered
    composition rivals syntactic methods for text classification", section 3.1), and a shift.

    A word that is left out becomes another one drawn from the whole vocabulary, since that is what a word looks like
    that was never trained on.

    Args:
        tokens: [N, L] words from the first place on, 0 behind them.
        dropout: Share of words that are left out.
        vocabulary: V; words are numbered 1 to V - 1.
        generator: On the CPU.

    Returns:
        [N, L], in which each row's words stand together at a place drawn anew; as many as before.
    """
    rows, length = tokens.shape
    dropped = (torch.rand(tokens.shape, generator=generator) < dropout).to(tokens.device) & (tokens != 0)
    others = torch.randint(1, vocabulary, tokens.shape, generator=generator).to(tokens.device)
    free = length - (tokens != 0).sum(1)
    shift = (torch.rand(rows, generator=generator).to(tokens.device) * (free + 1)).long()
    places = (torch.arange(length, device=tokens.device) - shift[:, None]) % length
    return torch.where(dropped, others, tokens).gather(1, places)


def vary_pictures(pictures: Tensor, jitter: float, shift: int, generator: torch.Generator) -> Tensor:
    """Pictures under other light and moved a little: each channel scaled (Krizhevsky et al. 2012, "ImageNet
    classification with deep convolutional neural networks", section 4.1, add multiples of the colours' principal
    components instead), and shifted over repeated edges (Kostrikov et al. 2020, arXiv:2004.13649, section 4.2).

    Args:
        pictures: [N, H, W, 3] uint8.
        jitter: Each channel of each picture is multiplied by a factor from [1 - jitter, 1 + jitter].
        shift: Pixels that a picture moves at most, along each edge.
        generator: On the CPU.

    Returns:
        [N, H, W, 3] uint8.
    """
    rows, height, width, channels = pictures.shape
    device = pictures.device
    moves = torch.randint(-shift, shift + 1, (rows, 2), generator=generator).to(device)
    y = (torch.arange(height, device=device) + moves[:, :1]).clamp(0, height - 1)
    x = (torch.arange(width, device=device) + moves[:, 1:]).clamp(0, width - 1)
    moved = pictures[torch.arange(rows, device=device)[:, None, None], y[:, :, None], x[:, None, :]]
    factors = 1.0 + jitter * (2.0 * torch.rand(rows, 1, 1, channels, generator=generator) - 1.0)
    return (moved * factors.to(device)).round_().clamp_(0, 255).to(torch.uint8)
