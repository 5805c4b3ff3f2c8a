"""Values of a msgpack message are counted without being made."""

from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from embodied.errors import MessageError
from embodied.gateways.groot.scan import check_values

VALUES: Any = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(width=32) | st.text(max_size=300)
    | st.binary(max_size=300),
    lambda inner: st.lists(inner, max_size=20) | st.dictionaries(st.text(max_size=40), inner, max_size=20),
    max_leaves=20,
)  # fmt: skip


def values(value: Any) -> int:
    if isinstance(value, dict):
        return 1 + sum(1 + values(inner) for inner in value.values())
    return 1 + sum(values(inner) for inner in value) if isinstance(value, list) else 1


@given(VALUES, st.booleans())
def test_exactly_as_many_values_as_there_are(value: Any, single: bool) -> None:
    data, count = msgpack.packb(value, use_single_float=single), values(value)
    check_values(data, count, "here")
    check_values(memoryview(data), count, "here")
    with pytest.raises(MessageError, match=f"more than {count - 1} values"):
        check_values(data, count - 1, "here")
    if len(data) > 1:
        with pytest.raises(MessageError, match="ends too early"):
            check_values(data[:-1], count, "here")


@pytest.mark.parametrize("count", [15, 16, 65_535, 65_536])
def test_long_lists_and_maps(count: int) -> None:
    check_values(msgpack.packb([1] * count), count + 1, "here")
    check_values(msgpack.packb(dict.fromkeys(range(count))), 2 * count + 1, "here")
    check_values(msgpack.packb(["x" * count, b"x" * count]), 3, "here")
    for long in (b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff", b"\x91" * 200_000):
        with pytest.raises(MessageError):
            check_values(long, count, "here")


@given(st.binary(max_size=200))
def test_what_msgpack_reads_was_counted(data: bytes) -> None:
    """Whatever passes `msgpack` has no more values than were said, and is not refused but for extensions."""
    try:
        value = msgpack.unpackb(data, strict_map_key=False, max_ext_len=0)
    except Exception:
        return
    try:
        check_values(data, 1000, "here")
    except MessageError as error:
        pytest.fail(f"{value!r}: {error}")
