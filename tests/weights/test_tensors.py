"""Files of tensors: read whole, or refused in one line before they cost anything."""

import json
import os
from pathlib import Path

import numpy as np
import pytest

from embodied.errors import CorruptFile
from embodied.weights.tensors import header_limit, read_tensors, write_tensors

FIX = "give other weights"


def file_of(path: Path, header: dict[str, object], data: bytes = b"") -> Path:
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return path


def refusal(path: Path, limit: int = 1000) -> str:
    with pytest.raises(CorruptFile) as caught:
        read_tensors(path, limit, FIX)
    assert caught.value.where == str(path) and "\n" not in caught.value.line() and caught.value.fix
    return caught.value.line()


def test_what_is_written_is_read(tmp_path: Path) -> None:
    tensors = {"a.weight": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.array(2.5, np.float32)}
    write_tensors(tmp_path / "a", tensors)
    read = read_tensors(tmp_path / "a", 28, FIX)
    assert read.keys() == tensors.keys() and all(array.flags.writeable for array in read.values())
    for name, array in tensors.items():
        np.testing.assert_array_equal(read[name], array)


@pytest.mark.parametrize("kind", ["folder", "here", "pipe", "link to a pipe", "device", "absent", "zero byte"])
def test_what_is_no_file_is_refused_at_once(tmp_path: Path, kind: str) -> None:
    path, said = tmp_path / "weights", "is no regular file"
    if kind == "folder":
        path.mkdir()
    elif kind == "here":
        path = Path()
    elif "pipe" in kind:
        os.mkfifo(path)
    elif kind == "device":
        path = Path(os.devnull)
    elif kind == "zero byte":
        path, said = Path("a\0b"), "null byte"
    if kind == "link to a pipe":
        path.with_name("link").symlink_to(path)
        path = path.with_name("link")
    said = {"folder": "is a folder", "here": "is a folder", "absent": "No such file"}.get(kind, said)
    assert said in refusal(path)


def test_a_header_longer_than_tensors_need_is_refused_unread(tmp_path: Path) -> None:
    empty = {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}
    path = file_of(tmp_path / "many", {f"layer.{i}": empty for i in range(50_000)})
    size = path.stat().st_size - 8
    assert f"a header of {size} bytes" in refusal(path, limit=size)
    assert f"{size + 8} bytes where 1000" in refusal(path)
    assert header_limit(0) < size < header_limit(2048 * size)


def test_an_ordinary_large_network_fits() -> None:
    assert header_limit(0) > 150 * 10_000, "as many small tensors"


@pytest.mark.parametrize("kind", ["F8_E4M3", "F8_E5M2"])
def test_numbers_of_8_bits_are_named(tmp_path: Path, kind: str) -> None:
    path = file_of(tmp_path / "a", {"w": {"dtype": kind, "shape": [2], "data_offsets": [0, 2]}}, bytes(2))
    assert "holds float8 numbers, which are not float32" in refusal(path)
    assert "convert its tensors to float32" in refusal(path)


@pytest.mark.parametrize("data", [b"", b"abc", b"\xff" * 8, b"\xff" * 40, bytes(8), (5).to_bytes(8, "little") + b"{}"])
def test_what_is_no_safetensors_is_refused(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "a").write_bytes(data)
    assert "no whole safetensors file" in refusal(tmp_path / "a")
