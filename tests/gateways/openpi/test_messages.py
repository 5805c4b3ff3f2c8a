"""openpi's messages: what openpi's own code makes and reads, and what is refused."""

from typing import Any

import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from embodied.errors import MessageError
from embodied.gateways.openpi.messages import Limits, decode, encode

_DTYPES = ["bool", "uint8", "int8", "int16", "int32", "int64", "uint64", "float16", "float32", "float64", ">f4"]


def _array(dtype: str = "<f4", shape: Any = (2,), data: Any = bytes(8)) -> dict[bytes, Any]:
    return {b"__ndarray__": True, b"data": data, b"dtype": dtype, b"shape": shape}


@given(st.sampled_from(_DTYPES), arrays.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4), st.data())
def test_arrays_survive_bit_for_bit(dtype: str, shape: tuple[int, ...], data: st.DataObject) -> None:
    array = data.draw(arrays.arrays(np.dtype(dtype), shape))
    got = decode(encode({"a": {"b": array}, "c": [array.T]}))
    for one, two in ((array, got["a"]["b"]), (array.T, got["c"][0])):
        assert one.dtype == two.dtype and one.shape == two.shape and one.tobytes() == two.tobytes()


def test_the_bytes_are_those_of_the_specification() -> None:
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    raw = msgpack.unpackb(encode({"actions": array, "n": np.int64(3), "s": "x"}))
    assert raw["actions"] == _array("<f4", [2, 3], array.tobytes())
    assert raw["n"] == {b"__npgeneric__": True, b"data": 3, b"dtype": "<i8"} and raw["s"] == "x"


def test_numpy_scalars_and_strings() -> None:
    got = decode(encode({"n": np.float32(1.5), "b": np.bool_(True), "s": np.str_("pick"), "p": 2, "f": None}))
    assert got["n"] == np.float32(1.5) and got["n"].dtype == np.float32
    assert got["b"].dtype == np.bool_ and got["s"] == "pick" and got["p"] == 2 and got["f"] is None


@pytest.mark.parametrize(
    ("message", "word"),
    [
        (_array("|O"), "dtype"),
        (_array("<c8"), "dtype"),
        (_array("|V8"), "dtype"),
        (_array("<f4,<f4"), "dtype"),
        (_array("(2,)f4"), "dtype"),
        (_array("<M8[s]"), "dtype"),
        (_array("<U2"), "dtype"),
        (_array("f16"), "dtype"),
        (_array(b"<f4"), "dtype"),
        (_array(shape=(3,)), "8 bytes"),
        (_array(shape=(-2,)), "no count"),
        (_array(shape=(True, 2)), "no count"),
        (_array(shape=(2.0,)), "no count"),
        (_array(shape=(0, 1 << 62), data=b""), "0 bytes"),
        (_array(shape=(1 << 40, 1 << 40), data=b""), "0 bytes"),
        (_array(shape=[1] * 9), "8 axes"),
        (_array(shape=2), "8 axes"),
        (_array(data="12345678"), "without data"),
        (_array("|b1", (1,), b"\x02"), "bool"),
        ({b"__ndarray__": True}, "dtype"),
        ({b"__npgeneric__": True, b"data": b"x", b"dtype": "|S1"}, "dtype"),
        ({b"__npgeneric__": True, b"data": [1], b"dtype": "<i8"}, "dtype"),
        ({b"__npgeneric__": True, b"data": 300, b"dtype": "|u1"}, "no |u1"),
        ({b"key": 1}, "no string"),
    ],
)
def test_what_is_refused(message: Any, word: str) -> None:
    with pytest.raises(MessageError, match=word.replace("|", r"\|")):
        decode(msgpack.packb({"a": message}))


@pytest.mark.parametrize(
    "data",
    [b"", b"\xc1", b"\x93\x01", msgpack.packb([1]), msgpack.packb(3), msgpack.packb("text"), b"\xdf\xff\xff\xff\xff",
     msgpack.packb({1: 2}), msgpack.packb({"a": msgpack.ExtType(4, b"x")}), msgpack.packb({}) + b"x",
     b"\x81\xa1a" + b"\x91" * 2000 + b"\x01", msgpack.packb({"a": msgpack.Timestamp(1)}),
     msgpack.packb({"a": [0] * 2000}), msgpack.packb({"a": "x" * 70_000}), b"\x81\xa1a\xa2\xff\xff",
     msgpack.packb(_array()), msgpack.packb({"a": [[[[[[[[[1]]]]]]]]]})],
)  # fmt: skip
def test_garbage_is_a_message_error(data: bytes) -> None:
    with pytest.raises(MessageError):
        decode(data)


def test_a_message_too_long_is_refused_first() -> None:
    with pytest.raises(MessageError, match="at most 10"):
        decode(bytes(11), Limits(total=10))


@given(st.data())
def test_mutated_messages_are_read_or_refused(data: st.DataObject) -> None:
    good = bytearray(encode({"image": np.zeros((2, 2, 3), np.uint8), "state": np.ones(3), "prompt": "go", "n": 1}))
    for _ in range(data.draw(st.integers(1, 4))):
        good[data.draw(st.integers(0, len(good) - 1))] = data.draw(st.integers(0, 255))
    try:
        decode(bytes(good[: data.draw(st.integers(0, len(good)))]))
    except MessageError as error:
        assert "\n" not in error.line()


@pytest.mark.slow
def test_a_hundred_thousand_mutated_messages() -> None:
    draw = np.random.default_rng(0)
    good = np.frombuffer(
        encode({"image": np.zeros((4, 4, 3), np.uint8), "a": {"b": np.ones(3)}, "n": np.int8(1)}), "u1"
    )
    read = 0
    for _ in range(100_000):
        bad = good[: draw.integers(1, len(good) + 1)] if draw.random() < 0.2 else good
        bad = bad.copy()
        bad[draw.integers(0, len(bad), draw.integers(1, 6))] = draw.integers(0, 256)
        try:
            decode(bad.tobytes())
            read += 1
        except MessageError as error:
            assert len(error.line()) < 2000
    assert 0 < read < 100_000


@pytest.mark.parametrize("value", [np.array([None]), np.array([1j]), object(), {1, 2}, np.array(["a"]), 1 << 70])
def test_what_cannot_be_sent(value: Any) -> None:
    with pytest.raises(MessageError, match="cannot be packed"):
        encode({"a": value})
