import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from embodied import noise

# philox4x32 with 10 rounds in the file tests/kat_vectors of the Random123 library: counter, key, result.
KNOWN = [
    ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
]


def _words(text: str) -> list[int]:
    return [int(word, 16) for word in text.split()]


def _keys(rows: int, seed: int = 0) -> np.ndarray:
    return np.stack(
        [np.full(rows, seed), np.arange(rows), np.zeros(rows), np.zeros(rows), np.full(rows, 7)], axis=1
    ).astype(np.int64)


def test_philox_known_answers() -> None:
    counters, keys, results = (np.array([_words(row[i]) for row in KNOWN], np.uint32) for i in range(3))
    np.testing.assert_array_equal(noise.philox(counters, keys), results)


integers = st.integers(0, 2**31 - 1)
key_lists = st.lists(
    st.tuples(st.integers(0, 2**62), integers, st.integers(0, 4095), integers, integers), min_size=1, max_size=12
)


@given(key_lists, st.integers(1, 9), st.integers(0, 5), st.randoms(use_true_random=False))
def test_a_row_does_not_depend_on_its_batch(keys, count, purpose, random) -> None:
    for draw in (noise.uniform, noise.normal):
        together = draw(keys, count, purpose)
        alone = np.concatenate([draw([key], count, purpose) for key in keys])
        np.testing.assert_array_equal(together, alone)
        order = random.sample(range(len(keys)), len(keys))
        np.testing.assert_array_equal(draw([keys[i] for i in order], count, purpose), together[order])
    seeds = noise.integers(keys, purpose)
    np.testing.assert_array_equal(seeds, [noise.integers([key], purpose)[0] for key in keys])


@given(key_lists, st.integers(1, 9), st.integers(1, 9))
def test_more_uniform_numbers_continue_fewer(keys, few, more) -> None:
    np.testing.assert_array_equal(noise.uniform(keys, few + more)[:, :few], noise.uniform(keys, few))


@given(key_lists, st.integers(1, 9))
def test_shapes_ranges_and_types(keys, count) -> None:
    uniform, normal, seeds = noise.uniform(keys, count), noise.normal(keys, count), noise.integers(keys)
    assert uniform.shape == normal.shape == (len(keys), count)
    assert (uniform.dtype, normal.dtype, seeds.dtype) == (np.float64, np.float32, np.int64)
    assert np.all((uniform > 0) & (uniform < 1))
    assert np.all(np.isfinite(normal))
    assert np.all((seeds >= 0) & (seeds < 2**62))


@pytest.mark.parametrize("field", range(5))
def test_every_part_of_a_key_counts(field: int) -> None:
    base = np.array([[3, 1, 2, 4, 1]])
    other = base.copy()
    other[0, field] += 1
    assert not np.any(noise.uniform(base, 8) == noise.uniform(other, 8))


def test_high_words_of_a_seed_and_purposes_count() -> None:
    base = noise.uniform([[5, 0, 0, 0, 0]], 8)
    assert not np.any(base == noise.uniform([[5 + 2**32, 0, 0, 0, 0]], 8))
    assert not np.any(base == noise.uniform([[5, 0, 0, 0, 0]], 8, purpose=1))


def test_uniform_moments_and_correlations() -> None:
    draws = noise.uniform(_keys(4000), 16)
    n = draws.size
    # Six standard errors: one in 10^9 for a right generator, and the draws are fixed.
    assert abs(draws.mean() - 0.5) < 6 * np.sqrt(1 / 12 / n)
    assert abs(draws.var() - 1 / 12) < 6 * np.sqrt(1 / 180 / n)
    counts, _ = np.histogram(draws, bins=64, range=(0, 1))
    chi2 = np.sum((counts - n / 64) ** 2 / (n / 64))
    assert abs(chi2 - 63) < 6 * np.sqrt(2 * 63)
    # Columns are one row's numbers, lines are envs: neither tells anything of the other.
    for matrix in (draws.T, draws[:64]):
        correlation = np.corrcoef(matrix) - np.eye(len(matrix))
        assert np.abs(correlation).max() < 6 / np.sqrt(matrix.shape[1])


def test_normal_moments() -> None:
    draws = noise.normal(_keys(6000, seed=11), 15).astype(np.float64)
    n = draws.size
    assert abs(draws.mean()) < 6 / np.sqrt(n)
    assert abs(draws.var() - 1) < 6 * np.sqrt(2 / n)
    assert abs(np.mean(draws**3)) < 6 * np.sqrt(15 / n)
    assert abs(np.mean(draws**4) - 3) < 6 * np.sqrt(96 / n)


def test_integers_do_not_collide() -> None:
    seeds = noise.integers(_keys(20000))
    assert len(np.unique(seeds)) == len(seeds)
    assert abs(np.mean(seeds) / 2**61 - 1) < 0.05
