"""A follower serves what its registry wants, whichever process moves the pointers; what is damaged is left alone."""

import logging
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from embodied.errors import CorruptFile, EmbodiedError, InfrastructureError, MessageError, UserError
from embodied.serving.answer import Answer
from embodied.serving.loader import Loader
from embodied.serving.versioned_policy import VersionedPolicy
from embodied.weight_sync.registry_watcher import RegistryWatcher, audited
from embodied.weights import audit
from embodied.weights.registry import Registry
from embodied.wire.message import Message
from tests.serving.tiny import SPEC, TinyPolicy, observation, tensors


class Server:
    """A host, its loader and its follower, on a clock that a test winds."""

    def __init__(self, folder: Path) -> None:
        self.registry, self.now = Registry(folder), 0.0
        self.host = VersionedPolicy(TinyPolicy(), TinyPolicy())
        self.loader = Loader(self.host, audited(self.registry, "tiny", "ipc:///tmp/a"))
        self.watcher = RegistryWatcher(self.host, self.loader, self.registry, clock=lambda: self.now)
        self.answers: list[tuple[str, Mapping[str, Any]] | EmbodiedError] = []

    def tick(self) -> None:
        self.loader.tick()
        self.watcher.tick()

    def settle(self, until: Callable[[], bool]) -> None:
        """Tick, the clock going on, until something holds."""
        limit = time.monotonic() + 20
        while not until():
            assert time.monotonic() < limit, self.watcher.status()
            self.now += 0.11
            self.tick()
            time.sleep(0.001)

    def serves(self, number: int) -> bool:
        self.settle(lambda: self.host.version.number == number and not self.loader.busy)
        return True

    def set_active(self, id: int = 1, **body: Any) -> Mapping[str, Any] | EmbodiedError:
        count = len(self.answers)
        answer = Answer(
            "session", lambda kind, body, _: self.answers.append((kind, body)), lambda e: self.answers.append(e)
        )
        self.watcher.handle(Message("set_active", id, "session", "tiny", body=body), answer)
        self.settle(lambda: len(self.answers) > count)
        said = self.answers[-1]
        if isinstance(said, EmbodiedError):
            return said
        assert said[0] == "ack"
        return said[1]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    made = Server(tmp_path)
    yield made
    made.loader.close()


def publish(registry: Registry) -> int:
    number = registry.reserve("tiny")
    registry.publish("tiny", number, tensors(number), SPEC.to_dict())
    return number


def tag(server: Server) -> float:
    seen = observation(2)
    return float(server.host.act(seen, seen.rows.noise_keys(0), "mean").values[0])


def test_whatever_moves_the_pointers_is_followed(server: Server, tmp_path: Path) -> None:
    server.tick()
    assert server.watcher.status()["active"] == "" and server.host.manifest is None
    other = Registry(tmp_path)
    for number in (1, 2, 3):
        assert publish(other) == number and server.serves(number) and tag(server) == number
    other.pin("tiny", 2)
    assert server.serves(2)
    publish(other)
    other.unpin("tiny")
    assert server.serves(4)
    other.rollback("tiny", by="anna")
    assert server.serves(3) and tag(server) == 3
    held = server.watcher.status()["held"]
    assert held["by"] == "anna"
    other.resume("tiny")
    server.settle(lambda: server.watcher.status()["held"] is None)
    assert server.host.version.number == 3
    publish(other)
    assert server.serves(5)
    assert server.watcher.status() == {
        "active": server.host.version.label, "newest": server.host.version.label, "pinned": "", "held": None, "kept": 5,
        "trouble": "",
    }  # fmt: skip
    server.loader.close()
    lines = [line for line in other.audit() if line["event"] == "switch"]
    got = [(line["from"].partition("-")[0], line["version"].partition("-")[0], line["why"]) for line in lines]
    assert got == [("", "1", "follow"), ("1", "2", "follow"), ("2", "3", "follow"), ("3", "2", "pin"),
                   ("2", "4", "follow"), ("4", "3", "rollback"), ("3", "5", "follow")]  # fmt: skip
    assert {line["server"] for line in lines} == {"ipc:///tmp/a"}
    assert all({"time", "event", "policy", "version", "from", "why", "server", "pid"} <= line.keys() for line in lines)


def test_a_deleted_newest_version_is_left_and_that_is_logged(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    publish(server.registry)
    publish(server.registry)
    assert server.serves(2)
    shutil.rmtree(server.registry.path("tiny", server.registry.find("tiny", 2)))
    assert server.serves(1)
    assert re.search(r"version 1-\w+ instead of 2-\w+ \(2-\w+ is not kept any more\)", caplog.text)


def wait_for_look(server: Server) -> None:
    until = time.monotonic() + 10.0
    while server.watcher._background.busy and time.monotonic() < until:
        time.sleep(0.0005)
        server.watcher._background.tick()


def test_the_disk_is_looked_at_once_per_interval(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    publish(server.registry)
    assert server.serves(1)
    for _ in range(3):  # after a change it looks once more
        server.now += 1.0
        server.tick()
        wait_for_look(server)
    looks = []
    look = server.registry.revision
    monkeypatch.setattr(server.registry, "revision", lambda policy: (looks.append(policy), look(policy))[1])
    monkeypatch.setattr(server.registry, "active", lambda policy: pytest.fail("read though nothing changed"))
    for _ in range(50):
        server.now += 0.0211
        server.tick()
        wait_for_look(server)
    assert 9 <= len(looks) <= 11


def test_a_damaged_version_is_said_once_and_left_alone(
    server: Server, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.ERROR)
    publish(server.registry)
    publish(server.registry)
    assert server.serves(2)
    file = server.registry.path("tiny", server.registry.find("tiny", 1)) / "model.safetensors"
    whole = file.read_bytes()
    Registry(tmp_path).pin("tiny", 1)  # not followed yet: the clock stands
    file.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    reads = []
    read = Registry.read
    monkeypatch.setattr(Registry, "read", lambda self, *which: (reads.append(which), read(self, *which))[1])
    server.settle(lambda: bool(server.watcher.status()["trouble"]))
    for _ in range(30):
        server.now += 0.2
        server.tick()
    assert "model.safetensors" in server.watcher.status()["trouble"]
    assert server.host.version.number == 2 and tag(server) == 2
    assert len(reads) == 1 and len([r for r in caplog.records if "stays served" in r.message]) == 1
    assert publish(server.registry) == 3
    server.settle(lambda: server.watcher.status()["kept"] == 3)
    assert len(reads) == 1, "a publication moves no pointer"
    with pytest.raises(CorruptFile, match=r"model\.safetensors"):
        server.registry.pin("tiny", 1)
    file.write_bytes(whole)
    assert server.serves(1) and server.watcher.status()["trouble"] == "", "mended, and no pointer was moved"
    server.registry.unpin("tiny")
    assert server.serves(3)


def test_a_damaged_version_is_not_pointed_at(server: Server) -> None:
    for _ in range(3):
        publish(server.registry)
    assert server.serves(3)
    file = server.registry.path("tiny", server.registry.find("tiny", 2)) / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1])
    for id, pointer in enumerate(("pinned", "serving")):
        refused = server.set_active(id=id, pointer=pointer, version=2)
        assert isinstance(refused, CorruptFile) and str(file) in refused.where
    status = server.watcher.status()
    assert (status["pinned"], status["held"], server.host.version.number) == ("", None, 3)
    said = server.set_active(id=9, pointer="serving", version=None)
    assert not isinstance(said, EmbodiedError) and said["active"].startswith("1-"), "the damaged one is passed over"
    assert server.serves(1)


def test_pins_and_rollbacks_that_switch_are_said(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    for _ in range(3):
        publish(server.registry)
    assert server.serves(3)
    labels = {v.number: v.label for v in server.registry.versions("tiny")}
    server.registry.rollback("tiny")
    assert server.serves(2)
    server.registry.pin("tiny", 1)
    assert server.serves(1)
    server.registry.unpin("tiny")
    server.registry.resume("tiny")
    assert server.serves(2) and server.serves(publish(server.registry))
    said = [record.message for record in caplog.records]
    assert said[:2] == [
        f"policy tiny: version {labels[2]} instead of {labels[3]} (rollback)",
        f"policy tiny: version {labels[1]} instead of {labels[2]} (pin)",
    ]
    assert len(said) == 3 and labels[2] in said[2], "an unpin goes back to what was rolled back to"


def test_switches_a_disk_did_not_take_are_written_later_in_order(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    record, full = audit.append_line, True

    def append_line(path: Path, line: str, sync: bool = True) -> None:
        if full and '"switch"' in line:
            raise InfrastructureError("no disk space", str(path), "free space")
        record(path, line, sync)

    monkeypatch.setattr(audit, "append_line", append_line)
    for number in (1, 2, 3):
        assert publish(Registry(server.registry.folder)) == number and server.serves(number)
    server.settle(lambda: server.registry.has_pending)
    full = False
    server.settle(lambda: not server.registry.has_pending)
    server.registry.pin("tiny", 1)
    assert server.serves(1)
    server.loader.close()
    lines = [line for line in server.registry.audit() if line["event"] in ("switch", "pin")]
    assert [(line["event"], line["version"][0]) for line in lines] == [
        ("switch", "1"), ("switch", "2"), ("switch", "3"), ("pin", "1"), ("switch", "1")]  # fmt: skip
    assert [line["time"] for line in lines] == sorted(line["time"] for line in lines)


def test_damaged_pointers_leave_what_is_served(server: Server, tmp_path: Path) -> None:
    publish(server.registry)
    assert server.serves(1)
    (tmp_path / "active.json").write_text("{")
    server.settle(lambda: "active.json" in server.watcher.status()["trouble"])
    assert tag(server) == 1
    (tmp_path / "active.json").unlink()
    publish(server.registry)
    assert server.serves(2) and server.watcher.status()["trouble"] == ""


def test_a_point_moves_the_pointers_and_is_answered_when_they_have_moved(server: Server) -> None:
    for _ in range(4):
        publish(server.registry)
    assert server.serves(4)
    labels = {v.number: v.label for v in server.registry.versions("tiny")}
    said = server.set_active(pointer="pinned", version=2)
    assert said == {"active": labels[2], "pinned": labels[2], "held": None}
    assert server.serves(2)
    assert isinstance(server.set_active(pointer="serving", version=None), UserError)
    assert server.set_active(pointer="pinned", version=None) == {"active": labels[4], "pinned": "", "held": None}
    for _ in range(3):  # sent again after a lost connection
        said = server.set_active(id=7, pointer="serving", version=None, note="drops it", by="anna@lab")
        assert not isinstance(said, EmbodiedError) and said["active"] == labels[3]
        assert (said["held"]["by"], said["held"]["note"]) == ("anna@lab", "drops it")
    assert server.serves(3)
    said = server.set_active(id=8, pointer="serving", version=labels[1])
    assert not isinstance(said, EmbodiedError) and said["active"] == labels[1] and said["held"]["by"] == "session"
    assert server.set_active(pointer="held", version=None) == {"active": labels[1], "pinned": "", "held": None}
    assert server.serves(1)
    refused = server.set_active(pointer="pinned", version=99)
    assert isinstance(refused, EmbodiedError) and "versions kept: 1, 2, 3, 4" in refused.line()


@pytest.mark.parametrize(
    "body",
    [{}, {"pointer": "previous"}, {"pointer": ["pinned"]}, {"pointer": "pinned", "version": 1.5},
     {"pointer": "pinned", "version": -1}, {"pointer": "pinned", "version": True},
     {"pointer": "serving", "version": []},
     {"pointer": "held", "version": 1},
     {"pointer": "pinned", "version": 2**60}],
)  # fmt: skip
def test_a_malformed_set_active_is_refused(server: Server, body: dict[str, Any]) -> None:
    with pytest.raises(MessageError):
        server.set_active(**body)


def test_another_process_rolls_back_between_two_answers(server: Server, tmp_path: Path) -> None:
    publish(server.registry)
    publish(server.registry)
    assert server.serves(2)
    code = "import sys; from embodied.weights.registry import Registry; Registry(sys.argv[1]).rollback('tiny')"
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True, timeout=60)
    seen = observation(1)
    versions: list[int] = []

    def asked() -> bool:
        versions.append(int(server.host.act(seen, seen.rows.noise_keys(0), "mean").versions[0]))
        return versions[-1] == 1

    server.settle(asked)
    assert versions == sorted(versions, reverse=True) and np.isin(versions, (1, 2)).all()
