"""An edge that follows, with a link and a clock of its own: no sockets, no threads, nothing waits."""

import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from embodied.errors import Busy, InfrastructureError, WeightsRefused
from embodied.weight_sync.rate_limit import FIRST
from embodied.weights.manifest import Manifest
from embodied.weights.registry import Registry
from embodied.wire.message import Message
from tests.serving.tiny import SPEC
from tests.weight_sync.pulled import BYTES, FakeLink, edge, left, replicator, tensors


def test_follows_and_reports(tmp_path: Path) -> None:
    this = edge(tmp_path)
    this.run(2)
    assert (this.kept(), this.replicator.status()["state"], this.replicator.status()["active"]) == ([], "connected", "")
    first = this.publish(1)
    this.run(2)
    assert this.kept() == [1] and left(tmp_path) == []
    np.testing.assert_array_equal(this.here.read("tiny", 1)[1]["weight"], tensors(1)["weight"])
    assert this.versions.status()["followers"]["arm-3"]["serving"] == first.label
    for tag in range(2, 9):
        this.publish(tag)
    this.run(2)
    assert this.kept() == [1, 8] and this.active() == 8
    assert max(this.link.asked.values()) == 1 and this.replicator.status()["error"] == ""


def test_rollbacks_and_pins_upstream_arrive_and_those_made_here_win(tmp_path: Path) -> None:
    this = edge(tmp_path, keep=2)
    for tag in range(1, 5):
        this.publish(tag)
        this.run(2)
    assert this.kept() == [3, 4]
    this.above.rollback("tiny", 3)
    this.run(2)
    assert this.active() == 3 and this.here.held("tiny") is None
    this.above.resume("tiny")
    this.publish(5)
    this.run(2)
    assert this.active() == 5
    this.above.pin("tiny", 1)
    this.run(2)
    assert this.active() == 1 and 1 in this.kept(), "fetched again, and kept though older than those kept"
    this.above.unpin("tiny")
    this.run(2)
    assert this.active() == 5
    this.here.pin("tiny", 1)
    this.publish(6)
    this.run(2)
    assert this.active() == 1 and 6 in this.kept()
    this.here.unpin("tiny")
    this.here.rollback("tiny", 5, by="somebody here")
    this.publish(7)
    this.run(2)
    assert this.active() == 5 and 7 not in this.kept()
    this.here.resume("tiny")
    this.run(2)
    assert this.active() == 7


def test_a_link_slower_than_upstream_publishes_still_brings_versions(tmp_path: Path) -> None:
    this = edge(tmp_path, rate=BYTES / 30)  # a version takes half a minute, and one is published every ten seconds
    for tag in range(1, 21):
        this.publish(tag)
        this.run(10)
    kept = [int(line["version"].split("-")[0]) for line in this.here.audit() if line["event"] == "adopt"]
    assert len(kept) >= 4 and kept == sorted(kept)
    assert this.active() >= 12
    asked = sum(size * count for (_, _, size), count in this.link.asked.items())
    assert asked <= 1.6 * BYTES * (len(kept) + 1)


def test_a_version_half_here_is_finished_and_one_less_than_half_is_dropped(tmp_path: Path) -> None:
    this = edge(tmp_path, rate=BYTES / 30)
    this.publish(1)
    this.run(20)
    this.publish(2)
    this.run(11)
    assert this.kept() == [1]
    this.run(5)
    third = this.publish(3)
    this.run(6)
    assert [name.partition("-")[0] for name in left(tmp_path)] == ["3", "3"]
    assert this.replicator.status()["pulling"]["version"] == third.label
    this.publish(4)
    this.run(35)
    assert this.kept()[:2] == [1, 3], "it overtook one, so it is not overtaken itself"
    this.run(60)
    assert this.active() == 4


def test_a_rollback_upstream_drops_what_is_being_fetched(tmp_path: Path) -> None:
    this = edge(tmp_path, rate=BYTES / 30)
    this.publish(1)
    this.run(40)
    this.publish(2)
    this.run(25)
    assert left(tmp_path) != []
    this.above.rollback("tiny", 1)
    this.run(4)
    assert left(tmp_path) == [] and this.kept() == [1] and "pulling" not in this.replicator.status()


def test_a_cut_link_loses_nothing_that_arrived(tmp_path: Path) -> None:
    this = edge(tmp_path, rate=BYTES / 30)
    this.publish(1)
    this.run(15)
    this.link.cut = True
    this.run(300)
    status = this.replicator.status()
    assert status["state"] == "cut" and status["silent_s"] > 200 and "no answer" in status["error"]
    here = status["pulling"]["bytes"]
    assert here > BYTES / 4
    before = Counter(this.link.asked)
    this.link.cut = False
    this.run(60)
    assert this.kept() == [1] and this.replicator.status()["state"] == "connected"
    after = this.link.asked - before
    assert sum(size * count for (_, _, size), count in after.items()) <= BYTES + 4 - here


def test_a_cut_link_is_said_once_and_so_is_its_return(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    this = edge(tmp_path)
    version = this.publish(1)
    this.run(20)
    assert caplog.messages == []
    for _ in range(2):
        caplog.clear()
        this.link.cut = True
        this.run(100)
        this.link.cut = False
        this.run(20)
        said = [line for line in caplog.messages if "the link to upstream" in line]
        assert said == [
            f"policy tiny: the link to upstream is cut; version {version.label} stays served",
            "policy tiny: the link to upstream is back",
        ]


@pytest.mark.parametrize("name", ["manifest.json", "model.safetensors"])
def test_a_damaged_version_is_fetched_again(tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture) -> None:
    this = edge(tmp_path)
    version = this.publish(1)
    this.run(5)
    file = this.here.path("tiny", version) / name
    file.write_bytes(file.read_bytes()[:-9])
    link = FakeLink(this.versions, this.clock)
    here = Registry(this.here.folder)
    again = this._replace(link=link, here=here, replicator=replicator(tmp_path, link, here, this.clock))
    again.run(5)
    np.testing.assert_array_equal(Registry(here.folder).read("tiny", 1)[1]["weight"], tensors(1)["weight"])
    assert [line["event"] for line in here.audit()] == ["adopt", "mend"] and left(tmp_path) == []
    assert len([line for line in caplog.messages if "fetched again" in line]) == 1
    assert again.replicator.status()["error"] == "" and again.active() == 1
    file.write_bytes(file.read_bytes()[:-9])
    again.run(5)
    assert here.audit()[-1]["event"] == "mend" and here.read("tiny", 1), "found while it runs, too"


def test_what_is_here_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    this = edge(tmp_path)
    reads = []
    read = Registry.read
    monkeypatch.setattr(this.here, "read", lambda *which: (reads.append(which), read(this.here, *which))[1])
    for tag in (1, 2):
        this.publish(tag)
        this.run(20)
    assert this.kept() == [1, 2] and reads == [], "what has just been verified is not read again"
    here = Registry(this.here.folder)
    monkeypatch.setattr(here, "read", lambda *which: (reads.append(which), read(here, *which))[1])
    this._replace(replicator=replicator(tmp_path, this.link, here, this.clock)).run(20)
    assert len(reads) == 1


def test_a_killed_edge_goes_on_where_it_was(tmp_path: Path) -> None:
    this = edge(tmp_path, rate=BYTES / 30)
    this.publish(1)
    this.run(20)
    here = this.replicator.status()["pulling"]["bytes"]
    link = FakeLink(this.versions, this.clock, BYTES / 30)
    again = this._replace(link=link, replicator=replicator(tmp_path, link, this.here, this.clock))
    again.run(20)
    assert again.kept() == [1]
    assert sum(size for _, _, size in link.asked) == BYTES + 4 - here
    assert left(tmp_path) == []


def test_damaged_ranges_are_asked_again(tmp_path: Path) -> None:
    this = edge(tmp_path)
    harm = iter([True, False, True, True])

    def change(message: Message) -> Message:
        if "data" in message.arrays and next(harm, False):
            message.arrays["data"] = message.arrays["data"].copy()
            message.arrays["data"][7] ^= 1
        return message

    this.link.change = change
    this.publish(1)
    this.run(30)
    assert this.kept() == [1] and sum(this.link.asked.values()) - len(this.link.asked) <= 3
    assert this.replicator.status()["error"] == ""


def test_a_version_damaged_upstream_is_given_up_and_the_next_one_taken(tmp_path: Path) -> None:
    this = edge(tmp_path)
    first = this.publish(1)
    path = this.above.path("tiny", first) / "model.safetensors"
    data = bytearray(path.read_bytes())
    data[-5] ^= 1
    path.write_bytes(data)
    this.run(300)
    assert this.kept() == [] and left(tmp_path) == []
    assert "other content than was published" in this.replicator.status()["error"]
    assert sum(size * count for (_, _, size), count in this.link.asked.items()) == 3 * (BYTES + 4)
    this.publish(2)
    this.run(5)
    assert this.kept() == [2] and this.replicator.status()["error"] == ""


@pytest.mark.parametrize("what", ["shape", "dtype", "missing", "extra", "spec"])
def test_a_version_that_does_not_fit_is_refused_before_it_is_asked_for(tmp_path: Path, what: str) -> None:
    this = edge(tmp_path)
    given, spec = tensors(1), SPEC.to_dict()
    match what:
        case "shape":
            given["weight"] = np.zeros((2**14, 2**14), np.uint8)[:, :1]
        case "dtype":
            given["tag"] = np.array(1, np.float64)
        case "missing":
            del given["tag"]
        case "extra":
            given["more"] = np.zeros(1)
        case "spec":
            spec["chunk"] = 9
    this.above.publish("tiny", this.above.reserve("tiny"), given, spec)
    this.run(5)
    assert not this.link.asked and this.kept() == [] and left(tmp_path) == []
    assert "restart this edge" in this.replicator.status()["error"]
    this.publish(2)
    this.run(5)
    assert this.kept() == [2]


def test_a_number_that_names_another_content_here_is_refused_before_it_is_asked_for(tmp_path: Path) -> None:
    this = edge(tmp_path)
    this.publish(1)
    this.here.publish("tiny", this.here.reserve("tiny"), tensors(7), SPEC.to_dict())
    this.run(5)
    assert not this.link.asked and "give this edge another folder" in this.replicator.status()["error"]
    this.publish(2)
    this.run(5)
    assert this.active() == 2


class Strict:
    def check(self, manifest: Manifest, signature: str) -> None:
        if signature != f"of {manifest.number}":
            raise WeightsRefused("its signature does not fit", f"version {manifest.label}", "sign it")


class Signer:
    def sign(self, manifest: Manifest) -> str:
        return f"of {manifest.number}"


def test_only_signed_versions_are_fetched_where_a_key_says_so(tmp_path: Path) -> None:
    this = edge(tmp_path, trusted=Strict())
    this.publish(1)
    this.run(5)
    assert not this.link.asked and "its signature does not fit" in this.replicator.status()["error"]
    this.above.signer = Signer()
    second = this.publish(2)
    this.run(5)
    assert this.kept() == [2] and this.here.signature("tiny", second.label) == "of 2"


def test_a_version_deleted_upstream_while_it_is_fetched_still_arrives(tmp_path: Path) -> None:
    this = edge(tmp_path, rate=BYTES / 30)
    first = this.publish(1)
    this.run(20)
    for tag in range(2, 9):
        this.publish(tag)
    assert first not in this.above.versions("tiny")
    this.run(15)
    assert this.kept() == [1]


def test_a_version_gone_upstream_after_a_cut_gives_way_to_the_newest(tmp_path: Path) -> None:
    this = edge(tmp_path, rate=BYTES / 30)
    this.publish(1)
    this.run(20)
    this.link.cut = True
    for tag in range(2, 9):
        this.publish(tag)
    this.run(120)
    this.link.cut = False
    this.run(50)
    assert this.kept() == [8] and left(tmp_path) == []


def test_a_full_disk_is_said_and_tried_again_ever_more_rarely(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    this = edge(tmp_path)
    looks = []

    def full(path: Path) -> Any:
        looks.append(this.clock.now)
        return shutil._ntuple_diskusage(2**40, 2**40, 1000)

    monkeypatch.setattr(shutil, "disk_usage", full)
    this.publish(1)
    this.run(200)
    assert "no disk space for 1048580 bytes" in this.replicator.status()["error"] and left(tmp_path) == []
    assert not this.link.asked
    pauses = np.diff(looks)
    assert 5 <= len(looks) <= 9 and pauses[-1] > 4 * pauses[0]
    monkeypatch.undo()
    this.run(70)
    assert this.kept() == [1] and this.replicator.status()["error"] == ""


def test_a_disk_that_fills_up_meanwhile_frees_what_arrived(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    this = edge(tmp_path)

    def full(*_: object) -> None:
        raise InfrastructureError("no disk space", "here", "free some")

    monkeypatch.setattr(this.here, "adopt", full)
    this.publish(1)
    this.run(20)
    assert this.replicator.status()["error"].startswith("no disk space") and left(tmp_path) == []
    monkeypatch.undo()
    this.run(40)
    assert this.kept() == [1]


def test_the_cap_is_kept(tmp_path: Path) -> None:
    this = edge(tmp_path, mbit=0.8)  # 100 kB/s
    this.publish(1)
    start = this.clock.now
    this.run(30)
    assert this.kept() == [1]
    total = 0
    for at, size in this.link.sent:
        total += size
        assert size <= FIRST and total <= 100_000 * (at - start + 0.25) + FIRST + 1


def test_a_busy_upstream_is_asked_again(tmp_path: Path) -> None:
    this = edge(tmp_path)
    busy = iter([True] * 4)
    this.link.change = lambda message: Busy("much to do", "upstream", "later") if next(busy, False) else message
    this.publish(1)
    this.run(30)
    assert this.kept() == [1]


def test_nonsense_from_upstream_harms_nothing(tmp_path: Path) -> None:
    this = edge(tmp_path)
    draw = np.random.default_rng(0)
    values: list[Any] = [None, 5, "x", [], {}, "9-zz", b"\0", {"policy": "tiny"}, -1, 2**80]

    def change(message: Message) -> Message:
        for name in list(message.body):
            if draw.random() < 0.3:
                message.body[name] = values[draw.integers(len(values))]
        if draw.random() < 0.3:
            message.arrays = {"data": np.zeros(draw.integers(100), np.uint8)}
        return message

    this.link.change = change
    for tag in range(1, 4):
        this.publish(tag)
        this.run(100)
    this.link.change = lambda message: message
    last = this.publish(5)
    this.run(70)
    assert this.here.active("tiny") == last
    assert this.replicator.status()["error"] == ""
