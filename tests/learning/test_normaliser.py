"""Merged in any pieces, the normaliser equals numpy over everything."""

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from embodied.learning.normaliser import Normaliser


@settings(deadline=None, max_examples=50)
@given(
    seed=st.integers(0, 2**32), sizes=st.lists(st.integers(0, 20), min_size=1, max_size=6), offset=st.floats(-1e4, 1e4)
)
def test_pieces_equal_the_whole(seed, sizes, offset):
    rng = np.random.default_rng(seed)
    pieces = [(offset + rng.normal(size=(size, 3))).astype(np.float32) for size in sizes]
    whole = np.concatenate(pieces).astype(np.float64)
    normaliser = Normaliser(3)
    for piece in pieces:
        normaliser.update(piece)
    assert normaliser.count == len(whole)
    if len(whole):
        np.testing.assert_allclose(normaliser.mean, whole.mean(axis=0), atol=1e-7)
        np.testing.assert_allclose(normaliser.std, np.maximum(whole.std(axis=0), 1e-2), atol=1e-6)


def test_floor_fresh_and_rows_that_are_not_finite():
    normaliser = Normaliser(2, floor=0.5)
    assert (normaliser.std == 1.0).all()
    normaliser.update(np.array([[1.0, 2.0], [np.nan, 0.0], [1.0, 2.0]]))
    assert normaliser.count == 2
    assert (normaliser.std == 0.5).all()


def test_state_goes_on_exactly():
    rng, first, second = np.random.default_rng(0), Normaliser(4), Normaliser(4, floor=3.0)
    first.update(rng.normal(size=(30, 4)))
    second.load(first.state())
    more = rng.normal(size=(30, 4))
    for normaliser in (first, second):
        normaliser.update(more)
    assert all(torch.equal(a, b) for a, b in zip(first.frozen(), second.frozen(), strict=True))
