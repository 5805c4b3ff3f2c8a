from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from embodied.errors import MessageError
from embodied.weights.manifest import Manifest
from embodied.weights.transfer import RANGE_BYTES, Content, empty, range_hash, read_range, views

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


@given(some_tensors(), st.data())
def test_any_range_of_the_content_is_read_and_written(tensors: dict[str, NDArray[Any]], data: st.DataObject) -> None:
    content, whole = Content(tensors), joined(tensors)
    assert content.nbytes == len(whole)
    stop = data.draw(st.integers(0, len(whole)))
    start = data.draw(st.integers(0, stop))
    assert content.read(start, stop - start).tobytes() == whole[start:stop]
    content.write(start, np.full(stop - start, 7, np.uint8))
    assert joined(tensors) == whole[:start] + b"\7" * (stop - start) + whole[stop:]


@given(some_tensors())
def test_views_of_the_content_are_the_tensors(tensors: dict[str, NDArray[Any]]) -> None:
    manifest = Manifest.of("tiny", 1, tensors, {})
    manifest.verify(views(np.frombuffer(joined(tensors), np.uint8), manifest.tensors))


@given(some_tensors(), st.data())
def test_empty_arrays_take_any_content(tensors: dict[str, NDArray[Any]], data: st.DataObject) -> None:
    manifest = Manifest.of("tiny", 1, tensors, {})
    arrays = empty(manifest.tensors)
    content, whole = Content(arrays), np.frombuffer(joined(tensors), np.uint8)
    cut = data.draw(st.integers(0, len(whole)))
    content.write(cut, whole[cut:])
    content.write(0, whole[:cut])
    manifest.verify(arrays)
    assert all(array.flags.aligned and array.flags.owndata is False for array in arrays.values())


def test_a_range_is_answered_with_its_hash_and_nothing_beyond_the_content_is() -> None:
    tensors = {"a": np.arange(10, dtype=np.float32)}
    manifest = Manifest.of("tiny", 1, tensors, {})
    body, arrays = read_range(Content(tensors), manifest, {"version": manifest.label, "offset": 6, "size": 5})
    assert arrays["data"].tobytes() == joined(tensors)[6:11]
    assert body == {"version": manifest.label, "offset": 6, "hash": range_hash(arrays["data"])}
    for offset, size in ((0, 0), (-1, 4), (38, 3), (0, RANGE_BYTES + 1), (None, 4), (0, "4"), (0, True), (2**70, 1)):
        with pytest.raises(MessageError, match="no range"):
            read_range(Content(tensors), manifest, {"offset": offset, "size": size})
