"""GR00T's messages: what numpy and msgpack make of them, and what must never be made of them."""

import contextlib
import io
import json
import os
import pickle
from typing import Any

import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from embodied.errors import MessageError
from embodied.gateways.groot.messages import ModalityConfig, generation_of, load, pack, read_request, request, unpack

DTYPES = ["bool", "uint8", "int8", "uint16", "int32", "int64", "float16", "float32", "float64", ">f4", ">i8", "<U7"]


def saved(array: NDArray[Any], version: tuple[int, int] | None = None, pickles: bool = False) -> bytes:
    file = io.BytesIO()
    np.lib.format.write_array(file, array, version, allow_pickle=pickles)
    return file.getvalue()


def sent(npy: object) -> bytes:
    """A request whose only array is `npy`."""
    array = {"__ndarray_class__": True, "as_npy": npy}
    return msgpack.packb({"endpoint": "get_action", "data": {"state.a": array}})


class Trap:
    """Unpickling this makes a folder."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (self.path,)


@given(st.sampled_from(DTYPES).flatmap(lambda d: hnp.arrays(d, hnp.array_shapes(min_dims=0, min_side=0, max_side=5))))
def test_arrays_come_back(array: NDArray[Any]) -> None:
    for stored in (array, np.array(array, order="F")):
        got = unpack(pack({"a": [stored]}))["a"][0]
        assert got.dtype == array.dtype and got.shape == array.shape
        np.testing.assert_array_equal(got, array)
        assert not got.flags.writeable


@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
def test_every_version_of_the_format_is_read(version: tuple[int, int]) -> None:
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    np.testing.assert_array_equal(load(saved(array, version)), array)


def test_numpy_reads_what_is_packed() -> None:
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    raw = msgpack.unpackb(pack({"action.arm": array}))["action.arm"]
    assert set(raw) == {"__ndarray_class__", "as_npy"} and raw["__ndarray_class__"] is True
    np.testing.assert_array_equal(np.load(io.BytesIO(raw["as_npy"]), allow_pickle=False), array)


def test_plain_values_come_back() -> None:
    value = {"a": None, "b": [1, 2.5, True, "text", b"bytes"], "c": {"d": []}}
    assert unpack(pack(value)) == value


def test_modality_configurations_differ_by_generation() -> None:
    config = ModalityConfig([0], ["video.front"])
    fields = {"delta_indices": [0], "modality_keys": ["video.front"]}
    assert json.loads(msgpack.unpackb(pack(config, "n1.5"))["as_json"]) == fields
    assert msgpack.unpackb(pack(config, "n1.6"))["as_json"] == fields
    assert unpack(pack(config, "n1.5")) == unpack(pack(config, "n1.6")) == config


def test_requests() -> None:
    assert read_request(pack(request("ping"))).endpoint == "ping"
    assert read_request(pack({"data": {}})).endpoint == "get_action"
    assert read_request(pack(request("ping", token="abc"))).token == "abc"
    assert read_request(pack({"api_token": 5})).token == ""
    assert generation_of({"observation": {}, "options": None}) == "n1.6"
    assert generation_of({"video.front": 1}) == generation_of(None) == "n1.5"


@pytest.mark.parametrize("value", [np.float32(1), object(), {1, 2}, np.array([None]), np.zeros(2, "f4,i4"), 1j])
def test_what_cannot_be_packed_is_named(value: object) -> None:
    with pytest.raises(MessageError, match="cannot be packed"):
        pack({"a": value})


def test_pickles_are_refused_unopened(tmp_path: Any) -> None:
    trap = Trap(str(tmp_path / "opened"))
    objects = saved(np.array([trap], object), pickles=True)
    for data in (sent(objects), sent(pickle.dumps(trap)), pickle.dumps(trap), objects):
        with pytest.raises(MessageError):
            read_request(data)
    assert not (tmp_path / "opened").exists()
    pickle.loads(pickle.dumps(trap))
    assert (tmp_path / "opened").exists()


def header(text: str, data: bytes = b"") -> bytes:
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode() + data


@pytest.mark.parametrize(
    "npy",
    [
        b"",
        b"\x93NUMPY",
        saved(np.zeros(4))[:-1],
        saved(np.zeros(4)) + b"\0",
        header("{'descr': '<f8', 'fortran_order': False, 'shape': (1000000000000,), }", b"12345678"),
        header("{'descr': '<f8', 'fortran_order': False, 'shape': (999999999999999, 999999999999999, 0), }"),
        header("{'descr': '<f8', 'fortran_order': False, 'shape': (-1,), }", b"12345678"),
        header("{'descr': '<f8', 'fortran_order': False, 'shape': (1" + ",1" * 20 + "), }", b"12345678"),
        header("{'descr': '|O', 'fortran_order': False, 'shape': (1,), }", b"12345678"),
        header("{'descr': '<U0', 'fortran_order': False, 'shape': (1,), }"),
        header("{'descr': [('a', '<f8')], 'fortran_order': False, 'shape': (1,), }", b"12345678"),
        header("{'descr': '|b1', 'fortran_order': False, 'shape': (1,), }", b"\x05"),
        header("__import__('os').getcwd()"),
        header("(" * 900),
        b"\x93NUMPY\x02\x00\xff\xff\xff\xff",
        "text",
        None,
    ],
)
def test_arrays_that_are_none(npy: object) -> None:
    with pytest.raises(MessageError):
        unpack(sent(npy))


def nested(depth: int) -> bytes:
    return b"\x91" * depth + b"\xc0"


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"ERROR",
        b"\xc1",
        nested(20),
        nested(100_000),
        b"\xdd\xff\xff\xff\xff",
        b"\xdf\xff\xff\xff\xff",
        b"\xc6\xff\xff\xff\xff",
        msgpack.packb(list(range(5000))),
        msgpack.packb({1: 2}),
        msgpack.packb({b"a": 2}),
        msgpack.packb("x" * 70_000),
        msgpack.packb(msgpack.ExtType(5, b"abc")),
        msgpack.packb({"__ModalityConfig_class__": True, "as_json": "[" * 10_000}),
        msgpack.packb({"__ModalityConfig_class__": True, "as_json": {"delta_indices": [0.5], "modality_keys": []}}),
    ],
)
def test_messages_that_are_none(data: bytes) -> None:
    with pytest.raises(MessageError):
        unpack(data)


def test_requests_that_are_none() -> None:
    for value in ([], 5, None, {"endpoint": 5}):
        with pytest.raises(MessageError):
            read_request(msgpack.packb(value))


@given(st.data())
def test_altered_messages_are_read_or_refused(data: st.DataObject) -> None:
    message = bytearray(pack(request("get_action", {"observation": {"state": {"a": np.ones((1, 1, 4), np.float32)}}})))
    for _ in range(data.draw(st.integers(1, 4))):
        message[data.draw(st.integers(0, len(message) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(MessageError):
        read_request(bytes(message))
