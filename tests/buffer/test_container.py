from pathlib import Path

import numpy as np
import pytest

from embodied.buffer.container import read_index, sealed_size, verify, write_sealed
from embodied.buffer.encode import encode
from embodied.buffer.reader import read_episodes, read_summaries
from embodied.buffer.summary import pack_index, summarise
from embodied.errors import CorruptFile
from tests.buffer.samples import assert_same, make_episode


@pytest.fixture
def whole(tmp_path: Path) -> tuple[Path, bytes]:
    path = tmp_path / "a.h5"
    episode = make_episode(0, "a")
    index, body = pack_index([summarise(episode)]), encode([episode])
    write_sealed(path, index, body)
    assert path.stat().st_size == sealed_size(index, body)
    return path, path.read_bytes()


def read(path: Path) -> None:
    """The right episode, or CorruptFile; anything else is an error."""
    try:
        summaries = read_summaries(path)
        [episode] = read_episodes(path, ["a"])
    except CorruptFile as error:
        assert error.where == str(path) and error.fix and "\n" not in error.line()
        raise
    assert_same(summaries, [summarise(make_episode(0, "a"))])
    assert_same(episode, make_episode(0, "a"))


def test_a_file_cut_anywhere_is_corrupt(whole: tuple[Path, bytes]) -> None:
    path, data = whole
    read(path)
    for size in [*range(0, 700, 7), *range(700, len(data), 997), len(data) - 1]:
        path.write_bytes(data[:size])
        with pytest.raises(CorruptFile):
            read(path)
    path.write_bytes(data + b"\0")
    with pytest.raises(CorruptFile):
        read(path)


def test_an_altered_byte_is_found_or_does_no_harm(whole: tuple[Path, bytes]) -> None:
    path, data = whole
    rng = np.random.default_rng(0)
    block = int.from_bytes(data[8:16], "little")
    harmless = 0
    for position in [*range(0, 300, 3), *rng.integers(0, len(data), 300).tolist()]:
        changed = bytearray(data)
        changed[position] ^= 1 << int(rng.integers(8))
        path.write_bytes(bytes(changed))
        try:
            read(path)
        except CorruptFile:
            continue
        harmless += 1
        assert 64 + len(read_index(path)) <= position < block, "only the zeros after the index carry nothing"
    assert harmless < 200


def test_other_files_are_named_as_what_they_are(tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    path.write_bytes(encode([make_episode(0)]))
    for check in (read_index, verify):
        with pytest.raises(CorruptFile, match="not an episode file"):
            check(path)
    path.unlink()
    path.mkdir()
    with pytest.raises(CorruptFile, match="cannot be read"):
        verify(path)
    with pytest.raises(FileNotFoundError):
        verify(tmp_path / "none.h5")


def test_an_index_of_any_size_fits_its_block(tmp_path: Path) -> None:
    for size in (0, 447, 448, 449, 5000):
        write_sealed(tmp_path / "a.h5", b"x" * size, b"body")
        assert read_index(tmp_path / "a.h5") == b"x" * size
        block = int.from_bytes((tmp_path / "a.h5").read_bytes()[8:16], "little")
        assert block >= 512 and block & (block - 1) == 0
