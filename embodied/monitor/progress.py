"""Progress of a run on the terminal: a live bar where there is one, a line every few seconds elsewhere."""

import math
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Self, TextIO, cast

from rich.console import Console, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

LIVE_PERIOD_S = 0.25
PLAIN_PERIOD_S = 5.0
SHARE = 0.01
RATE_WINDOW_S = 10.0


class _Dropping:
    """A text stream that drops what it cannot write: its reader left, its terminal is gone, or its disk is full."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        with suppress(OSError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with suppress(OSError):
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@dataclass
class Status:
    """The latest numbers of a run.

    Attributes:
        phase: What it is doing, such as `cloning`, `rollout`, `evaluation`.
        env_steps: Environment steps made, earlier attempts included.
        version: Policy version in use.
        success: Latest success rate in [0, 1]; NaN where none is known.
    """

    phase: str = "starting"
    env_steps: int = 0
    version: int = 0
    success: float = math.nan


def duration(seconds: float) -> str:
    """`1:02:03`, `2:03`; `-` where it is not finite."""
    if not math.isfinite(seconds):
        return "-"
    minutes, rest = divmod(max(0, round(seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


class Progress:
    """Shows a run's status; `update` may be called as often as one likes.

    A drawing is followed by a pause of at least a hundred times what it took, so that showing never costs more than
    `SHARE` of the time.

    Args:
        title: What is run, such as the task.
        total_steps: Environment steps after which the run ends; 0 where there is no such limit.
        limit_s: Seconds after which it ends.
        stream: Where to show it; by default the standard error output.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        title: str,
        total_steps: int = 0,
        limit_s: float = math.inf,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.status = Status()
        self._title, self._total, self._limit_s, self._clock = title, total_steps, limit_s, clock
        self._console = Console(file=cast(TextIO, _Dropping(stream or sys.stderr)), highlight=False)
        self._start = clock()
        self._next = self._start
        self._marks: list[tuple[float, int]] = []
        self._live: Live | None = None
        if self._console.is_terminal:
            self._live = Live(console=self._console, auto_refresh=False, transient=True)
            self._live.start()

    def update(
        self,
        phase: str | None = None,
        env_steps: int | None = None,
        version: int | None = None,
        success: float | None = None,
    ) -> None:
        """Take over what is given, and draw if it is time to."""
        status, now = self.status, self._clock()
        changed = {"phase": phase, "env_steps": env_steps, "version": version, "success": success}
        for name, value in changed.items():
            if value is not None:
                setattr(status, name, value)
        if env_steps is not None:
            self._mark(now, env_steps)
        if now < self._next:
            return
        if self._live:
            self._live.update(self._table(now), refresh=True)
        else:
            self._print(self.line())
        spent = self._clock() - now
        self._next = now + max(LIVE_PERIOD_S if self._live else PLAIN_PERIOD_S, spent / SHARE)

    def say(self, text: str) -> None:
        """Print a line that stays."""
        self._print(text)

    def close(self) -> None:
        if self._live:
            self._live.stop()
            self._live = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def steps_per_s(self) -> float:
        """Environment steps per second over about the last `RATE_WINDOW_S`; NaN before the second count of steps."""
        if not self._marks:
            return math.nan
        (t0, n0), (t1, n1) = self._marks[0], self._marks[-1]
        return (n1 - n0) / (t1 - t0) if t1 > t0 else math.nan

    def left_s(self, now: float) -> float:
        """Seconds until the run ends at the latest; infinite where no limit is known."""
        by_clock = self._limit_s - (now - self._start)
        rate = self.steps_per_s
        by_steps = (self._total - self.status.env_steps) / rate if self._total and rate > 0 else math.inf
        return max(0.0, min(by_clock, by_steps))

    def line(self) -> str:
        """The status as one plain line."""
        return "  ".join([self._title, *self._fields(self._clock())])

    def _mark(self, now: float, env_steps: int) -> None:
        self._marks.append((now, env_steps))
        while len(self._marks) > 2 and now - self._marks[1][0] >= RATE_WINDOW_S:
            self._marks.pop(0)

    def _fields(self, now: float) -> list[str]:
        status, rate, left = self.status, self.steps_per_s, self.left_s(now)
        fields = [status.phase]
        fields.append("success -" if math.isnan(status.success) else f"success {100 * status.success:.0f} %")
        fields.append("- steps/s" if math.isnan(rate) else f"{rate:,.0f} steps/s")
        fields.append(f"v{status.version}")
        fields.append(duration(now - self._start))
        if math.isfinite(left):
            fields.append(f"{duration(left)} left")
        return fields

    def _table(self, now: float) -> Table:
        fields = self._fields(now)
        room = self._console.width - len("  ".join([self._title, *fields])) - 3
        elapsed, left = now - self._start, self.left_s(now)
        cells: list[RenderableType] = [Text(self._title, style="bold")]
        if math.isfinite(left) and room >= 4:
            cells.append(ProgressBar(total=1.0, completed=elapsed / max(elapsed + left, 1e-9), width=min(20, room)))
        table = Table.grid(padding=(0, 2))
        for _ in [*cells, *fields]:
            table.add_column(no_wrap=True)
        table.add_row(*cells, *map(Text, fields))
        return table

    def _print(self, text: str) -> None:
        self._console.print(Text(text), soft_wrap=self._live is None)
