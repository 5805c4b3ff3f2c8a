"""docs/episode-format.md names what is in a file, no more and no less."""

import re
from pathlib import Path

import h5py
import msgpack
import numpy as np
import pytest

from embodied.buffer.container import read_index
from embodied.buffer.layout import DTYPES, FORMAT
from embodied.buffer.store import EpisodeStore
from tests.buffer.samples import make_episode

TEXT = (Path(__file__).parents[2] / "docs" / "episode-format.md").read_text()


def table(heading: str) -> dict[str, list[str]]:
    """Name in the first column, without its backquotes, to the other columns."""
    part = TEXT.split(f"## {heading}\n")[1].split("\n## ")[0]
    rows = [line.strip("|").split("|") for line in part.splitlines() if line.startswith("| `")]
    return {row[0].strip(" `"): [cell.strip() for cell in row[1:]] for row in rows}


@pytest.fixture
def file(tmp_path: Path) -> h5py.File:
    store = EpisodeStore(tmp_path, keep=["all"])
    store.add(make_episode(0, "a", simulated=True))
    [path] = store.seal()
    with h5py.File(path) as opened:
        yield opened


def test_datasets(file: h5py.File) -> None:
    found = set()

    def visit(name: str, item: object) -> None:
        if isinstance(item, h5py.Dataset):
            name = re.sub(r"drawn/.*", "drawn/<name>", re.sub(r"obs/.*", "obs/<stream>", f"/{name}"))
            found.add(name.replace("/a/", "/<id>/").replace("/robot/", "/<agent>/"))

    file.visititems(visit)
    assert found == set(table("Datasets"))
    assert file.attrs["format"] == FORMAT and f"`{FORMAT}`" in TEXT


def test_attributes(file: h5py.File) -> None:
    attributes = table("Attributes of `/episodes/<id>`")
    assert set(file["episodes/a"].attrs) == set(attributes)
    for name, (kind, _) in attributes.items():
        value = file["episodes/a"].attrs[name]
        assert isinstance(value, str) == kind.endswith("text") and (kind != "int64" or value.dtype == "int64")


@pytest.mark.parametrize("name", ["steps", "decisions"])
def test_fields(file: h5py.File, name: str) -> None:
    fields = table(f"Fields of `{name}`")
    dtype = file[f"episodes/a/robot/{name}"].dtype
    assert list(dtype.names) == list(fields)
    for field, (kind, _) in fields.items():
        assert dtype[field].base == np.dtype(DTYPES[field]) == kind.split()[-1]
        assert len(dtype[field].shape) == len(re.findall(r"[KDU]", kind))


def test_user_block(file: h5py.File) -> None:
    data = Path(file.filename).read_bytes()
    assert data.startswith(b"EMB-EP1\n") and "`EMB-EP1\\n`" in TEXT
    block, env, index = (int.from_bytes(data[i : i + 8], "little") for i in (8, 16, 24))
    assert (block + env, file.userblock_size) == (len(data), block)
    assert data[64 : 64 + index] == read_index(Path(file.filename))
    [row] = msgpack.unpackb(data[64 : 64 + index])
    names = re.search(r"per episode `\[(.*?)\]`", TEXT)
    assert names and len(row) == len(names[1].split(", "))
