"""Parts of vision-language networks against values found another way."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from embodied.errors import ConfigError
from policies.encoders import (
    Convolutions,
    Critic,
    SpatialSoftmax,
    WordEncoder,
    head,
    masked_average,
    pixels,
    seeded_,
)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_pixels_span_minus_one_to_one():
    picture = torch.arange(256, dtype=torch.uint8).view(1, 16, 16, 1).expand(1, 16, 16, 3)
    made = pixels(picture)
    assert made.shape == (1, 3, 16, 16)
    np.testing.assert_allclose(made[0, 0].flatten(), np.arange(256) / 127.5 - 1.0, atol=1e-6)


def test_padding_words_change_nothing():
    encoder = seeded_(WordEncoder(32, 8, 16), generator())
    short = torch.tensor([[5, 7, 9, 0, 0, 0, 0, 0]])
    with torch.no_grad():
        encoder.embedding.weight[0] = 1e3
        far = encoder(short)
        encoder.embedding.weight[0] = 0.0
        torch.testing.assert_close(encoder(short), far)
        assert not torch.allclose(encoder(torch.tensor([[7, 5, 9, 0, 0, 0, 0, 0]])), far), "their order counts"


def test_masked_average_by_hand():
    x = torch.tensor([[[1.0, 2.0], [3.0, 6.0], [100.0, 100.0]]])
    assert masked_average(x, torch.tensor([[True, True, False]])).tolist() == [[2.0, 4.0]]
    assert masked_average(x, torch.tensor([[False, False, False]])).tolist() == [[0.0, 0.0]]


def test_film_scales_and_shifts_channels():
    """Against the layer, the norm, and equation 2 of Perez et al. written out."""
    eyes = seeded_(Convolutions((4,), condition=3), generator())
    pictures = torch.randint(0, 256, (2, 8, 8, 3), dtype=torch.uint8, generator=generator(1))
    said = torch.randn(2, 3, generator=generator(2))
    with torch.no_grad():
        features = eyes.norms[0](eyes.layers[0](pixels(pictures)))
        numbers = said @ eyes.films[0].weight.T + eyes.films[0].bias
        expected = torch.stack([
            torch.stack([features[n, c] * (1 + numbers[n, c]) + numbers[n, 4 + c] for c in range(4)]) for n in range(2)
        ]).clamp(min=0)  # fmt: skip
        torch.testing.assert_close(eyes(pictures, said), expected)


def test_spatial_softmax_finds_a_bright_spot():
    maps = torch.full((1, 2, 5, 9), -20.0)
    maps[0, 0, 0, 8] = maps[0, 1, 2, 4] = 20.0
    np.testing.assert_allclose(SpatialSoftmax()(maps).detach(), [[1.0, 0.0, -1.0, 0.0]], atol=1e-5)
    np.testing.assert_allclose(SpatialSoftmax()(torch.zeros(1, 1, 4, 6)).detach(), [[0.0, 0.0]], atol=1e-6)


def test_spatial_softmax_is_an_expectation():
    maps = torch.randn(2, 3, 4, 5, generator=generator())
    found = SpatialSoftmax()(maps).detach().numpy()
    for n in range(2):
        for c in range(3):
            weights = np.exp(maps[n, c].numpy().astype(float))
            weights /= weights.sum()
            x = sum(weights[i, j] * (-1 + 2 * j / 4) for i in range(4) for j in range(5))
            y = sum(weights[i, j] * (-1 + 2 * i / 3) for i in range(4) for j in range(5))
            np.testing.assert_allclose([found[n, c], found[n, 3 + c]], [x, y], atol=1e-5)


def test_seeded_weights_come_from_the_generator_alone():
    torch.manual_seed(0)
    first = seeded_(Convolutions((8, 8), 4), generator(3)).state_dict()
    torch.manual_seed(1)
    second = seeded_(Convolutions((8, 8), 4), generator(3)).state_dict()
    assert all(torch.equal(first[name], second[name]) for name in first)
    other = seeded_(Convolutions((8, 8), 4), generator(4)).state_dict()
    assert not torch.equal(first["layers.0.weight"], other["layers.0.weight"])


def test_seeded_weights_keep_the_size_of_what_passes():
    """He et al. 2015: standard deviation sqrt(2 / fan in)."""
    layer = seeded_(nn.Linear(400, 300), generator())
    assert layer.weight.std().item() == pytest.approx(math.sqrt(2 / 400), rel=0.02)
    assert not layer.bias.any()
    eyes = seeded_(nn.Conv2d(16, 64, 3), generator())
    assert eyes.weight.std().item() == pytest.approx(math.sqrt(2 / (16 * 9)), rel=0.03)


def test_a_head_begins_near_zero_and_a_critic_stops_gradients():
    made = head(20, 32, 6, generator())
    assert made(torch.randn(50, 20, generator=generator(1))).abs().max() < 0.1
    features = torch.randn(4, 20, generator=generator(1)).requires_grad_()
    critic = Critic(0, 20, (8,), generator())
    assert critic(features).shape == (4,) and not critic.privileged
    critic(features).sum().backward()
    assert features.grad is None
    own = Critic(5, 20, (8,), generator())
    numbers = torch.randn(4, 5, generator=generator(1))
    given = {"state": numbers[:, :3], "critic": numbers[:, 3:]}
    assert own.privileged and torch.equal(own.own_view(given), own(numbers))
    assert own.own_view({"state": numbers[:, :3]}).isnan().tolist() == [True] * 4


def test_channels_that_do_not_divide_into_groups_are_refused():
    for channels in ((7, 31), (16, 32, 48), (64, 160)):
        Convolutions(channels)
    with pytest.raises(ConfigError, match="50 channels"):
        Convolutions((16, 50))
