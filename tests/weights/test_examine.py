import numpy as np
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from embodied.errors import WeightsRefused
from embodied.weights.examine import examine
from embodied.weights.manifest import Manifest

BLOCK = 2**20


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_one_bad_number_anywhere_is_found(dtype: str, bad: float) -> None:
    good = np.full(BLOCK // np.dtype(dtype).itemsize + 3, np.finfo(dtype).max, dtype)
    assert examine(good) == ("", xxhash.xxh3_128_hexdigest(good.tobytes()))
    for place in (0, len(good) // 2, len(good) - 1):
        spoiled = good.copy()
        spoiled[place] = bad
        assert examine(spoiled)[0] == "numbers that are not finite"


def test_bfloat16_numbers_that_are_not_finite_are_found() -> None:
    for bits in (0x0000, 0x7F7F, 0xFF7F, 0x0001, 0x7C00):  # the last is infinite as a float16
        assert examine(np.array([bits], np.uint16))[0] == ""
    for bits in (0x7F80, 0xFF80, 0x7FC0, 0xFFFF):
        assert examine(np.array([0x3F80, bits], np.uint16))[0] == "numbers that are not finite"


def test_bytes_that_are_no_bool_are_found() -> None:
    assert examine(np.array([0, 1, 2], np.uint8).view(np.bool_))[0] == "bytes that are no bool"


@given(st.integers(0, 3 * BLOCK), st.booleans())
def test_the_hash_is_of_the_whole_and_of_the_copy(size: int, copied: bool) -> None:
    data = np.arange(size, dtype=np.uint32).view(np.uint8)[:size]
    into = np.zeros(size, np.uint8) if copied else None
    assert examine(data, into) == ("", xxhash.xxh3_128_hexdigest(data.tobytes()))
    assert into is None or np.array_equal(into, data)


def test_what_is_verified_is_the_copy_and_in_two_threads_the_first_flaw_is_named() -> None:
    tensors = {f"t{i}": np.full(2**21, i, np.float32) for i in range(5)}  # 40 MB
    manifest = Manifest.of("tiny", 1, tensors, {})
    into = {name: np.empty_like(array) for name, array in tensors.items()}
    verified = manifest.verify(tensors, into=into)
    assert verified.hash == manifest.hash
    for name, array in tensors.items():
        assert verified[name] is into[name] and np.array_equal(into[name], array)
    tensors["t1"][5], tensors["t3"][5] = 7, 7
    with pytest.raises(WeightsRefused, match="tensor t1 has other content"):
        manifest.verify(tensors, into=into)
