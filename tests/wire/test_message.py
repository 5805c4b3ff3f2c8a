import random
from typing import Any

import msgpack
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from embodied.errors import MessageError
from embodied.wire.message import DTYPES, KINDS, PROTOCOL, SMALL, Limits, Message, decode, encode

NAMES = st.text(min_size=1, max_size=20).filter(lambda text: text.isprintable())
PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False)
    | NAMES
    | st.binary(max_size=9),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(NAMES, inner, max_size=4),
    max_leaves=12,
)
ARRAYS = st.sampled_from(sorted(DTYPES)).flatmap(
    lambda name: hnp.arrays(DTYPES[name], hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4))
)
MESSAGES = st.builds(
    Message,
    kind=st.sampled_from(sorted(KINDS)),
    id=st.integers(0, 2**63 - 1),
    session=st.text(max_size=20).filter(lambda text: text.isprintable()),
    policy=NAMES,
    deadline_ms=st.integers(0, 2**40),
    body=st.dictionaries(NAMES, PLAIN, max_size=4),
    arrays=st.dictionaries(NAMES, ARRAYS, max_size=4),
)


def sent(message: Message) -> list[bytes]:
    return [bytes(frame) for frame in encode(message)]


@settings(max_examples=100, deadline=None)
@given(MESSAGES)
def test_round_trip(message: Message) -> None:
    got = decode(sent(message))
    for name in ("kind", "id", "session", "policy", "deadline_ms", "body"):
        assert getattr(got, name) == getattr(message, name)
    assert got.arrays.keys() == message.arrays.keys()
    for name, array in message.arrays.items():
        back = got.arrays[name]
        assert back.dtype == array.dtype and back.shape == array.shape and back.tobytes() == array.tobytes()
        assert back.flags.c_contiguous and back.flags.writeable


@pytest.mark.parametrize("source", ["valid", "noise"])
def test_whatever_arrives_only_message_errors_come_out(source: str) -> None:
    draw = random.Random(1)
    arrays = {"a": np.zeros((3, 2), np.float32), "flags": np.ones(4, bool), "none": np.zeros((0, 9))}
    whole = sent(Message("act", 7, "session", "policy", 50, {"mode": "mean", "deep": [[{"x": [1.5]}]]}, arrays))
    refused = 0
    for _ in range(4000):
        frames = list(whole)
        for _ in range(draw.randint(1, 3)):
            at = draw.randrange(len(frames)) if draw.random() < 0.5 else 0
            frame = bytearray(frames[at])
            match draw.randrange(6) if source == "valid" else 5:
                case 0 | 1 if frame:
                    frame[draw.randrange(len(frame))] = draw.randrange(256)
                case 2:
                    del frame[draw.randrange(len(frame) + 1) :]
                case 3:
                    place = draw.randrange(len(frame) + 1)
                    frame[place:place] = draw.randbytes(draw.randint(1, 9))
                case 4:
                    frames.insert(at, draw.randbytes(draw.randint(0, 24)))
                case _:
                    frame = bytearray(draw.randbytes(draw.randint(0, 60)))
            frames[at] = bytes(frame)
        try:
            decode(frames)
        except MessageError as error:
            refused += 1
            assert "\n" not in error.line()
    assert refused > 1000


def header(**changes: Any) -> bytes:
    fields = {
        "v": PROTOCOL,
        "kind": "act",
        "id": 1,
        "session": "",
        "policy": "",
        "deadline_ms": 0,
        "arrays": [],
        "body": {},
    }
    return msgpack.packb({**fields, **changes})


BOMB = b"\xdd\x00\x0f\xff\xff" * 200_000
DEEP = b"\x91" * 100_000


def nested(depth: int) -> dict[str, Any]:
    body: dict[str, Any] = {}
    for _ in range(depth):
        body = {"x": body}
    return body


@pytest.mark.parametrize(
    ("frames", "words"),
    [
        ([], "without frames"),
        ([header(v=PROTOCOL + 1)], "protocol"),
        ([msgpack.packb([1, 2])], "protocol"),
        ([header(kind="launch")], "unknown message kind"),
        ([header(kind=3)], "kind is no str"),
        ([header(id=-1)], "out of range"),
        ([header(id=True)], "id is no int"),
        ([header(session="s" * 600)], "too long"),
        ([header(body=nested(16))], "nested"),
        ([header(body={"x": "y" * (1 << 17)})], "within limits"),
        ([header(body={"x": list(range(5000))})], "within limits"),
        ([BOMB], "within limits"),
        ([DEEP], "within limits"),
        ([bytes(1 << 23)], "header of"),
        ([header(body={"x": msgpack.ExtType(5, b"")})], "extension type 5"),
        ([header(arrays=[["a", "float32"]]), b""], "not announced"),
        ([header(arrays=[["a", "object", [1]]]), b"12345678"], "unknown dtype"),
        ([header(arrays=[["a", "uint8", [1]], ["a", "uint8", [1]]]), b"1", b"1"], "used twice"),
        ([header(arrays=[["a", "uint8", [-1]]]), b""], "no count"),
        ([header(arrays=[["a", "uint8", [1.0]]]), b"1"], "no count"),
        ([header(arrays=[["a", "uint8", [1] * 9]]), b"1"], "axes"),
        ([header(arrays=[["a", "float64", [1 << 40]]]), b""], "at most"),
        ([header(arrays=[["a", "uint8", [0, 1 << 62, 1 << 62]]]), b""], "at most"),
        ([header(arrays=[[f"a{i}", "uint8", [1 << 28]] for i in range(5)]), *[b""] * 5], "in all"),
        ([header(arrays=[["a", "float32", [2]]]), b"1234567"], "7 bytes, not 8"),
        ([header(arrays=[["a", "uint8", [5000]]]), bytes(4999)], "needs 5000"),
        ([header(arrays=[["a", "float32", [2]]])], "0 array frames where 1"),
        ([header(), b"x"], "1 array frames where 0"),
        ([header(arrays=[["a", "bool", [2]]]), b"\x01\x02" + bytes(6)], "no bool"),
    ],
)
def test_malformed(frames: list[bytes], words: str) -> None:
    with pytest.raises(MessageError, match=words):
        decode(frames)


def test_a_sender_finds_out_before_it_sends() -> None:
    tight = Limits(total_bytes=100, header_bytes=400)
    for message in (
        Message("act", arrays={"a": np.zeros(200, np.uint8)}),
        Message("act", arrays={"a": np.array(["text"])}),
        Message("act", body={"x": "y" * 500}),
        Message("act", body={"x": object()}),
        Message("act", body={1: 2}),  # type: ignore[dict-item]
        Message("launch"),
    ):
        with pytest.raises(MessageError):
            encode(message, tight)


def test_layouts_that_are_not_ours_arrive_as_ours() -> None:
    wide = np.arange(12, dtype=np.float32).reshape(3, 4)
    arrays = {"swapped": wide.astype(">f4"), "strided": wide[:, ::2], "fortran": np.asfortranarray(wide)}
    got = decode(sent(Message("act", arrays=arrays))).arrays
    for name, array in arrays.items():
        np.testing.assert_array_equal(got[name], array)
        assert got[name].dtype == np.float32 and got[name].flags.c_contiguous


def test_large_arrays_are_sent_without_a_copy() -> None:
    array = np.zeros((4, SMALL), np.float32)
    frame = encode(Message("act", arrays={"a": array}))[1]
    array[0, 0] = 1
    assert np.frombuffer(frame, np.float32)[0] == 1


def test_small_arrays_share_a_frame_and_large_ones_have_their_own() -> None:
    arrays = {
        "a": np.arange(3, dtype=np.uint8),
        "large": np.arange(SMALL + 1, dtype=np.int32),
        "b": np.arange(2.0),
        "none": np.zeros((0, 4), np.float32),
        "flag": np.array(True),
        "picture": np.full((1, 40, 40, 3), 7, np.uint8),
        "edge": np.zeros(SMALL, np.uint8),
    }
    frames = sent(Message("act", 3, arrays=arrays))
    assert [len(frame) for frame in frames[1:]] == [8 + 16 + 8 + SMALL, 4 * (SMALL + 1), 4800]
    for _ in range(2):
        got = decode(frames).arrays
        for name, array in arrays.items():
            np.testing.assert_array_equal(got[name], array)
            assert got[name].dtype == array.dtype and got[name].flags.writeable
            got[name][...] = 0


@settings(max_examples=60, deadline=None)
@given(MESSAGES, st.sampled_from(["act", "step"]), st.integers(0, 2**63 - 1))
def test_a_header_that_comes_again_is_read_alike(message: Message, kind: str, id: int) -> None:
    for number in (message.id, id, 0):
        message.kind, message.id = kind, number
        got = decode(sent(message))
        assert (got.kind, got.id, got.body) == (kind, number, message.body)
        assert [type(value) for value in got.body.values()] == [type(value) for value in message.body.values()]
        got.body["mine"] = 1  # nobody else's


def test_values_that_are_equal_and_no_types_alike_are_told_apart() -> None:
    for value in (1, 1.0, True, 0, 0.0, False):
        got = decode(sent(Message("act", body={"x": value}))).body["x"]
        assert got == value and type(got) is type(value)


def test_a_head_cannot_borrow_a_tail() -> None:
    """Whoever knows a remembered tail puts nothing before it that would not be refused without it."""
    good = sent(Message("act", 1, session="me", body={"mode": "mean"}))[0]
    decode([good])
    at = good.index(b"\xa7session")
    for head in (
        {"v": PROTOCOL, "kind": "act", "id": 1},
        {"v": PROTOCOL, "kind": "act", "id": -1, "deadline_ms": 0},
        {"v": PROTOCOL, "kind": "fly", "id": 1, "deadline_ms": 0},
        {"v": PROTOCOL + 1, "kind": "act", "id": 1, "deadline_ms": 0},
        {"v": PROTOCOL, "kind": "act", "id": 1.0, "deadline_ms": 0},
    ):
        with pytest.raises(MessageError):
            decode([b"\x88" + msgpack.packb(head)[1:] + good[at:]])
    with pytest.raises(MessageError):
        decode([good[:at]])


def test_an_array_longer_than_a_frame_is_split_and_joined() -> None:
    limits = Limits(frame_bytes=5000)
    arrays = {"a": np.arange(3.0), "large": np.arange(4000, dtype=np.int32), "fits": np.ones(5000, np.uint8)}
    frames = [bytes(frame) for frame in encode(Message("act", arrays=arrays), limits)]
    assert [len(frame) for frame in frames[1:]] == [24, 5000, 5000, 5000, 1000, 5000]
    got = decode(frames).arrays  # a receiver takes any split
    for name, array in arrays.items():
        np.testing.assert_array_equal(got[name], array)
        assert got[name].dtype == array.dtype and got[name].flags.writeable and got[name].flags.aligned
    for broken in (frames[:-1], frames[:3] + frames[4:], [*frames[:3], b"", *frames[3:]], [*frames, b"x"]):
        with pytest.raises(MessageError):
            decode(broken)


def test_sizes_are_bounded_before_an_array_is_allocated() -> None:
    with pytest.raises(MessageError, match="at most 100 per message"):
        decode([header(arrays=[["a", "uint64", [13]]]), bytes(104)], Limits(total_bytes=100))


def test_unsigned_integers_of_64_bits_and_bfloat16_travel_bit_for_bit() -> None:
    hashes = np.array([0, 2**64 - 1, 2**63 + 1], np.uint64)
    halves = np.array([0x3F80, 0xFF80, 0x7FC1], np.uint16)  # 1, minus infinity, a NaN with a payload
    frames = sent(Message("load", arrays={"hashes": hashes, "halves": halves, "swapped": halves.astype(">u2")}))
    announced = [entry[:2] for entry in msgpack.unpackb(frames[0])["arrays"]]
    assert announced == [["hashes", "uint64"], ["halves", "bfloat16"], ["swapped", "bfloat16"]]
    got = decode(frames).arrays
    assert got["hashes"].dtype == np.uint64 and got["hashes"].tolist() == hashes.tolist()
    for name in ("halves", "swapped"):
        assert got[name].dtype == np.uint16 and got[name].tolist() == halves.tolist()


def test_a_peer_of_another_protocol_is_refused_in_one_line() -> None:
    """The bytes of a `hello` of protocol 2."""
    old = {"v": 2, "kind": "hello", "id": 1, "deadline_ms": 0, "session": "s", "policy": "", "arrays": [],
           "body": {"body": None, "agent": "robot", "role": "robot"}}  # fmt: skip
    with pytest.raises(MessageError) as refused:
        decode([msgpack.packb(old)])
    assert refused.value.line().startswith("peer speaks protocol 2, this side 3")
    assert "run the same version on both sides" in refused.value.line() and "\n" not in refused.value.line()
