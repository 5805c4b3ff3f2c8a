from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from embodied.errors import MessageError
from embodied.weights.manifest import Manifest
from embodied.weights.transfer import RANGES, Content, Inbox, chunk_count, chunk_hash, empty, views

Arrays = Mapping[str, NDArray[Any]]


def joined(tensors: Arrays) -> bytes:
    return b"".join(array.tobytes() for _, array in sorted(tensors.items()))


@st.composite
def some_tensors(draw: st.DrawFn) -> dict[str, NDArray[Any]]:
    dtypes, shapes = ("uint8", "float16", "float32", "float64", "int64"), ((), (0, 3), (5,), (2, 3), (1,))
    chosen = draw(st.lists(st.tuples(st.sampled_from(dtypes), st.sampled_from(shapes)), max_size=5))
    return {
        f"t{(7 * i) % 5}": np.arange(100 * i, 100 * i + int(np.prod(shape))).astype(dtype).reshape(shape)
        for i, (dtype, shape) in enumerate(chosen)
    }


def chunk(tensors: Arrays, index: int, size: int) -> NDArray[np.uint8]:
    content = Content(tensors)
    return content.read(index * size, min((index + 1) * size, content.nbytes))


@given(some_tensors(), st.data())
def test_any_range_of_the_content_is_read_and_written(tensors: dict[str, NDArray[Any]], data: st.DataObject) -> None:
    content, whole = Content(tensors), joined(tensors)
    assert content.nbytes == len(whole)
    stop = data.draw(st.integers(0, len(whole)))
    start = data.draw(st.integers(0, stop))
    assert content.read(start, stop).tobytes() == whole[start:stop]
    content.write(start, np.full(stop - start, 7, np.uint8))
    assert joined(tensors) == whole[:start] + b"\7" * (stop - start) + whole[stop:]


@given(some_tensors())
def test_views_of_the_content_are_the_tensors(tensors: dict[str, NDArray[Any]]) -> None:
    manifest = Manifest.of("tiny", 1, tensors, {})
    manifest.verify(views(np.frombuffer(joined(tensors), np.uint8), manifest.tensors))


@given(some_tensors(), st.integers(1, 20), st.data())
def test_chunks_in_any_order_any_number_of_times(
    tensors: dict[str, NDArray[Any]], size: int, data: st.DataObject
) -> None:
    manifest = Manifest.of("tiny", 1, tensors, {})
    arrays = empty(manifest.tensors)
    inbox = Inbox(arrays, size)
    assert inbox.chunks == chunk_count(manifest.nbytes, size)
    order = data.draw(st.permutations(list(range(inbox.chunks)) * 2))
    seen: set[int] = set()
    for index in order:
        piece = chunk(tensors, index, size)
        inbox.put(index, chunk_hash(piece), piece)
        seen.add(index)
        missing = {i for first, end in inbox.missing() for i in range(first, end)}
        assert missing == set(range(inbox.chunks)) - seen and inbox.received == len(seen)
    assert inbox.complete
    manifest.verify(arrays)


def test_what_is_wrong_with_a_chunk_is_said_and_changes_nothing() -> None:
    tensors = {"a": np.arange(10, dtype=np.uint8)}
    arrays = {"a": np.zeros(10, np.uint8)}
    inbox = Inbox(arrays, 4)
    good = chunk(tensors, 1, 4)
    for index, digest, piece, words in (
        (3, chunk_hash(good), good, "chunk 3 of 3"),
        (-1, chunk_hash(good), good, "chunk -1 of 3"),
        (True, chunk_hash(good), good, "chunk True of 3"),
        ("1", chunk_hash(good), good, "chunk 1 of 3"),
        (1, chunk_hash(good), good[:3], "has shape"),
        (2, chunk_hash(good), good, "has shape"),
        (1, chunk_hash(good), good[::-1].copy(), "arrived damaged"),
        (1, None, good, "arrived damaged"),
    ):
        with pytest.raises(MessageError, match=words):
            inbox.put(index, digest, piece)
    assert inbox.received == 0 and not arrays["a"].any()
    inbox.put(1, chunk_hash(good), good)
    other = good + 1
    inbox.put(1, chunk_hash(other), other)  # a second one for a chunk that is there is not looked at
    assert arrays["a"].tolist() == [0, 0, 0, 0, 4, 5, 6, 7, 0, 0]


def test_a_list_of_missing_chunks_is_bounded() -> None:
    inbox = Inbox({"a": np.zeros(4 * RANGES, np.uint8)}, 1)
    one = np.zeros(1, np.uint8)
    for index in range(1, 4 * RANGES, 2):
        inbox.put(index, chunk_hash(one), one)
    assert inbox.missing() == [(i, i + 1) for i in range(0, 2 * RANGES, 2)]
