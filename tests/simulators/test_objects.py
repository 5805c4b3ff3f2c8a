import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from simulators.objects import shuffled, spaced


@given(count=st.integers(1, 6), share=st.floats(0.0, 1.0), seed=st.integers(0, 1000))
def test_places_are_spaced_within_their_interval(count, share, seed):
    low, high = -0.4, 0.3
    gap = share * (high - low) / max(count - 1, 1)
    places = spaced(np.random.default_rng(seed).random((20, count)), low, high, gap)
    assert places.shape == (20, count)
    assert places.min() >= low - 1e-12 and places.max() <= high + 1e-12
    assert (np.diff(places, axis=1) >= gap - 1e-12).all()


def test_any_order_is_as_likely():
    u, values = np.random.default_rng(0).random((6000, 3)), np.tile(np.arange(3.0), (6000, 1))
    mixed = shuffled(u, np.stack([values, -values], axis=2))
    assert np.array_equal(mixed[..., 0], -mixed[..., 1])
    orders, counts = np.unique(mixed[..., 0], axis=0, return_counts=True)
    assert len(orders) == 6 and counts.min() > 850
