"""The numbers of a run: one row per RL step in `metrics.csv`, and the same as TensorBoard events.

A metric is named `role/metric`. Names under `wall/` may differ between two runs of one seed; everything else in the
file is identical, byte for byte, which is why wall-clock columns come last and numbers are written with `repr`.
"""

import logging
import math
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Self

from embodied.errors import CorruptFile
from embodied.files import disk_errors, read_bytes, write_bytes
from embodied.monitor.events import EventLog

log = logging.getLogger(__name__)

FILE = "metrics.csv"
STEP = "step"
WALL = "wall/"
SIZE_LIMIT = 2**30

_NAME = re.compile(r"[a-z0-9_]+(/[A-Za-z0-9_.\-]+)+")
_FIX = "restore it from a copy, or move it away and resume"


def format_number(value: float) -> str:
    """The shortest text that reads back as the same number; integers and booleans without a point."""
    if isinstance(value, bool):
        return str(int(value))
    number = float(value)
    if isinstance(value, int) or (math.isfinite(number) and number.is_integer() and abs(number) < 2**53):
        return str(int(value))
    return repr(number)


def _order(names: Iterable[str]) -> list[str]:
    """Columns as given, wall-clock ones last, so that they never move the others."""
    names = list(dict.fromkeys(names))
    return [n for n in names if not n.startswith(WALL)] + [n for n in names if n.startswith(WALL)]


def _parse(path: Path) -> tuple[list[str], list[list[str]], bool]:
    """Header, cells and whether the last line was torn (no newline at its end; it is left out)."""
    text = read_bytes(path, SIZE_LIMIT, _FIX).decode(errors="replace")
    *lines, rest = text.split("\n")
    if not lines:
        return [], [], bool(rest)
    header = lines[0].split(",")
    if header[0] != STEP:
        raise CorruptFile("the first column is not `step`", f"{path}, line 1", _FIX)
    rows = [line.split(",") for line in lines[1:]]
    for number, cells in enumerate(rows, start=2):
        if len(cells) != len(header):
            raise CorruptFile(f"{len(cells)} cells under {len(header)} columns", f"{path}, line {number}", _FIX)
    return header, rows, bool(rest)


def read_metrics(path: Path) -> dict[str, list[float]]:
    """Every column of a metrics file, `step` included; NaN where a row has no value. A torn last line is left out.

    Raises:
        CorruptFile: It is missing, a line has too many or too few cells, or a cell is no number.
    """
    header, rows, _ = _parse(path)
    try:
        return {name: [float(row[i]) if row[i] else math.nan for row in rows] for i, name in enumerate(header)}
    except ValueError as error:
        raise CorruptFile(str(error), str(path), _FIX) from None


class MetricsWriter:
    """Appends rows to `<folder>/metrics.csv`, and events to `<folder>/tensorboard/` where tensorboard is installed.

    An existing file is continued. The first row's names are the header; a name that comes later widens the file, which
    is rewritten whole or not at all.

    Args:
        folder: The run folder; it exists.

    Attributes:
        last: Step of the last row; -inf before the first.

    Raises:
        CorruptFile: The folder holds a metrics file that is no such file.
        InfrastructureError: The disk is full or read-only.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / FILE
        self._header: list[str] = []
        self.last = -math.inf
        if self.path.exists():
            self._header, rows, torn = _parse(self.path)
            if torn and not self._header:
                log.warning("%s was cut within its header: the rows before are lost, and it begins anew", self.path)
            if torn:
                self._rewrite(self._header, rows)
            read_metrics(self.path)  # better told now than by the plot at the end of the run
            if rows:
                self.last = self._step(rows[-1])
        with disk_errors(self.path):
            self._file = self.path.open("a", encoding="utf-8")
        self._events = EventLog.open(folder / "tensorboard", after=self.last)

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Add one row; it is with the operating system when this returns.

        Args:
            step: RL step, above that of the row before.
            values: `role/metric` to number.

        Raises:
            ValueError: The step does not grow, or a name is not of the form `role/metric`.
        """
        if step <= self.last:
            raise ValueError(f"metrics of step {step} after those of step {self.last}")
        for name in values:
            if not _NAME.fullmatch(name):
                raise ValueError(f"metric {name!r} is not named role/metric")
        if not self._header or any(name not in self._header for name in values):
            self._widen(values)
        row = {STEP: step, **values}
        line = ",".join(format_number(row[name]) if name in row else "" for name in self._header)
        with disk_errors(self.path):
            self._file.write(line + "\n")
            self._file.flush()
        self.last = step
        if self._events:
            self._events.write(step, values)

    def truncate_after(self, step: int) -> None:
        """Drop the rows later than `step`: a resumed run makes them again."""
        self._file.close()
        self._header, rows, _ = _parse(self.path)
        kept = [row for row in rows if self._step(row) <= step]
        if len(kept) < len(rows):
            self._rewrite(self._header, kept)
        self.last = self._step(kept[-1]) if kept else -math.inf
        self._file = self.path.open("a", encoding="utf-8")
        if self._events:
            self._events.forget_after(step)

    def close(self) -> None:
        try:
            with disk_errors(self.path):
                self._file.close()
        finally:
            if self._events:
                self._events.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _step(self, row: list[str]) -> int:
        try:
            return int(row[0])
        except ValueError:
            raise CorruptFile(f"step {row[0]!r} is no integer", str(self.path), _FIX) from None

    def _widen(self, names: Iterable[str]) -> None:
        self._file.close()
        old, rows, _ = _parse(self.path)
        new = [STEP, *_order([*old[1:], *names])]
        places = [old.index(name) if name in old else None for name in new]
        self._rewrite(new, [[row[i] if i is not None else "" for i in places] for row in rows])
        self._file = self.path.open("a", encoding="utf-8")

    def _rewrite(self, header: list[str], rows: list[list[str]]) -> None:
        lines = [header, *rows] if header else []
        write_bytes(self.path, "".join(",".join(cells) + "\n" for cells in lines).encode())
        self._header = header
