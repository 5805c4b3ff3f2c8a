"""Augmentation of cloning: every word is there or replaced, in its order, somewhere; pictures move and change light."""

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from embodied.learning.augmentation import vary_pictures, vary_words

VOCABULARY = 50


@settings(deadline=None, max_examples=60)
@given(counts=st.lists(st.integers(1, 8), min_size=1, max_size=20), seed=st.integers(0, 2**31))
def test_words_keep_their_order_and_number(counts: list[int], seed: int) -> None:
    tokens = torch.zeros(len(counts), 8, dtype=torch.int64)
    for row, count in enumerate(counts):
        tokens[row, :count] = torch.arange(1, count + 1)
    varied = vary_words(tokens, 0.0, VOCABULARY, torch.Generator().manual_seed(seed))
    for row, count in enumerate(counts):
        assert varied[row][varied[row] != 0].tolist() == list(range(1, count + 1))
        places = varied[row].nonzero().flatten()
        assert int(places[-1] - places[0]) == count - 1


def test_a_share_of_words_becomes_any_other() -> None:
    tokens = torch.full((4000, 5), 7)
    varied = vary_words(tokens, 0.3, VOCABULARY, torch.Generator().manual_seed(0))
    changed = varied[varied != 7]
    assert abs(len(changed) / tokens.numel() - 0.3 * (1 - 1 / (VOCABULARY - 1))) < 0.02
    assert set(changed.unique().tolist()) == set(range(1, VOCABULARY)) - {7}


def test_every_place_is_begun_at() -> None:
    tokens = torch.zeros(2000, 6, dtype=torch.int64)
    tokens[:, :2] = 3
    varied = vary_words(tokens, 0.0, VOCABULARY, torch.Generator().manual_seed(0))
    begun = (varied != 0).int().argmax(1).bincount(minlength=6).tolist()
    assert begun[5] == 0
    assert all(300 < count < 500 for count in begun[:5])
    again = vary_words(tokens, 0.0, VOCABULARY, torch.Generator().manual_seed(0))
    assert torch.equal(varied, again)


@settings(deadline=None, max_examples=40)
@given(shift=st.integers(0, 3), jitter=st.floats(0, 1), seed=st.integers(0, 2**31))
def test_pictures_are_shifted_and_their_channels_scaled(shift: int, jitter: float, seed: int) -> None:
    pictures = torch.randint(0, 256, (6, 9, 7, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))
    varied = vary_pictures(pictures, jitter, shift, torch.Generator().manual_seed(seed))
    assert varied.dtype == torch.uint8 and varied.shape == pictures.shape
    for before, after in zip(pictures.numpy(), varied.numpy(), strict=True):
        assert any(_scaled(_moved(before, dy, dx), after, jitter) for dy, dx in _moves(shift))


def _moves(shift: int) -> list[tuple[int, int]]:
    return [(dy, dx) for dy in range(-shift, shift + 1) for dx in range(-shift, shift + 1)]


def _moved(picture: np.ndarray, dy: int, dx: int) -> np.ndarray:
    height, width, _ = picture.shape
    padded = np.pad(picture, ((3, 3), (3, 3), (0, 0)), mode="edge")
    return padded[3 + dy : 3 + dy + height, 3 + dx : 3 + dx + width]


def _scaled(before: np.ndarray, after: np.ndarray, jitter: float) -> bool:
    """Whether one factor per channel, within the bounds, explains every pixel up to rounding."""
    for channel in range(3):
        b, a = before[..., channel].astype(float), after[..., channel].astype(float)
        some = b > 0
        if (a[~some] != 0).any():
            return False
        low = ((a - 0.51) / np.maximum(b, 1))[some].max(initial=0)
        high = ((a + 0.51) / np.maximum(b, 1))[some & (a < 255)].min(initial=2)
        if low > high or low > 1 + jitter + 1e-6 or high < 1 - jitter - 1e-6:
            return False
    return True


def test_light_is_drawn_evenly_for_each_picture() -> None:
    pictures = torch.full((4000, 1, 1, 3), 100, dtype=torch.uint8)
    varied = vary_pictures(pictures, 0.5, 0, torch.Generator().manual_seed(0)).float()
    assert abs(varied.mean() - 100) < 1 and varied.min() == 50 and varied.max() == 150
    assert abs(torch.corrcoef(varied.view(-1, 3).T)[0, 1]) < 0.05
