import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from embodied.client import ChunkCursor
from embodied.data import ActionChunk, Rows


def chunk(rows: Rows, length: int, start: float) -> ActionChunk:
    """A chunk whose action k of row b is `start + 100 b + k`."""
    actions = start + 100.0 * rows.env[:, None, None] + np.arange(length)[None, :, None]
    actions = actions.astype(np.float32)
    count = len(rows)
    return ActionChunk(rows, actions, actions, np.zeros(count, np.float32), np.zeros(count, np.int64), "p")


def test_chunks_are_executed_up_to_their_count() -> None:
    cursor, rows = ChunkCursor(2, 4, 3, 1), Rows.of_envs(2)
    assert cursor.due(rows).all()
    cursor.accept([0, 1], chunk(rows, 4, 0.0))
    for step in range(3):
        assert not cursor.due(rows).any()
        actions, k = cursor.next()
        np.testing.assert_array_equal(actions[:, 0], [step, 100 + step])
        assert k.tolist() == [step, step] and k.dtype == np.int32
    assert cursor.due(rows).all()


def test_a_new_episode_or_a_reset_ends_a_chunk() -> None:
    cursor, rows = ChunkCursor(3, 4, 4, 1), Rows.of_envs(3)
    cursor.accept([0, 1, 2], chunk(rows, 4, 0.0))
    cursor.next()
    rows.episode[1] = 1
    cursor.reset([2])
    assert cursor.due(rows).tolist() == [False, True, True]
    with pytest.raises(ValueError, match=r"rows \[2\]"):
        cursor.next()
    cursor.accept([1, 2], chunk(rows.take([1, 2]), 4, 50.0))
    assert not cursor.due(rows).any()
    actions, k = cursor.next()
    assert actions[:, 0].tolist() == [1, 150, 250] and k.tolist() == [1, 0, 0]


def test_a_shorter_chunk_ends_at_its_end() -> None:
    cursor, rows = ChunkCursor(1, 4, 3, 1), Rows.of_envs(1)
    cursor.accept([0], chunk(rows, 1, 0.0))
    cursor.next()
    assert cursor.due(rows).all()


def test_nothing_is_shared_with_the_caller() -> None:
    cursor, rows = ChunkCursor(1, 2, 2, 1), Rows.of_envs(1)
    given_chunk = chunk(rows, 2, 0.0)
    cursor.accept([0], given_chunk)
    given_chunk.actions[:] = 9
    rows.episode[:] = 0
    first, _ = cursor.next()
    first[:] = 9
    assert cursor.next()[0].tolist() == [[1.0]]


def test_execute_lies_within_the_chunk() -> None:
    for execute in (0, 5):
        with pytest.raises(ValueError, match="a chunk has 4"):
            ChunkCursor(1, 4, execute, 1)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 4), st.integers(1, 4), st.lists(st.lists(st.booleans(), min_size=3, max_size=3), max_size=20))
def test_rows_do_as_three_loops_would(chunk_size: int, execute: int, ends: list[list[bool]]) -> None:
    execute = min(execute, chunk_size)
    cursor, rows = ChunkCursor(3, chunk_size, execute, 1), Rows.of_envs(3)
    left, nexts = [0, 0, 0], [0.0, 0.0, 0.0]
    for step, ended in enumerate(ends):
        due = cursor.due(rows)
        assert due.tolist() == [n == 0 for n in left]
        index = np.flatnonzero(due)
        if len(index):
            cursor.accept(index, chunk(rows.take(index), chunk_size, 1000.0 * step))
        for row in index:
            left[row], nexts[row] = execute, 1000.0 * step + 100.0 * row
        actions, _ = cursor.next()
        assert actions[:, 0].tolist() == nexts
        nexts = [n + 1 for n in nexts]
        left = [n - 1 for n in left]
        for row in np.flatnonzero(ended):
            rows.episode[row] += 1
            left[row] = 0
