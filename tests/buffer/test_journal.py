from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from embodied.buffer import journal
from embodied.buffer.journal import JournalWriter, is_recorded, read_journal
from embodied.errors import CorruptFile, DataError
from tests.buffer.samples import assert_same


def write(path: Path, count: int = 4) -> list[tuple[dict[str, int], dict[str, np.ndarray]]]:
    rng = np.random.default_rng(0)
    frames = [
        (
            {"n": n},
            {"a": rng.normal(size=(n, 3)), "b": np.array(n, np.int32), "c": rng.integers(0, 255, 5).astype("u1")},
        )
        for n in range(count)
    ]
    writer = JournalWriter(path)
    for meta, arrays in frames:
        writer.append("step", meta, arrays)
    writer.close()
    return frames


def test_frames_come_back(tmp_path: Path) -> None:
    written = write(tmp_path / "a.journal")
    read = read_journal(tmp_path / "a.journal")
    assert [frame.kind for frame in read] == ["step"] * 4
    assert_same({n: f.arrays for n, f in enumerate(read)}, {n: arrays for n, (_, arrays) in enumerate(written)})
    assert [frame.meta for frame in read] == [meta for meta, _ in written]
    with pytest.raises(FileExistsError):
        JournalWriter(tmp_path / "a.journal")


def test_a_journal_cut_anywhere_gives_the_frames_before(tmp_path: Path) -> None:
    path = tmp_path / "a.journal"
    write(path)
    data = path.read_bytes()
    counts = []
    for size in range(len(data) + 1):
        path.write_bytes(data[:size])
        counts.append(len(read_journal(path)))
    assert counts == sorted(counts) and set(counts) == {0, 1, 2, 3, 4} and counts[-2] == 3


@given(st.integers(0, 10**6), st.integers(1, 255))
def test_an_altered_byte_ends_the_journal(tmp_path_factory: pytest.TempPathFactory, position: int, change: int) -> None:
    path = tmp_path_factory.mktemp("journal") / "a.journal"
    written = write(path)
    data = bytearray(path.read_bytes())
    data[position % len(data)] ^= change
    path.write_bytes(bytes(data))
    try:
        read = read_journal(path)
    except CorruptFile:
        return
    assert len(read) < len(written)
    assert_same({n: f.arrays for n, f in enumerate(read)}, {n: written[n][1] for n in range(len(read))})


def test_a_length_beyond_the_file_allocates_nothing(tmp_path: Path) -> None:
    path = tmp_path / "a.journal"
    path.write_bytes(journal.MAGIC + b"\xff" * 12 + b"x")
    assert read_journal(path) == []


def test_a_frame_beyond_the_limit_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "FRAME_LIMIT", 100)
    writer = JournalWriter(tmp_path / "a.journal")
    with pytest.raises(DataError, match="a frame of"):
        writer.append("step", {}, {"a": np.zeros(100)})
    writer.close()
    assert read_journal(tmp_path / "a.journal") == []


def test_a_living_writer_is_told_from_a_dead_one(tmp_path: Path) -> None:
    writer = JournalWriter(tmp_path / "a.journal")
    assert is_recorded(tmp_path / "a.journal")
    writer.close()
    assert not is_recorded(tmp_path / "a.journal")
