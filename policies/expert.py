"""Two transformers: a reader of pictures, words and state, and an expert that denoises actions by what was read.

The mixture of pi0 (Black et al. 2024, arXiv:2410.24164, section IV), reduced: the expert's layers attend to the noisy
actions and to the reader's layer of the same number, through keys and values that are made once per decision.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from policies.encoders import (
    Block,
    Convolutions,
    SpatialSoftmax,
    WordEncoder,
    masked_average,
    module_key,
    projector,
    seeded_,
)
from policies.network import Inputs
from policies.nn import orthogonal_linear
from policies.senses import Senses

Memory = list[tuple[Tensor, Tensor]]
"""Keys and values [N, heads, P, d / heads] of what was read, for each layer of the expert."""


def time_features(time: Tensor, width: int) -> Tensor:
    """[..., width] sines and cosines of a time [...], of periods from 0.004 to 4 (openpi's)."""
    periods = 4e-3 * (4.0 / 4e-3) ** torch.linspace(0.0, 1.0, width // 2, device=time.device)
    angle = 2.0 * torch.pi * time[..., None] / periods
    return torch.cat([angle.sin(), angle.cos()], dim=-1)


def places(height: int, width: int, features: int) -> Tensor:
    """[height * width, features] sines and cosines of a grid's coordinates: a quarter each of sin x, cos x, sin y,
    cos y, as in Vaswani et al. 2017, arXiv:1706.03762, section 3.5, with periods for grids of a few dozen cells."""
    rates = 64.0 ** -torch.linspace(0.0, 1.0, features // 4)
    y, x = torch.meshgrid(torch.arange(float(height)), torch.arange(float(width)), indexing="ij")
    angles = [axis.reshape(-1, 1) * rates for axis in (x, y)]
    return torch.cat([wave(angle) for angle in angles for wave in (torch.sin, torch.cos)], dim=1)


class Reader(nn.Module):
    """Pictures, words and state to P tokens that attend to each other.

    Args:
        senses: Streams that are read.
        channels: Of the convolutions, which the words steer. One token holds where each channel is active.
        grid: Whether one more of stride 2 makes each cell of its maps a token too. A network with
            cells overfits few demonstrations.
        width, layers, heads: Of the transformer.
    """

    def __init__(
        self, senses: Senses, channels: Sequence[int], grid: bool, width: int, layers: int, heads: int
    ) -> None:
        super().__init__()
        self.cameras = [stream.name for stream in senses.pictures]
        words, said = senses.words, width if senses.words else 0
        self.words = WordEncoder(words.vocabulary, words.length, width, heads=heads) if words else None
        keys = [module_key(camera) for camera in self.cameras]
        self.eyes = nn.ModuleDict({key: Convolutions(channels, said) for key in keys})
        self.cells = nn.ModuleDict({key: nn.Conv2d(channels[-1], width, 3, 2, 1) for key in keys if grid})
        self.points = SpatialSoftmax()
        self.coordinates = nn.ModuleDict({key: projector(2 * channels[-1], width) for key in keys})
        self.camera_embedding = nn.Parameter(torch.zeros(len(self.cameras), width)) if len(self.cameras) > 1 else None
        self.state = nn.Linear(senses.sizes[0], width) if senses.sizes[0] else None
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.width = width

    def forward(self, inputs: Inputs) -> tuple[list[Tensor], Tensor]:
        """Tokens [N, P, d] after each layer, and which of them there are [N, P]."""
        tokens, there, said = [], [], None
        if self.words is not None:
            each, is_word = self.words.each(inputs["words"]), inputs["words"] != 0
            said = masked_average(each, is_word)
            tokens.append(each)
            there.append(is_word)
        for i, camera in enumerate(self.cameras):
            key = module_key(camera)
            seen = self.eyes[key](inputs[camera], said)
            made = self.coordinates[key](self.points(seen))[:, None]
            if key in self.cells:
                maps = self.cells[key](seen)
                at = places(maps.shape[2], maps.shape[3], self.width).to(maps.device)
                made = torch.cat([made, maps.flatten(2).transpose(1, 2) + at], dim=1)
            tokens.append(made if self.camera_embedding is None else made + self.camera_embedding[i])
        if self.state is not None:
            tokens.append(self.state(inputs["state"])[:, None])
        x = torch.cat(tokens, dim=1)
        rest = x.new_ones(x.shape[:2], dtype=torch.bool)[:, sum(mask.shape[1] for mask in there) :]
        mask = torch.cat([*there, rest], dim=1)
        layers = []
        for block in self.blocks:
            x = block(x, mask[:, None, None])
            layers.append(x)
        return layers, mask


class Recall(nn.Module):
    """Keys and values by which a layer of the expert attends to a layer of the reader.

    Args:
        read: Width of the reader. width, heads: Of the expert.
    """

    def __init__(self, read: int, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.norm, self.keys_values = heads, nn.LayerNorm(read), nn.Linear(read, 2 * width)

    def forward(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Of the reader's tokens [N, P, read]."""
        n, length, _ = tokens.shape
        keys, values = self.keys_values(self.norm(tokens)).view(n, length, 2, self.heads, -1).permute(2, 0, 3, 1, 4)
        return keys, values


class Expert(nn.Module):
    """Velocities of noisy actions.

    Args:
        chunk, action_dim: K and D.
        width, layers, heads: Of its transformer. read: Width of the reader.
        generator: Draws the last layer's weights.
    """

    def __init__(
        self, chunk: int, action_dim: int, width: int, layers: int, heads: int, read: int, generator: torch.Generator
    ) -> None:
        super().__init__()
        self.actions, self.position_embedding = nn.Linear(action_dim, width), nn.Embedding(chunk, width)
        self.with_time = nn.Sequential(nn.Linear(2 * width, width), nn.SiLU(), nn.Linear(width, width))
        self.recalls = nn.ModuleList(Recall(read, width, heads) for _ in range(layers))
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.last = nn.LayerNorm(width)
        seeded_(self, generator)
        self.velocity = orthogonal_linear(width, action_dim, 0.01, generator)

    def remember(self, layers: list[Tensor]) -> Memory:
        """Keys and values of the reader's layers that the denoising steps attend to."""
        return [recall(tokens) for recall, tokens in zip(self.recalls, layers, strict=True)]

    def forward(self, x: Tensor, time: Tensor, memory: Memory, there: Tensor) -> Tensor:
        """Velocities [N, M, K, D] of M noisy chunks of each of N rows, which know nothing of each other.

        Args:
            x: [N, M, K, D]. time: [M] or [N, M]. memory: Of `remember`. there: [N, P].
        """
        n, copies, chunk, dim = x.shape
        tokens = self.actions(x) + self.position_embedding.weight
        when = time_features(time, tokens.shape[-1])[..., None, :].expand_as(tokens)
        tokens = self.with_time(torch.cat([tokens, when], dim=-1)).flatten(1, 2)
        same = torch.arange(copies, device=x.device).repeat_interleave(chunk)
        length = len(same)
        mask = torch.cat([there[:, None].expand(-1, length, -1), (same[:, None] == same).expand(n, -1, -1)], dim=2)
        for block, read in zip(self.blocks, memory, strict=True):
            tokens = block(tokens, mask[:, None], read)
        return self.velocity(self.last(tokens)).view(n, copies, chunk, dim)
