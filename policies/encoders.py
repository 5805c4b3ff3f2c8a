"""Parts that vision-language networks share: pictures to feature maps, words to features, a critic's head."""

import math
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from embodied.errors import ConfigError
from policies.network import Inputs
from policies.nn import orthogonal_linear, tanh_mlp

HEADS = 4
"""Attention heads over words; a width is a multiple of it."""

_ESCAPED, _NO_LAYERS = "camera:", nn.ModuleDict()


def seeded_(module: nn.Module, generator: torch.Generator) -> nn.Module:
    """Draw a module's weights anew from `generator`: He et al. 2015 for two dimensions or more, biases zero."""
    for name, parameter in module.named_parameters():
        if parameter.dim() >= 2:
            fan_in = parameter[0].numel()
            std = 0.02 if "embedding" in name else math.sqrt(2.0 / fan_in)
            with torch.no_grad():
                parameter.normal_(0.0, std, generator=generator)
        elif name.endswith("bias"):
            nn.init.zeros_(parameter)
    return module


def module_key(camera: str) -> str:
    """Key of a camera's layers in an `nn.ModuleDict`: its name, but for one that a module cannot have, such as
    `observation.images.front` or `items`. No two names share one."""
    if "." not in camera and not camera.startswith(_ESCAPED) and not hasattr(_NO_LAYERS, camera):
        return camera
    return _ESCAPED + camera.replace("%", "%25").replace(".", "%2E")


def pixels(pictures: Tensor) -> Tensor:
    """[N, 3, H, W] float in [-1, 1] of pictures [N, H, W, 3] uint8."""
    return pictures.permute(0, 3, 1, 2).float().mul_(1.0 / 127.5).sub_(1.0)


def attention_mask(tokens: Tensor) -> Tensor:
    """[N, 1, 1, L] true where a word is, of tokens [N, L]."""
    return (tokens != 0)[:, None, None]


class Block(nn.Module):
    """A pre-norm transformer layer over a set, in which everything that is not masked attends to everything.

    Args:
        width: d, a multiple of `heads`.
        heads: Attention heads.
    """

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before_attention, self.before_mlp = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor, mask: Tensor | None = None, memory: tuple[Tensor, Tensor] | None = None) -> Tensor:
        """[N, L, d] of [N, L, d].

        Args:
            mask: Broadcasts to [N, heads, L, P + L], true where attention goes.
            memory: Keys and values [N, heads, P, d / heads] of something else that is attended to.
        """
        n, length, width = x.shape
        qkv = self.qkv(self.before_attention(x)).view(n, length, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        if memory is not None:
            k, v = torch.cat([memory[0], k], dim=2), torch.cat([memory[1], v], dim=2)
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        x = x + self.out(mixed.transpose(1, 2).reshape(n, length, width))
        return x + self.mlp(self.before_mlp(x))


class WordEncoder(nn.Module):
    """Words to one feature vector: embeddings, a transformer, the mean over the words there are.

    Args:
        vocabulary, length: Of `policies.words.Words`.
        width, layers, heads: Of the transformer.
    """

    def __init__(self, vocabulary: int, length: int, width: int, layers: int = 1, heads: int = HEADS) -> None:
        super().__init__()
        self.embedding, self.position_embedding = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))

    def forward(self, tokens: Tensor) -> Tensor:
        """[N, d] of tokens [N, L]; 0 fills up."""
        return masked_average(self.each(tokens), tokens != 0)

    def each(self, tokens: Tensor) -> Tensor:
        """[N, L, d], one vector per word."""
        x = self.embedding(tokens) + self.position_embedding.weight
        for block in self.blocks:
            x = block(x, attention_mask(tokens))
        return x


def masked_average(x: Tensor, mask: Tensor) -> Tensor:
    """[N, d] mean of [N, L, d] over what `mask` [N, L] marks."""
    weight = mask.unsqueeze(-1).to(x.dtype)
    return (x * weight).sum(1) / weight.sum(1).clamp(min=1.0)


class Convolutions(nn.Module):
    """Strided convolutions with group norm, whose channels words may scale and shift (FiLM, Perez et al. 2018,
    arXiv:1709.07871, equation 2, the scale predicted as its distance from 1 by their equation 3).

    Args:
        channels: Of each layer; each halves the picture's edges but the last.
        condition: Width of the words' features; 0 for none.

    Raises:
        ConfigError: A layer's channels do not divide into the groups that are normalised together, of 16 or more.
    """

    def __init__(self, channels: Sequence[int], condition: int = 0) -> None:
        super().__init__()
        if odd := [b for b in channels if b % max(b // 16, 1)]:
            raise ConfigError(f"{odd[0]} channels", "policy.channels", "give multiples of 16, or fewer than 32")
        sizes = (3, *channels)
        self.layers = nn.ModuleList(
            nn.Conv2d(a, b, 5 if i == 0 else 3, 1 if i == len(channels) - 1 and i else 2, padding=2 if i == 0 else 1)
            for i, (a, b) in enumerate(pairwise(sizes))
        )
        self.norms = nn.ModuleList(nn.GroupNorm(max(b // 16, 1), b) for b in channels)
        self.films = nn.ModuleList(nn.Linear(condition, 2 * b) for b in channels) if condition else None

    def forward(self, pictures: Tensor, condition: Tensor | None = None) -> Tensor:
        """[N, C, h, w] of pictures [N, H, W, 3] uint8 and the words' features [N, condition]."""
        x = pixels(pictures)
        for i, (layer, norm) in enumerate(zip(self.layers, self.norms, strict=True)):
            x = norm(layer(x))
            if self.films is not None:
                scale, shift = self.films[i](condition)[..., None, None].chunk(2, dim=1)
                x = x * (1.0 + scale) + shift
            x = torch.relu(x)
        return x


class SpatialSoftmax(nn.Module):
    """Place in the picture at which each channel is active: expected coordinates in [-1, 1] under a softmax over its
    cells (Finn et al. 2016, "Deep Spatial Autoencoders for Visuomotor Learning", arXiv:1509.06113)."""

    def __init__(self) -> None:
        super().__init__()
        self.temperature = nn.Parameter(torch.zeros(()))

    def forward(self, maps: Tensor) -> Tensor:
        """[N, 2 C] of [N, C, h, w]: all x, then all y."""
        n, c, h, w = maps.shape
        share = torch.softmax(maps.reshape(n, c, h * w) * self.temperature.exp(), dim=-1).view(n, c, h, w)
        x = torch.linspace(-1.0, 1.0, w, device=maps.device)
        y = torch.linspace(-1.0, 1.0, h, device=maps.device)
        return torch.cat([(share.sum(2) * x).sum(-1), (share.sum(3) * y).sum(-1)], dim=1)


def projector(inputs: int, width: int) -> nn.Sequential:
    """Coordinates to an embedding: two layers, which read them far better than one in few steps (as for the pictures of
    LLaVA-1.5, Liu et al. 2023, arXiv:2310.03744)."""
    return nn.Sequential(nn.Linear(inputs, 4 * width), nn.GELU(), nn.Linear(4 * width, width))


class Critic(nn.Module):
    """State values from what only the critic reads, or else from the actor's features, which it leaves as they are.

    Args:
        numbers: F + C with an own view of the state, 0 for the actor's features.
        features: Width of those.
        hidden: Widths of its layers.
        generator: Draws its weights.
    """

    def __init__(self, numbers: int, features: int, hidden: Sequence[int], generator: torch.Generator) -> None:
        super().__init__()
        self.privileged = numbers > 0
        self.layers = tanh_mlp((numbers or features, *hidden, 1), 1.0, generator)

    def forward(self, features: Tensor) -> Tensor:
        """[N] of [N, width]."""
        return self.layers(features.detach()).squeeze(-1)

    def own_view(self, inputs: Inputs) -> Tensor:
        """[N] where `privileged`: of the state and what only the critic reads, NaN where that is not given."""
        if "critic" not in inputs:
            return inputs["state"].new_full((len(inputs["state"]),), math.nan)
        return self(torch.cat([inputs["state"], inputs["critic"]], dim=1))


def head(inputs: int, hidden: int, outputs: int, generator: torch.Generator) -> nn.Sequential:
    """Two layers whose last begins near zero, so that a policy begins near the middle of its range."""
    return nn.Sequential(
        orthogonal_linear(inputs, hidden, math.sqrt(2.0), generator), nn.GELU(),
        orthogonal_linear(hidden, hidden, math.sqrt(2.0), generator), nn.GELU(),
        orthogonal_linear(hidden, outputs, 0.01, generator),
    )  # fmt: skip
