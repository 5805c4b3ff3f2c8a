import math
import string
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from embodied.errors import CorruptFile
from embodied.monitor.metrics import FILE, MetricsWriter, format_number, read_metrics

names = st.builds(
    "/".join, st.tuples(st.sampled_from(["rollout", "learner", "wall"]), st.text(string.ascii_lowercase, min_size=1))
)
numbers = st.floats(allow_nan=False) | st.integers(-(2**60), 2**60) | st.booleans()
tables = st.lists(st.dictionaries(names, numbers, max_size=4), max_size=6)


def _fill(folder: Path, rows: list[dict[str, float]], first: int = 0) -> Path:
    folder.mkdir(exist_ok=True)
    with MetricsWriter(folder) as writer:
        for step, row in enumerate(rows, start=first):
            writer.write(step, row)
    return folder / FILE


@pytest.fixture(autouse=True)
def no_events(monkeypatch: pytest.MonkeyPatch) -> None:
    """Event files have their own tests; here they only cost time."""
    monkeypatch.setattr("embodied.monitor.metrics.EventLog.open", lambda *_, **__: None)


@given(tables)
def test_what_was_written_reads_back(tmp_path_factory: pytest.TempPathFactory, rows: list[dict[str, float]]) -> None:
    columns = read_metrics(_fill(tmp_path_factory.mktemp("run"), rows))
    if not rows:
        assert columns == {}
        return
    assert columns.pop("step") == list(range(len(rows)))
    assert set(columns) == {name for row in rows for name in row}
    for name, column in columns.items():
        for row, value in zip(rows, column, strict=True):
            assert value == float(row[name]) if name in row else math.isnan(value)


@given(tables)
def test_wall_columns_come_last(tmp_path_factory: pytest.TempPathFactory, rows: list[dict[str, float]]) -> None:
    is_wall = [name.startswith("wall/") for name in read_metrics(_fill(tmp_path_factory.mktemp("run"), rows))]
    assert is_wall == sorted(is_wall)


def test_same_numbers_same_bytes(tmp_path: Path) -> None:
    rows = [{"learner/loss": 0.1 + 0.2, "wall/step_s": 1.0}, {"learner/loss": 1e-30, "learner/kl": 3.0}]
    first = _fill(tmp_path / "a", rows)
    second = _fill(tmp_path / "b", [{k: v + 1 if k.startswith("wall/") else v for k, v in row.items()} for row in rows])
    assert first.read_text() == "step,learner/loss,learner/kl,wall/step_s\n0,0.30000000000000004,,1\n1,1e-30,3,\n"
    lines = [path.read_text().splitlines() for path in (first, second)]
    assert [line.rsplit(",", 1)[0] for line in lines[0]] == [line.rsplit(",", 1)[0] for line in lines[1]]


def test_a_late_column_widens_the_file(tmp_path: Path) -> None:
    with MetricsWriter(tmp_path) as writer:
        writer.write(0, {"a/x": 1})
        writer.write(1, {"a/x": 2, "a/y": 5})
        assert not list(tmp_path.glob(".tmp-*"))
        writer.write(2, {"a/y": 6})
    columns = read_metrics(tmp_path / FILE)
    assert columns["a/x"][:2] == [1, 2] and math.isnan(columns["a/x"][2])
    assert math.isnan(columns["a/y"][0]) and columns["a/y"][1:] == [5, 6]


def test_a_row_is_there_at_once(tmp_path: Path) -> None:
    with MetricsWriter(tmp_path) as writer:
        writer.write(3, {"a/x": 1.5})
        assert read_metrics(tmp_path / FILE) == {"step": [3], "a/x": [1.5]}


def test_resume_equals_a_run_in_one_go(tmp_path: Path) -> None:
    rows = [{"a/x": 0.1 * i, "wall/s": i} for i in range(8)]
    whole = _fill(tmp_path / "whole", rows)
    torn = _fill(tmp_path / "torn", rows[:6])
    with torn.open("a") as file:
        file.write("6,0.6")
    with MetricsWriter(tmp_path / "torn") as writer:
        writer.truncate_after(3)
        for step in range(4, 8):
            writer.write(step, rows[step])
    assert torn.read_bytes() == whole.read_bytes()


@given(st.integers(0, 200))
def test_a_file_cut_anywhere_goes_on(tmp_path_factory: pytest.TempPathFactory, cut: int) -> None:
    path = _fill(tmp_path_factory.mktemp("run"), [{"a/x": i, "b/y": i / 7} for i in range(5)])
    path.write_bytes(path.read_bytes()[:cut])
    with MetricsWriter(path.parent) as writer:
        writer.truncate_after(1)
        writer.write(2, {"a/x": 9, "b/y": 9})
    columns = read_metrics(path)
    assert columns["step"] == sorted(columns["step"]) and columns["step"][-1] == 2
    assert columns["a/x"][-1] == 9


def test_a_file_cut_within_its_header_begins_anew_and_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    _fill(tmp_path, [{"a/x": 1}, {"a/x": 2}])
    (tmp_path / FILE).write_text("step,a")
    with MetricsWriter(tmp_path) as writer:
        writer.write(3, {"a/x": 7})
    assert read_metrics(tmp_path / FILE) == {"step": [3], "a/x": [7]}
    assert "cut within its header" in caplog.text


def test_truncating_everything_leaves_the_header(tmp_path: Path) -> None:
    _fill(tmp_path, [{"a/x": 1}, {"a/x": 2}])
    with MetricsWriter(tmp_path) as writer:
        writer.truncate_after(-1)
        writer.write(0, {"a/x": 7})
    assert read_metrics(tmp_path / FILE) == {"step": [0], "a/x": [7]}


@pytest.mark.parametrize("step", [1, 0, -1])
def test_steps_grow(tmp_path: Path, step: int) -> None:
    _fill(tmp_path, [{"a/x": 1}, {"a/x": 2}])
    with MetricsWriter(tmp_path) as writer, pytest.raises(ValueError, match="after those of step 1"):
        writer.write(step, {"a/x": 1})


@pytest.mark.parametrize("name", ["loss", "a/x,y", "a/x\n", "A/x", "/x", "a/"])
def test_names_are_role_and_metric(tmp_path: Path, name: str) -> None:
    with MetricsWriter(tmp_path) as writer, pytest.raises(ValueError, match="not named role/metric"):
        writer.write(0, {name: 1})


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("time,a/x\n1,2\n", "first column is not `step`"),
        ("step,a/x\n1,2\n2\n", "line 3"),
        ("step,a/x\n1,2\n2,3,4\n5,6\n", "line 3"),
        ("step,a/x\n1,two\n", "two"),
    ],
)
def test_a_corrupt_file_is_named(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / FILE).write_text(text)
    with pytest.raises(CorruptFile, match=says):
        read_metrics(tmp_path / FILE)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(CorruptFile, match=r"metrics\.csv"):
        read_metrics(tmp_path / FILE)


@pytest.mark.parametrize(
    ("value", "text"),
    [(1.0, "1"), (1, "1"), (True, "1"), (0.1, "0.1"), (1e300, "1e+300"), (-0.5, "-0.5"), (2**61 + 1, str(2**61 + 1))],
)
def test_numbers_are_short_and_exact(value: float, text: str) -> None:
    assert format_number(value) == text


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_numbers_that_are_not_finite_survive(value: float) -> None:
    assert repr(float(format_number(value))) == repr(value)
