"""What cloning changes of instructions: every word is there or replaced, in its order, somewhere."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from embodied.learning.augmentation import vary_words

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
