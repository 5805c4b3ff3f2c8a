import numpy as np
import pytest

from embodied.buffer.packing import pack_arrays, unpack_arrays
from embodied.errors import DataError
from tests.buffer.samples import assert_same


def test_arrays_come_back() -> None:
    arrays = {
        "a": np.arange(6.0).reshape(2, 3),
        "b": np.array(True),
        "c": np.zeros((0, 4), np.int32),
        "d": np.ones(3)[::2],
    }
    table, data = pack_arrays(arrays)
    assert_same(unpack_arrays(table, data), arrays)


@pytest.mark.parametrize(
    "table",
    [
        [["a", "<f8", [2**60]]], [["a", "<f8", [-1]]], [["a", "<f8", [1]]], [["a", "|O", [2]]],
        [["a", "nonsense", [2]]], [["a", "<f8"]], 7, [["a", "<f8", 2]], [["a", "<f8", ["2"]]],
    ],
)  # fmt: skip
def test_a_table_that_does_not_fit_is_refused(table: object) -> None:
    with pytest.raises(DataError, match="damaged"):
        unpack_arrays(table, bytes(16))
