"""Prompts of a decoder: pictures and words as fixed numbers of embeddings."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from policies.encoders import Block, Convolutions, SpatialSoftmax, WordEncoder, masked_average, projector


class PictureTokens(nn.Module):
    """One camera's picture as embeddings: one of where in it each channel is active, and one per cell of the grid that
    convolutions leave.

    Args:
        shape: [H, W, 3] of a picture.
        channels: Of the convolutions.
        width, layers, heads: Of the transformer over the embeddings; no layers for none.
        grid: Whether there are cells. A network with cells overfits few demonstrations.

    Attributes:
        cells: How many embeddings.
    """

    def __init__(
        self, shape: Sequence[int], channels: Sequence[int], width: int, layers: int, heads: int, grid: bool
    ) -> None:
        super().__init__()
        self.convolutions = Convolutions(channels, width)
        self.points, self.coordinates = SpatialSoftmax(), projector(2 * channels[-1], width)
        with torch.no_grad():
            blank = torch.zeros(1, *shape, dtype=torch.uint8)
            cells = self.convolutions(blank, torch.zeros(1, width))[0, 0].numel() if grid else 0
        self.cells = cells + 1
        self.project = nn.Linear(channels[-1], width) if grid else None
        self.position_embedding = nn.Parameter(torch.zeros(cells, width)) if grid else None
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))

    def forward(self, pictures: Tensor, said: Tensor) -> Tensor:
        """[N, cells, d] of pictures [N, H, W, 3] uint8 and the instruction [N, d], which steers the convolutions."""
        maps = self.convolutions(pictures, said)
        x = self.coordinates(self.points(maps))[:, None]
        if self.project is not None and self.position_embedding is not None:
            x = torch.cat([x, self.project(maps.flatten(2).transpose(1, 2)) + self.position_embedding], dim=1)
        for block in self.blocks:
            x = block(x)
        return x


class InstructionTokens(nn.Module):
    """An instruction of any length as a fixed number of embeddings: learned queries attend to its words (Set
    Transformer's pooling, Lee et al. 2019, arXiv:1810.00825, section 3.2, reduced to the attention of one head).

    A decoder that is given embeddings without a mask cannot tell a word from padding; so padding ends here.

    Args:
        vocabulary, length: Of `policies.words.Words`.
        width, heads: Of the transformer over the words.
        count: Embeddings to make.
    """

    def __init__(self, vocabulary: int, length: int, width: int, heads: int, count: int) -> None:
        super().__init__()
        self.encoder = WordEncoder(vocabulary, length, width, heads=heads)
        self.query = nn.Parameter(torch.zeros(count, width))
        self.key = nn.Linear(width, width)

    def forward(self, words: Tensor) -> tuple[Tensor, Tensor]:
        """[N, count, d] of words [N, L], and the mean over the words there are [N, d]."""
        each, mask = self.encoder.each(words), words != 0
        scores = self.query @ self.key(each).transpose(1, 2) / math.sqrt(each.shape[-1])
        counts = mask | ~mask.any(1, keepdim=True)  # empty rows that fill a block up have no word at all
        share = scores.masked_fill(~counts[:, None], -math.inf).softmax(-1)
        return share @ each, masked_average(each, mask)
