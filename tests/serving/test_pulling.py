"""An edge that follows, with a link and a clock of its own: no sockets, no threads, nothing waits."""

import heapq
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from tiny import SPEC, TinyPolicy

from embodied.errors import Busy, DeadlineExceeded, EmbodiedError, WeightsRefused
from embodied.serving.answer import Answer
from embodied.serving.host import PolicyHost
from embodied.serving.offering import Offer
from embodied.serving.pace import FIRST, LEAST, MOST, Backoff, Pace, Stride
from embodied.serving.pulling import Puller
from embodied.weights.manifest import Manifest, Version
from embodied.weights.registry import Registry
from embodied.wire.message import Message

BYTES = 2**20


def tensors(tag: int) -> dict[str, np.ndarray]:
    noise = np.random.default_rng(tag).normal(size=(512, 512)).astype(np.float32)
    return {"weight": noise, "tag": np.array(tag, np.float32)}


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


class FakeLink:
    """Answers from an `Offer`, one after the other as fast as `rate` bytes per second allow."""

    def __init__(self, offer: Offer, clock: Clock, rate: float = float("inf")) -> None:
        self.offer, self.clock, self.rate = offer, clock, rate
        self.cut = False
        self.asked: Counter[tuple[str, int, int]] = Counter()
        self.sent: list[tuple[float, int]] = []
        self.change: Callable[[Message], Message | EmbodiedError] = lambda message: message
        self._id, self._free = 0, clock.now
        self._limits: dict[int, float] = {}
        self._answers: list[tuple[float, int, Message | EmbodiedError]] = []
        self._unsent: list[Message] = []

    def submit(
        self, kind: str, *, policy: str = "", body: Mapping[str, Any] | None = None, timeout_s: float | None = None
    ) -> int:
        assert policy == "served" and body is not None and timeout_s is not None
        self._id += 1
        self._limits[self._id] = self.clock.now + timeout_s
        if body.get("op") == "range":
            self.asked[body["version"], body["offset"], body["size"]] += 1
            self.sent.append((self.clock.now, body["size"]))
        self._unsent.append(Message(kind, self._id, body=dict(body)))
        self._send()
        return self._id

    def collect(self, ids: Iterable[int], timeout_s: float | None = None) -> Message:
        assert timeout_s is not None
        end = self.clock.now + timeout_s
        self._send()
        while self._answers and self._answers[0][0] <= end and not self.cut:
            at, id, answer = heapq.heappop(self._answers)
            if id not in self._limits:
                continue
            assert id in set(ids)
            self.clock.now = max(self.clock.now, at)
            del self._limits[id]
            if isinstance(answer, EmbodiedError):
                answer.request = id
                raise answer
            return answer
        late = min(self._limits, key=lambda id: self._limits[id])
        error = DeadlineExceeded("no answer", "upstream", "wait")
        if self._limits[late] <= end:
            self.clock.now = max(self.clock.now, self._limits.pop(late))
            error.request = late
        else:
            self.clock.now = end
        raise error

    def cancel(self, ids: Iterable[int]) -> None:
        for id in ids:
            self._limits.pop(id, None)

    def _send(self) -> None:
        """As a `Requester`, what was asked while the link was cut leaves when it is back, if it is still of use."""
        while self._unsent and not self.cut:
            message = self._unsent.pop(0)
            if message.id in self._limits:
                answer = self.change(self._answer(message))
                size = sum(array.nbytes for array in answer.arrays.values()) if isinstance(answer, Message) else 0
                self._free = max(self._free, self.clock.now) + size / self.rate
                heapq.heappush(self._answers, (self._free, message.id, answer))

    def _answer(self, message: Message) -> Message | EmbodiedError:
        self.offer.tick()
        if message.kind == "status":
            self.offer.heard("session", message.body)
            return Message("status", message.id, body=dict(self.offer.status()))
        found: list[Message] = []
        answer = Answer(
            "session",
            lambda kind, body, arrays: found.append(Message(kind, message.id, body=dict(body), arrays=dict(arrays))),
            lambda error: None,
        )
        try:
            self.offer.handle(message, answer)
        except EmbodiedError as error:
            return error
        return found[0]


class Edge(NamedTuple):
    clock: Clock
    above: Registry
    here: Registry
    offer: Offer
    link: FakeLink
    puller: Puller

    def publish(self, tag: int) -> Version:
        return self.above.publish("tiny", self.above.reserve("tiny"), tensors(tag), SPEC.to_dict()).version

    def run(self, seconds: float) -> None:
        end = self.clock.now + seconds
        while self.clock.now < end:
            pause = self.puller.step(min(0.2, end - self.clock.now))
            self.clock.now += pause

    def kept(self) -> list[int]:
        return [version.number for version in self.here.versions("tiny")]

    def wanted(self) -> int:
        found = self.here.wanted("tiny")
        return found.number if found else 0


def edge(folder: Path, rate: float = float("inf"), mbit: float = 0.0, **options: Any) -> Edge:
    clock = Clock()
    above, here = Registry(folder / "above"), Registry(folder / "here", **options)
    offer = Offer(PolicyHost(TinyPolicy()), registry=above, clock=clock)
    link = FakeLink(offer, clock, rate)
    return Edge(clock, above, here, offer, link, puller(folder, link, here, clock, mbit))


def puller(folder: Path, link: FakeLink, here: Registry, clock: Clock, mbit: float = 0.0) -> Puller:
    return Puller(
        link,
        here,
        folder / "here" / "incoming",
        "served",
        SPEC,
        {name: (array.shape, array.dtype.name) for name, array in tensors(0).items()},
        lambda: here.wanted("tiny") or Version(0, ""),
        name="arm-3",
        pace=Pace(mbit, clock),
        clock=clock,
    )


def left(folder: Path) -> list[str]:
    incoming = folder / "here" / "incoming"
    return sorted(path.name for path in incoming.iterdir()) if incoming.exists() else []


def test_follows_and_reports(tmp_path: Path) -> None:
    this = edge(tmp_path)
    this.run(2)
    assert (this.kept(), this.puller.status()["state"], this.puller.status()["wanted"]) == ([], "connected", "")
    first = this.publish(1)
    this.run(2)
    assert this.kept() == [1] and left(tmp_path) == []
    np.testing.assert_array_equal(this.here.read("tiny", 1)[1]["weight"], tensors(1)["weight"])
    assert this.offer.status()["followers"]["arm-3"]["serving"] == first.label
    for tag in range(2, 9):
        this.publish(tag)
    this.run(2)
    assert this.kept() == [1, 8] and this.wanted() == 8
    assert max(this.link.asked.values()) == 1 and this.puller.status()["error"] == ""


def test_rollbacks_and_pins_upstream_arrive_and_those_made_here_win(tmp_path: Path) -> None:
    this = edge(tmp_path, keep=2)
    for tag in range(1, 5):
        this.publish(tag)
        this.run(2)
    assert this.kept() == [3, 4]
    this.above.rollback("tiny", 3)
    this.run(2)
    assert this.wanted() == 3 and this.here.held("tiny") is None
    this.above.resume("tiny")
    this.publish(5)
    this.run(2)
    assert this.wanted() == 5
    this.above.pin("tiny", 1)
    this.run(2)
    assert this.wanted() == 1 and 1 in this.kept(), "fetched again, and kept though older than those kept"
    this.above.unpin("tiny")
    this.run(2)
    assert this.wanted() == 5
    this.here.pin("tiny", 1)
    this.publish(6)
    this.run(2)
    assert this.wanted() == 1 and 6 in this.kept()
    this.here.unpin("tiny")
    this.here.rollback("tiny", 5, by="somebody here")
    this.publish(7)
    this.run(2)
    assert this.wanted() == 5 and 7 not in this.kept()
    this.here.resume("tiny")
    this.run(2)
    assert this.wanted() == 7


def test_a_link_slower_than_upstream_publishes_still_brings_versions(tmp_path: Path) -> None:
    this = edge(tmp_path, rate=BYTES / 30)  # a version takes half a minute, and one is published every ten seconds
    for tag in range(1, 21):
        this.publish(tag)
        this.run(10)
    kept = [int(line["version"].split("-")[0]) for line in this.here.audit() if line["event"] == "adopt"]
    assert len(kept) >= 4 and kept == sorted(kept)
    assert this.wanted() >= 12
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
    assert this.puller.status()["pulling"]["version"] == third.label
    this.publish(4)
    this.run(35)
    assert this.kept()[:2] == [1, 3], "it overtook one, so it is not overtaken itself"
    this.run(60)
    assert this.wanted() == 4


def test_a_rollback_upstream_drops_what_is_being_fetched(tmp_path: Path) -> None:
    this = edge(tmp_path, rate=BYTES / 30)
    this.publish(1)
    this.run(40)
    this.publish(2)
    this.run(25)
    assert left(tmp_path) != []
    this.above.rollback("tiny", 1)
    this.run(4)
    assert left(tmp_path) == [] and this.kept() == [1] and "pulling" not in this.puller.status()


def test_a_cut_link_loses_nothing_that_arrived(tmp_path: Path) -> None:
    this = edge(tmp_path, rate=BYTES / 30)
    this.publish(1)
    this.run(15)
    this.link.cut = True
    this.run(300)
    status = this.puller.status()
    assert status["state"] == "cut" and status["silent_s"] > 200 and "no answer" in status["error"]
    here = status["pulling"]["bytes"]
    assert here > BYTES / 4
    before = Counter(this.link.asked)
    this.link.cut = False
    this.run(60)
    assert this.kept() == [1] and this.puller.status()["state"] == "connected"
    after = this.link.asked - before
    assert sum(size * count for (_, _, size), count in after.items()) <= BYTES + 4 - here


def test_a_killed_edge_goes_on_where_it_was(tmp_path: Path) -> None:
    this = edge(tmp_path, rate=BYTES / 30)
    this.publish(1)
    this.run(20)
    here = this.puller.status()["pulling"]["bytes"]
    link = FakeLink(this.offer, this.clock, BYTES / 30)
    again = this._replace(link=link, puller=puller(tmp_path, link, this.here, this.clock))
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
    assert this.puller.status()["error"] == ""


def test_a_version_damaged_upstream_is_given_up_and_the_next_one_taken(tmp_path: Path) -> None:
    this = edge(tmp_path)
    first = this.publish(1)
    path = this.above.path("tiny", first) / "model.safetensors"
    data = bytearray(path.read_bytes())
    data[-5] ^= 1
    path.write_bytes(data)
    this.run(300)
    assert this.kept() == [] and left(tmp_path) == []
    assert "other content than was published" in this.puller.status()["error"]
    assert sum(size * count for (_, _, size), count in this.link.asked.items()) == 3 * (BYTES + 4)
    this.publish(2)
    this.run(5)
    assert this.kept() == [2] and this.puller.status()["error"] == ""


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
    assert "restart this edge" in this.puller.status()["error"]
    this.publish(2)
    this.run(5)
    assert this.kept() == [2]


def test_a_number_that_names_another_content_here_is_refused_before_it_is_asked_for(tmp_path: Path) -> None:
    this = edge(tmp_path)
    this.publish(1)
    this.here.publish("tiny", this.here.reserve("tiny"), tensors(7), SPEC.to_dict())
    this.run(5)
    assert not this.link.asked and "give this edge another folder" in this.puller.status()["error"]
    this.publish(2)
    this.run(5)
    assert this.wanted() == 2


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
    assert not this.link.asked and "its signature does not fit" in this.puller.status()["error"]
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
    assert "no disk space for 1048580 bytes" in this.puller.status()["error"] and left(tmp_path) == []
    assert not this.link.asked
    pauses = np.diff(looks)
    assert 5 <= len(looks) <= 9 and pauses[-1] > 4 * pauses[0]
    monkeypatch.undo()
    this.run(70)
    assert this.kept() == [1] and this.puller.status()["error"] == ""


def test_a_disk_that_fills_up_meanwhile_frees_what_arrived(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from embodied.errors import InfrastructureError

    this = edge(tmp_path)

    def full(*_: object) -> None:
        raise InfrastructureError("no disk space", "here", "free some")

    monkeypatch.setattr(this.here, "adopt", full)
    this.publish(1)
    this.run(20)
    assert this.puller.status()["error"].startswith("no disk space") and left(tmp_path) == []
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
    assert this.here.wanted("tiny") == last
    assert this.puller.status()["error"] == ""


def test_ranges_grow_while_answers_are_fast() -> None:
    stride = Stride(0.0)
    for _ in range(9):
        stride.took(stride.size, 0.01)
    assert stride.size == MOST
    stride.took(stride.size, 9.0)
    assert stride.size == MOST // 2
    stride.least()
    assert stride.size == LEAST
    capped = Stride(1e9)
    for _ in range(9):
        capped.took(capped.size, 0.01)
    assert capped.size == 2**18


def test_pauses_double_up_to_a_minute() -> None:
    rest, now, pauses = Backoff(), 0.0, []
    for _ in range(9):
        rest.fail(now)
        pauses.append(rest.wait(now))
    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    rest.clear()
    assert rest.wait(now) == 0
