import io
import math

import pytest

from embodied.monitor.progress import PLAIN_PERIOD_S, SHARE, Progress, duration


class Clock:
    """Seconds that pass when told to, and a little with every drawing."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Screen(io.StringIO):
    """A stream that says it is a terminal and whose every write takes time."""

    def __init__(self, clock: Clock, write_s: float = 0.0, terminal: bool = True) -> None:
        super().__init__()
        self.clock, self.write_s, self.terminal = clock, write_s, terminal
        self.drawings = 0

    def isatty(self) -> bool:
        return self.terminal

    def write(self, text: str) -> int:
        self.clock.now += self.write_s
        self.drawings += 1
        return super().write(text)


@pytest.fixture(autouse=True)
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "100")
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)


def test_plain_lines_every_few_seconds() -> None:
    clock = Clock()
    stream = io.StringIO()
    with Progress("reach", total_steps=10_000, stream=stream, clock=clock) as progress:
        for i in range(1, 101):
            clock.now = i * 0.2
            progress.update("rollout", env_steps=i * 50, version=i, success=i / 200)
    lines = stream.getvalue().splitlines()
    assert len(lines) == pytest.approx(20 / PLAIN_PERIOD_S, abs=1)
    assert lines[-1] == "reach  rollout  success 38 %  250 steps/s  v76  0:15  0:25 left"
    assert "\x1b" not in stream.getvalue()


@pytest.mark.parametrize("write_s", [0.0001, 0.05])
def test_drawing_takes_at_most_its_share(write_s: float) -> None:
    clock = Clock()
    screen = Screen(clock, write_s)
    progress = Progress("reach", stream=screen, clock=clock)
    start, drawn = clock.now, 0.0
    while clock.now - start < 120:
        clock.now += 0.02
        before = clock.now
        progress.update("rollout", env_steps=1)
        drawn += clock.now - before
    assert screen.drawings > 10
    assert drawn / (clock.now - start) <= 1.5 * SHARE
    progress.close()


def test_the_live_line_shows_everything() -> None:
    clock = Clock()
    screen = Screen(clock)
    with Progress("lift_cube", limit_s=60, stream=screen, clock=clock) as progress:
        progress.update(env_steps=0)
        clock.now = 10.0
        progress.update("learning", env_steps=20_000, version=7, success=0.5)
        progress.say("evaluation: 50 %")
    text = screen.getvalue()
    for part in (
        "lift_cube",
        "learning",
        "success 50 %",
        "2,000 steps/s",
        "v7",
        "0:10",
        "0:50 left",
        "evaluation: 50 %",
    ):
        assert part in text


def test_steps_of_earlier_attempts_are_no_speed() -> None:
    clock = Clock()
    progress = Progress("reach", total_steps=200_000, stream=io.StringIO(), clock=clock)
    progress.update(env_steps=100_000)
    assert math.isnan(progress.steps_per_s)
    clock.now = 10.0
    progress.update(env_steps=110_000)
    assert progress.steps_per_s == 1000
    assert progress.left_s(clock.now) == 90


def test_nothing_is_known_at_the_start() -> None:
    progress = Progress("reach", stream=io.StringIO(), clock=Clock())
    assert progress.line() == "reach  starting  success -  - steps/s  v0  0:00"
    assert progress.left_s(0.0) == math.inf


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0:00"), (59.6, "1:00"), (3723, "1:02:03"), (math.inf, "-"), (-3, "0:00")]
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize("terminal", [False, True])
@pytest.mark.parametrize("error", [BrokenPipeError(), OSError(5, "Input/output error")])
def test_progress_that_cannot_be_written_is_dropped(error: OSError, terminal: bool) -> None:
    class Gone(Screen):
        def write(self, text: str) -> int:
            raise error

    with Progress("reach", stream=Gone(Clock(), terminal=terminal)) as progress:
        progress.update(phase="training", env_steps=100)
        progress.say("resuming")
