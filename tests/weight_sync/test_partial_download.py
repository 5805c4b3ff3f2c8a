"""A version that arrives in ranges: what was received is kept, whatever is killed, torn or altered."""

import errno
import os
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from embodied.errors import InfrastructureError, MessageError
from embodied.weight_sync.partial_download import PartialDownload, remove_stale
from embodied.weights.transfer import range_hash

LABEL, CONTENT = "3-ab12cd34ef56", "a" * 64
DATA = np.random.default_rng(0).integers(0, 255, 1000, dtype=np.uint8)


def write(download: PartialDownload, start: int, end: int) -> None:
    part = DATA[start:end]
    download.write(start, part, range_hash(part))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 999), st.integers(1, 400), st.booleans()), max_size=12))
def test_any_ranges_in_any_order_with_restarts_between(ranges: list[tuple[int, int, bool]]) -> None:
    got = np.zeros(1000, bool)
    with tempfile.TemporaryDirectory() as name:
        download = PartialDownload(Path(name), LABEL, CONTENT, 1000)
        for start, size, restart in ranges:
            end = min(start + size, 1000)
            write(download, start, end)
            got[start:end] = True
            if restart:
                download.close()
                download = PartialDownload(Path(name), LABEL, CONTENT, 1000)
            missing = np.zeros(1000, bool)
            for first, last in download.missing():
                missing[first:last] = True
            np.testing.assert_array_equal(missing, ~got)
            assert download.received == got.sum()
        for start, end in download.missing():
            write(download, start, end)
        assert download.complete
        content = download.content()
        download.discard()
        np.testing.assert_array_equal(content, DATA)
        assert list(Path(name).iterdir()) == []


def test_what_was_altered_or_torn_is_missing_again(tmp_path: Path) -> None:
    download = PartialDownload(tmp_path, LABEL, CONTENT, 1000)
    for start in range(0, 1000, 100):
        write(download, start, start + 100)
    download.close()
    with (tmp_path / f"{LABEL}.part").open("r+b") as file:
        file.seek(250)
        file.write(bytes(10))
    journal = tmp_path / f"{LABEL}.journal"
    journal.write_bytes(journal.read_bytes()[:-20] + b"\n[1, 2]\n\xff{\n[0, 99999999, 'x']\n")
    with PartialDownload(tmp_path, LABEL, CONTENT, 1000) as again:
        assert again.missing() == [(200, 300), (900, 1000)]
        write(again, 200, 300)
        write(again, 900, 1000)
    with PartialDownload(tmp_path, LABEL, CONTENT, 1000) as again:
        assert again.complete


@pytest.mark.parametrize("lost", [".part", ".journal"])
def test_without_one_of_the_files_all_is_missing(tmp_path: Path, lost: str) -> None:
    with PartialDownload(tmp_path, LABEL, CONTENT, 1000) as download:
        write(download, 0, 500)
    (tmp_path / f"{LABEL}{lost}").unlink()
    with PartialDownload(tmp_path, LABEL, CONTENT, 1000) as download:
        assert download.missing() == [(0, 1000)]


def test_another_content_under_the_label_starts_anew(tmp_path: Path) -> None:
    with PartialDownload(tmp_path, LABEL, CONTENT, 1000) as download:
        write(download, 0, 500)
    with PartialDownload(tmp_path, LABEL, "b" * 64, 800) as download:
        assert download.missing() == [(0, 800)]
        assert (tmp_path / f"{LABEL}.part").stat().st_size == 800
    with PartialDownload(tmp_path, LABEL, CONTENT, 0) as download:
        assert download.complete and download.content().size == 0


def test_damaged_and_foreign_ranges_are_refused(tmp_path: Path) -> None:
    with PartialDownload(tmp_path, LABEL, CONTENT, 1000) as download:
        with pytest.raises(MessageError, match="bytes 0 to 10 arrived damaged"):
            download.write(0, DATA[:10], range_hash(DATA[:9]))
        with pytest.raises(MessageError, match="bytes 995 to 1005 of 1000"):
            download.write(995, DATA[:10], range_hash(DATA[:10]))
        with pytest.raises(MessageError, match="bytes -1 to 9"):
            download.write(-1, DATA[:10], range_hash(DATA[:10]))
        assert download.received == 0


def test_a_full_disk_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(InfrastructureError, match="no disk space"):
        PartialDownload(tmp_path / "incoming", LABEL, CONTENT, 1000)
    assert list((tmp_path / "incoming").iterdir()) == []


def test_a_file_system_that_claims_no_space_in_advance(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unable(*_: object) -> None:
        raise OSError(errno.EOPNOTSUPP, "no")

    monkeypatch.setattr(os, "posix_fallocate", unable)
    with PartialDownload(tmp_path, LABEL, CONTENT, 1000) as download:
        write(download, 0, 1000)
        np.testing.assert_array_equal(download.content(), DATA)


def test_remove_stale_keeps_one(tmp_path: Path) -> None:
    for label in (LABEL, "4-000000000000", "5-000000000000"):
        PartialDownload(tmp_path, label, CONTENT, 10).close()
    (tmp_path / "note.txt").touch()
    remove_stale(tmp_path, keep=LABEL)
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"{LABEL}.journal", f"{LABEL}.part", "note.txt"]
    remove_stale(tmp_path / "missing")
