"""What imitation learning changes of what it was shown, so that the clone leans on what matters."""

import torch
from torch import Tensor


def vary_words(tokens: Tensor, dropout: float, vocabulary: int, generator: torch.Generator) -> Tensor:
    """Instructions with words that nobody knows, which begin later: word dropout (Iyyer et al. 2015, "Deep unordered
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
