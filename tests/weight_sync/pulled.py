"""An edge's replicator with a link and a clock of its own, which answers from an `VersionServer` in the same thread."""

import heapq
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from embodied.errors import DeadlineExceeded, EmbodiedError
from embodied.serving.answer import Answer
from embodied.serving.versioned_policy import VersionedPolicy
from embodied.weight_sync.rate_limit import RateLimiter
from embodied.weight_sync.replicator import Replicator
from embodied.weight_sync.version_server import VersionServer
from embodied.weights.manifest import Version
from embodied.weights.registry import Registry
from embodied.wire.message import Message
from tests.serving.tiny import SPEC, TinyPolicy

BYTES = 2**20


def tensors(tag: int) -> dict[str, np.ndarray]:
    noise = np.random.default_rng(tag).normal(size=(512, 512)).astype(np.float32)
    return {"weight": noise, "tag": np.array(tag, np.float32)}


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


class FakeLink:
    """Answers from an `VersionServer`, one after the other as fast as `rate` bytes per second allow."""

    def __init__(self, versions: VersionServer, clock: Clock, rate: float = float("inf")) -> None:
        self.versions, self.clock, self.rate = versions, clock, rate
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
        if "offset" in body:
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
                answer = self._answer(message)
                if isinstance(answer, Message):
                    answer = self.change(answer)
                size = sum(array.nbytes for array in answer.arrays.values()) if isinstance(answer, Message) else 0
                self._free = max(self._free, self.clock.now) + size / self.rate
                heapq.heappush(self._answers, (self._free, message.id, answer))

    def _answer(self, message: Message) -> Message | EmbodiedError:
        self.versions.tick()
        if message.kind == "status":
            self.versions.record_edge("session", message.body)
            active = self.versions.active()  # a server's watcher says it
            body = {**self.versions.status(), "active": active.label if active else ""}
            return Message("status", message.id, body=body)
        found: list[Message | EmbodiedError] = []
        answer = Answer(
            "session",
            lambda kind, body, arrays: found.append(Message(kind, message.id, body=dict(body), arrays=dict(arrays))),
            found.append,
        )
        try:
            self.versions.handle(message, answer)
        except EmbodiedError as error:
            return error
        limit = time.monotonic() + 20
        while not found:
            assert time.monotonic() < limit
            time.sleep(0.0002)
            self.versions.tick()
        return found[0]


class Edge(NamedTuple):
    clock: Clock
    above: Registry
    here: Registry
    versions: VersionServer
    link: FakeLink
    replicator: Replicator

    def publish(self, tag: int) -> Version:
        return self.above.publish("tiny", self.above.reserve("tiny"), tensors(tag), SPEC.to_dict()).version

    def run(self, seconds: float) -> None:
        end = self.clock.now + seconds
        while self.clock.now < end:
            pause = self.replicator.step(min(0.2, end - self.clock.now))
            self.clock.now += pause

    def kept(self) -> list[int]:
        return [version.number for version in self.here.versions("tiny")]

    def active(self) -> int:
        found = self.here.active("tiny")
        return found.number if found else 0


def edge(folder: Path, rate: float = float("inf"), mbit: float = 0.0, **options: Any) -> Edge:
    clock = Clock()
    above, here = Registry(folder / "above"), Registry(folder / "here", **options)
    versions = VersionServer(VersionedPolicy(TinyPolicy()), registry=above, clock=clock)
    link = FakeLink(versions, clock, rate)
    return Edge(clock, above, here, versions, link, replicator(folder, link, here, clock, mbit))


def replicator(folder: Path, link: FakeLink, here: Registry, clock: Clock, mbit: float = 0.0) -> Replicator:
    return Replicator(
        link,
        here,
        folder / "here" / "incoming",
        "served",
        SPEC,
        {name: (array.shape, array.dtype.name) for name, array in tensors(0).items()},
        lambda: here.active("tiny") or Version(0, ""),
        name="arm-3",
        limiter=RateLimiter(mbit, clock),
        clock=clock,
    )


def left(folder: Path) -> list[str]:
    incoming = folder / "here" / "incoming"
    return sorted(path.name for path in incoming.iterdir()) if incoming.exists() else []
