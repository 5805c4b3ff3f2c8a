"""docs/episode-format.md names the contents of a file, no more and no less."""

import re
from pathlib import Path

import h5py
import msgpack
import pytest

from embodied.buffer.container import read_index
from embodied.buffer.layout import DECISION_FIELDS, FORMAT, FORMAT_1, JPEG_SHAPE, STEP_FIELDS, change_table, flat_name
from embodied.buffer.store import EpisodeStore
from embodied.data import Rule
from tests.buffer.samples import ACTION, make_episode

TEXT = (Path(__file__).parents[2] / "docs" / "episode-format.md").read_text()
FIELDS = STEP_FIELDS | DECISION_FIELDS
ID = "sim-0/train/1-0003-000012"


def table(heading: str) -> dict[str, list[str]]:
    """Name in the first column, without its backquotes, to the other columns."""
    part = TEXT.split(f"## {heading}\n")[1].split("\n## ")[0]
    rows = [line.strip("|").split("|") for line in part.splitlines() if line.startswith("| `")]
    return {row[0].strip(" `"): [cell.strip() for cell in row[1:]] for row in rows}


@pytest.fixture
def file(tmp_path: Path) -> h5py.File:
    store = EpisodeStore(tmp_path, keep=["all"])
    store.add(make_episode(0, ID, simulated=True, timed=True, changed=True))
    [path] = store.seal()
    with h5py.File(path) as opened:
        yield opened


def test_datasets(file: h5py.File) -> None:
    found = set()

    def visit(name: str, item: object) -> None:
        if isinstance(item, h5py.Dataset):
            name = re.sub(r"(drawn/).*", r"\1<name>", re.sub(r"(obs|times)/.*", r"\1/<stream>", f"/{name}"))
            found.add(name.replace(f"/{flat_name(ID)}/", "/<id>/").replace("/robot/", "/<agent>/"))

    file.visititems(visit)
    assert found == set(table("Datasets"))
    assert file.attrs["format"] == FORMAT and f"`{FORMAT}`" in TEXT and f"`{FORMAT_1}`" in TEXT
    assert f"`{flat_name(ID)}`" in TEXT and f"`{JPEG_SHAPE}`" in TEXT


@pytest.mark.parametrize("place", ["/episodes/<id>", "/episodes/<id>/<agent>"])
def test_attributes(file: h5py.File, place: str) -> None:
    attributes = table(f"Attributes of `{place}`")
    group = file[place.replace("<id>", flat_name(ID)).replace("<agent>", "robot")]
    assert set(group.attrs) == set(attributes)
    for name, (kind, _) in attributes.items():
        value = group.attrs[name]
        assert isinstance(value, str) == kind.endswith("text") and (kind.endswith("text") or value.dtype == kind)


@pytest.mark.parametrize("name", ["steps", "decisions", "changed_actions"])
def test_fields(file: h5py.File, name: str) -> None:
    fields = table(f"Fields of `{name}`")
    dtype = file[f"episodes/{flat_name(ID)}/robot/{name}"].dtype
    assert list(dtype.names) == list(fields)
    for field, (kind, _) in fields.items():
        known = change_table(ACTION)[field].base if name == "changed_actions" else FIELDS[field].dtype
        assert dtype[field].base == known == kind.split()[-1]
        assert len(dtype[field].shape) == len(re.findall(r"[KDU]", kind))


def test_rules() -> None:
    [text] = [row[1] for name, row in table("Fields of `changed_actions`").items() if name == "rule"]
    for rule in Rule:
        spaced = rule.name.lower().replace("_", "[ -]")
        assert re.search(rf"\b{rule.value} {spaced}", text), rule


def test_user_block(file: h5py.File) -> None:
    data = Path(file.filename).read_bytes()
    assert data.startswith(b"EMB-EP1\n") and "`EMB-EP1\\n`" in TEXT
    block, body, index = (int.from_bytes(data[i : i + 8], "little") for i in (8, 16, 24))
    assert (block + body, file.userblock_size) == (len(data), block)
    assert data[64 : 64 + index] == read_index(Path(file.filename))
    [row] = msgpack.unpackb(data[64 : 64 + index])
    names = re.search(r"per episode `\[(.*?)\]`, per track `\[(.*?)\]`", TEXT)
    assert names and len(row) == len(names[1].split(", "))
    assert [len(track) for track in row[-1]] == [len(names[2].split(", "))]
