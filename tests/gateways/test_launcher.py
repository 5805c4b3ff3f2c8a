"""GatewayLauncher with a fake clock and real processes."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from embodied.errors import ConfigError, InfrastructureError
from embodied.gateways.launcher import STOP_REQUESTED, Announce, GatewayLauncher
from embodied.serving.health import judge
from embodied.supervisor import heartbeat


def steady(options: str, announce: Announce) -> int:
    announce(f"{options} listens as {os.getpid()}")
    signal.pause()
    return 0


def beating(options: str, announce: Announce) -> int:
    announce(options)
    while True:
        heartbeat()
        time.sleep(0.02)


def stubborn(options: str, announce: Announce) -> int:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    announce(options)
    while True:
        time.sleep(1)


def asked(options: str, announce: Announce) -> int:
    announce(options)
    return STOP_REQUESTED


def mistaken(options: str, announce: Announce) -> int:
    raise ConfigError(f"unknown {options}", "gateway", "correct it")


def unlucky(options: str, announce: Announce) -> int:
    raise InfrastructureError(f"no {options}", "gateway", "start it")


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def until(condition: Callable[[], object]) -> None:
    limit = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < limit
        time.sleep(0.01)


def test_they_start_say_so_and_end() -> None:
    said: list[str] = []
    gateways = GatewayLauncher({"one": (steady, "one"), "two": (steady, "two")}, said.append)
    gateways.start()
    lines = gateways.wait_ready(60)
    assert [line.split()[0] for line in lines] == ["one", "two"] and sorted(said) == sorted(lines)
    assert [entry["state"] for entry in gateways.status()] == ["listening", "listening"]
    gateways.close()
    assert [entry["state"] for entry in gateways.status()] == ["ended", "ended"]
    assert gateways.check() is False and len(said) == 2


def test_one_that_hangs_is_told_from_one_that_listens() -> None:
    gateways = GatewayLauncher({"toy": (beating, "one")}, lambda _: None)

    def state() -> str:
        gateways.check()
        return str(gateways.status()[0]["state"])

    gateways.start()
    try:
        gateways.wait_ready(60)
        until(lambda: gateways._gateways[0].beat < float("inf") or gateways.check())
        child = gateways._gateways[0].child
        assert child is not None and state() == "listening"
        os.kill(child.pid, signal.SIGSTOP)
        until(lambda: state() == "silent")
        code, line = judge({"ready": True, "gateways": gateways.status()}, 0.0, 10.0)
        assert code == 503 and line.startswith("gateway toy is hanging: it has answered nothing for ")
        os.kill(child.pid, signal.SIGCONT)
        until(lambda: state() == "listening")
        assert judge({"ready": True, "gateways": gateways.status()}, 0.0, 10.0) == (200, "ok")
    finally:
        gateways.close()


def test_one_that_does_not_end_is_ended() -> None:
    gateways = GatewayLauncher({"toy": (stubborn, "mule")}, lambda _: None)
    gateways.start()
    gateways.wait_ready(60)
    gateways.close(timeout_s=0.1)
    assert gateways.status()[0]["state"] == "ended"


def test_one_that_dies_starts_again_after_its_pause() -> None:
    clock, said = Clock(), []
    gateways = GatewayLauncher({"toy": (steady, "one")}, said.append, clock)
    gateways.start()
    (line,) = gateways.wait_ready(60)
    clock.now = 100.0
    os.kill(int(line.split()[-1]), signal.SIGKILL)
    until(lambda: gateways.check() or len(said) == 2)
    assert said[1] == "gateway toy died and restarts in 0.5 s: exit status -9"
    gateways.check()
    (state,) = gateways.status()
    assert state == {
        "name": "toy", "state": "died", "line": line, "deaths": 1, "error": "exit status -9", "retry_s": 0.5
    }  # fmt: skip
    clock.now = 100.5
    until(lambda: gateways.check() or len(said) == 3)
    assert said[2] != line and said[2].startswith("one listens as ")
    gateways.close()


@pytest.mark.slow
def test_pauses_grow_and_it_is_tried_again_for_ever_with_a_line_a_minute() -> None:
    clock, said = Clock(), []
    gateways = GatewayLauncher({"toy": (unlucky, "server")}, said.append, clock)
    gateways.start()
    for death in range(1, 6):
        until(lambda death=death: gateways.check() or len(said) == death)
        clock.now += 4.0
    assert [line.partition(" s:")[0].rpartition(" in ")[2] for line in said[:4]] == ["0.5", "1", "2", "4"]
    why = "no server (gateway): start it"
    assert said[4] == f"gateway toy died 5 times in a row and is tried every 30 s: {why}"
    with pytest.raises(InfrastructureError, match="does not listen"):
        gateways.wait_ready(1)
    for death, lines in ((6, 5), (7, 6), (8, 6)):
        clock.now += 30.0
        until(lambda death=death: gateways.check() or gateways.status()[0]["deaths"] == death)
        assert len(said) == lines and gateways.status()[0]["error"] == why
    gateways.close()


def test_a_mistake_in_its_settings_is_the_users() -> None:
    gateways = GatewayLauncher({"toy": (mistaken, "embodiment")}, lambda _: None)
    gateways.start()
    with pytest.raises(ConfigError, match=r"unknown embodiment \(gateway\): correct it"):
        gateways.wait_ready(60)
    gateways.close()


def test_a_client_may_ask_the_server_to_stop() -> None:
    said: list[str] = []
    gateways = GatewayLauncher({"toy": (asked, "bye")}, said.append)
    gateways.start()
    until(gateways.check)
    assert said == ["bye"] and gateways.check() is False
    gateways.close()


def test_it_ends_when_its_parent_is_killed(tmp_path: Path) -> None:
    script = tmp_path / "parent.py"
    script.write_text(
        f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
        "from test_launcher import GatewayLauncher, steady\n"
        "if __name__ == '__main__':\n"
        "    gateways = GatewayLauncher({'toy': (steady, 'one')}, lambda line: print(line, flush=True))\n"
        "    gateways.start(); gateways.wait_ready(60); sys.stdin.read()\n"
    )
    with subprocess.Popen([sys.executable, str(script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as p:
        assert p.stdout is not None
        child = int(p.stdout.readline().split()[-1])
        p.kill()
        until(lambda: not _lives(child))


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
