"""The front door: whatever goes wrong is one line and an exit status."""

import errno
import os
import signal
import sys
from collections.abc import Iterator

import pytest

from embodied.cli import main
from embodied.errors import ConfigError, InfrastructureError


@pytest.fixture(autouse=True)
def signals(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(main, "end", sys.exit)
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize(
    ("error", "status", "said"),
    [
        (ConfigError("no", "x", "do y"), 2, "no (x): do y"),
        (InfrastructureError("no", "x", "do y"), 3, "no (x): do y"),
        (ModuleNotFoundError("No module named 'torch'", name="torch"), 2, "pip install -e '.[train]' in the clone"),
        (ModuleNotFoundError("No module named 'peft.x'", name="peft.x"), 2, "pip install -e '.[vla]' in the clone"),
        (OSError(errno.ENOSPC, "full"), 3, "No space left on device (output)"),
        (PermissionError(errno.EACCES, "no", "/x"), 3, "Permission denied (/x)"),
        (MemoryError(), 3, "no memory left"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"), 3, "no memory left"),
        (KeyError("a\nb"), 3, "internal error: KeyError"),
        (KeyboardInterrupt(), 130, "interrupted"),
        (KeyboardInterrupt("`embodied train resume=a` goes on"), 130, "interrupted; `embodied train resume=a` goes on"),
    ],
)
def test_an_error_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: BaseException, status: int, said: str
) -> None:
    def fail(arguments: object) -> int:
        raise error

    monkeypatch.setattr(main, "run", fail)
    monkeypatch.setattr(sys, "argv", ["embodied", "train"])
    with pytest.raises(SystemExit) as ended:
        main.entry()
    printed = capsys.readouterr().err
    assert ended.value.code == status
    assert printed.count("\n") == 1 and printed.startswith("embodied: ") and said in printed


def test_debug_shows_the_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["embodied", "--debug", "trian"])
    with pytest.raises(ConfigError):
        main.entry()


def test_a_closed_standard_output_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(main, "run", lambda arguments: 0)
    monkeypatch.setattr(sys, "stdout", None)
    with pytest.raises(SystemExit) as ended:
        main.entry()
    assert ended.value.code == 0


def test_a_finished_command_succeeds_though_the_reader_of_its_pipe_left(monkeypatch: pytest.MonkeyPatch) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    monkeypatch.setattr(main, "run", lambda arguments: print("done") or 0)
    with os.fdopen(writing, "w") as stdout:
        monkeypatch.setattr(sys, "stdout", stdout)
        with pytest.raises(SystemExit) as ended:
            main.entry()
    assert ended.value.code == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_to_end_interrupts(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], number: signal.Signals
) -> None:
    monkeypatch.setattr(main, "run", lambda arguments: os.kill(os.getpid(), number))
    before = signal.signal(number, signal.SIG_DFL)  # `nohup` has hangups ignored
    with pytest.raises(SystemExit) as ended:
        main.entry()
    signal.signal(number, before)
    assert ended.value.code == 130 and capsys.readouterr().err == "embodied: interrupted\n"


def test_a_hangup_that_is_ignored_stays_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(main, "run", lambda arguments: os.kill(os.getpid(), signal.SIGHUP) or 0)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with pytest.raises(SystemExit) as ended:
        main.entry()
    assert ended.value.code == 0
