"""A push receiver under a fake clock, and senders that answer its fetches when they are told to."""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from embodied.errors import EmbodiedError
from embodied.serving.answer import Answer
from embodied.serving.loader import Loader
from embodied.serving.versioned_policy import VersionedPolicy
from embodied.weight_sync.push_receiver import PushReceiver
from embodied.weights.manifest import Manifest
from embodied.weights.transfer import Content, read_range
from embodied.wire.message import Message
from tests.serving.tiny import TinyPolicy, manifest, observation, tensors

RANGE = 16
RANGES = 7  # of 100 bytes


class Bench:
    """A receiver, its answers, and a clock."""

    def __init__(self, standby: bool = True, **options: Any) -> None:
        self.host = VersionedPolicy(TinyPolicy(), TinyPolicy() if standby else None)
        self.loader, self.now = Loader(self.host), 0.0
        self.receiver = PushReceiver(self.host, self.loader, range_bytes=RANGE, clock=lambda: self.now, **options)
        self.id = 0

    def offer(self, of: Manifest, session: str = "s", **more: Any) -> "Sender":
        """Send an offer; the sender answers no fetch until it is told to."""
        self.id += 1
        sender = Sender(self, of, session, self.id, more)
        sender.offer()
        return sender

    def push(self, tag: int, **more: Any) -> Any:
        """The body of the answer to an offer whose ranges are all served; raises the error that refuses it."""
        return self.offer(manifest(tag), **more).finish()

    def arriving(self) -> dict[str, list[int]]:
        return dict(self.receiver.status()["arriving"])

    @property
    def served(self) -> tuple[int, float]:
        """Number, and the tag of the weights that really answer."""
        seen = observation(2)
        chunk = self.host.act(seen, seen.rows.noise_keys(0), "mean")
        return int(chunk.versions[0]), float(chunk.values[0])


class Sender:
    """One offer, the fetches it was sent, and its answers."""

    def __init__(self, bench: Bench, of: Manifest, session: str, id: int, more: Mapping[str, Any]) -> None:
        self.bench, self.of, self.session, self.id, self.more = bench, of, session, id, more
        self.content = Content(tensors(of.number))
        self.fetches: list[dict[str, Any]] = []
        self.served: list[int] = []
        self.answers: list[Any] = []

    def handle(self, kind: str, body: Mapping[str, Any], arrays: Mapping[str, Any] | None = None) -> None:
        def say(kind: str, body: Mapping[str, Any], arrays: Mapping[str, Any]) -> None:
            (self.fetches if kind == "fetch" else self.answers).append({"kind": kind, **body})

        answer = Answer(self.session, say, self.answers.append)
        message = Message(kind, self.id, self.session, body=dict(body), arrays=dict(arrays or {}))
        self.bench.receiver.handle(message, answer)

    def offer(self) -> None:
        """Send the offer, for the first time or again, over a new connection."""
        self.fetches.clear()
        self.handle("offer", {"manifest": self.of.to_dict(), **self.more})

    def range(self, which: int = 0, **change: Any) -> None:
        """Answer one of the fetches."""
        fetch = self.fetches.pop(which)
        self.served.append(fetch["offset"] // RANGE)
        body, arrays = read_range(self.content, self.of, fetch)
        self.handle("range", {**body, **change}, arrays)

    def ranges(self, count: int) -> None:
        for _ in range(count):
            self.range()

    def finish(self) -> Any:
        """Answer what is fetched until the offer is answered; its answer's body, or raise its error."""
        limit = time.monotonic() + 30
        while not self.answers:
            assert time.monotonic() < limit, "no answer"
            if self.fetches:
                self.range()
                continue
            self.bench.loader.tick()
            self.bench.receiver.tick()
            time.sleep(0.0005)
        if isinstance(self.answers[0], EmbodiedError):
            raise self.answers[0]
        return self.answers[0]


@contextmanager
def bench(**options: Any) -> Iterator[Bench]:
    made = Bench(**options)
    try:
        yield made
    finally:
        made.loader.close()
