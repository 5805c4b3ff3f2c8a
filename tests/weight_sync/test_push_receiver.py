"""The receiving side of a push as a state machine: no sockets, a fake clock, the loader's own thread."""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from embodied.errors import (
    Busy,
    EmbodiedError,
    InfrastructureError,
    MessageError,
    WeightsHeld,
    WeightsRefused,
)
from embodied.serving.answer import Answer
from embodied.serving.loader import Loader
from embodied.serving.versioned_policy import VersionedPolicy
from embodied.weight_sync.pending_uploads import SILENT_S, TRANSFERS
from embodied.weight_sync.push_receiver import PushReceiver
from embodied.weights.manifest import Manifest, Version
from embodied.weights.registry import Registry
from embodied.weights.shared import SharedBlock
from embodied.weights.transfer import BeginAgain, Content, chunk_hash
from embodied.wire.message import Message
from tests.serving.tiny import SPEC, TinyPolicy, manifest, observation, tensors

CHUNK = 16
CHUNKS = 7  # of 100 bytes


class Bench:
    """A receiver, what it answered, and a clock."""

    def __init__(self, standby: bool = True, **options: Any) -> None:
        self.host = VersionedPolicy(TinyPolicy(), TinyPolicy() if standby else None)
        self.loader, self.now = Loader(self.host), 0.0
        self.receiver = PushReceiver(self.host, self.loader, chunk_bytes=CHUNK, clock=lambda: self.now, **options)

    def ask(self, body: Mapping[str, Any], data: NDArray[np.uint8] | None = None, session: str = "s") -> Any:
        """The body of the answer; raises the error it was answered with."""
        said = self.later(body, data, session)
        return self.wait(said)

    def later(self, body: Mapping[str, Any], data: NDArray[np.uint8] | None = None, session: str = "s") -> list[Any]:
        """Where the answer will be."""
        said: list[Any] = []
        answer = Answer(session, lambda kind, body, arrays: said.append({"kind": kind, **body}), said.append)
        message = Message("push", 1, body=dict(body), arrays={} if data is None else {"data": data})
        self.receiver.handle(message, answer)
        return said

    def wait(self, said: list[Any]) -> Any:
        limit = time.monotonic() + 30
        while not said:
            assert time.monotonic() < limit, "no answer"
            self.loader.tick()
            self.receiver.tick()
            time.sleep(0.0005)
        if isinstance(said[0], EmbodiedError):
            raise said[0]
        return said[0]

    def begin(self, of: Manifest, session: str = "s", **more: Any) -> Any:
        return self.ask({"op": "begin", "manifest": of.to_dict(), **more}, session=session)

    def chunk(self, tag: int, index: int, label: str = "") -> Any:
        data = Content(tensors(tag)).read(index * CHUNK, min((index + 1) * CHUNK, 100))
        return self.ask(
            {"op": "chunk", "version": label or manifest(tag).label, "index": index, "hash": chunk_hash(data)}, data
        )

    def commit(self, of: Manifest) -> Any:
        return self.ask({"op": "commit", "version": of.label})

    def push(self, tag: int, **more: Any) -> Any:
        version = manifest(tag)
        granted = self.begin(version, **more)
        if granted["kind"] == "ack":
            return granted
        for first, end in granted["missing"]:
            for index in range(first, end):
                self.chunk(tag, index)
        return self.commit(version)

    @property
    def served(self) -> tuple[int, float]:
        """Number, and the tag of the weights that really answer."""
        seen = observation(2)
        chunk = self.host.act(seen, seen.rows.noise_keys(0), "mean")
        return int(chunk.versions[0]), float(chunk.values[0])


@contextmanager
def bench(**options: Any) -> Iterator[Bench]:
    made = Bench(**options)
    try:
        yield made
    finally:
        made.loader.close()


@pytest.mark.parametrize("standby", [True, False])
def test_versions_are_pushed_one_after_the_other(standby: bool) -> None:
    with bench(standby=standby) as b:
        for number in (3, 4, 9):
            assert b.push(number) == {"kind": "ack", "number": number, "hash": manifest(number).hash[:12]}
            assert b.served == (number, number)
        assert b.begin(manifest(9))["kind"] == "ack"
        with pytest.raises(WeightsRefused, match="stale"):
            b.begin(manifest(4))
        assert b.push(4, back=True)["number"] == 4
        assert b.receiver.status() == {"arriving": {}}


@settings(max_examples=25)
@given(st.permutations(list(range(CHUNKS)) * 2), st.integers(0, 2 * CHUNKS))
def test_reordered_and_repeated_chunks_never_give_a_mixed_version(order: list[int], cut: int) -> None:
    with bench() as b:
        b.push(1)
        two, three = manifest(2), manifest(3)
        b.begin(two, "a")
        b.begin(three, "b")
        for step, index in enumerate(order):
            b.chunk(2, index)
            if step < cut:
                b.chunk(3, index)
            assert b.served == (1, 1)
        if set(order[:cut]) != set(range(CHUNKS)):
            with pytest.raises(BeginAgain, match="of 7 chunks are missing"):
                b.commit(three)
        assert b.commit(two)["number"] == 2 and b.served == (2, 2)


def test_a_push_cut_at_every_chunk_goes_on_where_it_was() -> None:
    with bench() as b:
        for cut in range(CHUNKS + 1):
            version = manifest(cut + 1)
            b.begin(version, "first")
            for index in range(cut):
                b.chunk(cut + 1, index)
            left = b.begin(version, "second")["missing"]  # another process of the learner
            assert left == ([[cut, CHUNKS]] if cut < CHUNKS else [])
            for index in range(cut, CHUNKS):
                b.chunk(cut + 1, index)
            assert b.commit(version)["number"] == cut + 1 and b.served == (cut + 1, cut + 1)


def test_a_commit_sent_again_is_answered_the_same() -> None:
    with bench() as b:
        version = manifest(1)
        b.begin(version)
        for index in range(CHUNKS):
            b.chunk(1, index)
        first = b.later({"op": "commit", "version": version.label})
        b.chunk(1, 0)
        assert b.begin(version)["missing"] == []
        second = b.later({"op": "commit", "version": version.label})
        assert (
            b.wait(first)
            == b.wait(second)
            == b.commit(version)
            == {"kind": "ack", "number": 1, "hash": version.hash[:12]}
        )
        assert b.push(2)["number"] == 2
        assert b.commit(version)["number"] == 2  # the version then served
        b.begin(manifest(3))
        for index in range(CHUNKS):
            b.chunk(4, index, manifest(3).label)
        for _ in range(2):
            with pytest.raises(WeightsRefused, match=r"tensor (tag|weight) has other content"):
                b.commit(manifest(3))
        assert b.served == (2, 2)
        assert b.push(3)["number"] == 3  # and the true content is taken


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda t: {**t, "more": np.zeros(3, np.float32)}, "tensor more is unknown to the policy"),
        (lambda t: {"weight": t["weight"]}, "tensor tag is missing"),
        (lambda t: {**t, "weight": np.zeros((4, 7), np.float32)}, "tensor weight is float32 .4, 7., the policy has"),
        (lambda t: {**t, "tag": np.zeros((), np.float64)}, "tensor tag is float64 .., the policy has float32"),
        (lambda t: {**t, "weight": np.zeros((2**17, 2**13), np.uint8)}, "tensor weight is uint8"),
    ],
)
def test_what_does_not_fit_the_policy_is_refused_before_memory_is_taken(change: Any, words: str) -> None:
    unfit = Manifest.of(SPEC.name, 1, change(tensors(1)), SPEC.to_dict())
    with bench() as b:
        with pytest.raises(WeightsRefused, match=words):
            b.begin(unfit)
        assert b.receiver.status() == {"arriving": {}}


def test_a_hostile_or_confused_sender_is_answered_by_name() -> None:
    with bench() as b:
        good = manifest(1)
        for body, kind in (
            ({}, MessageError),
            ({"op": ["begin"]}, MessageError),
            ({"op": "begin"}, MessageError),
            ({"op": "begin", "manifest": {**good.to_dict(), "hash": "0" * 64}}, MessageError),
            ({"op": "begin", "manifest": good.to_dict(), "signature": 3}, MessageError),
            ({"op": "begin", "manifest": good.to_dict(), "back": 1}, MessageError),
            ({"op": "begin", "manifest": good.to_dict(), "memory": None}, MessageError),
            ({"op": "chunk"}, BeginAgain),
            ({"op": "chunk", "version": good.label, "index": 0, "hash": ""}, BeginAgain),
            ({"op": "commit", "version": good.label}, BeginAgain),
            ({"op": "commit", "version": []}, BeginAgain),
        ):
            with pytest.raises(kind):
                b.ask(body)
        b.begin(good)
        data = np.zeros(CHUNK, np.uint8)
        for index, digest, sent in ((0, "x", data), (7, "x", data), (None, None, data), (0, "x", None)):
            with pytest.raises(MessageError):
                b.ask({"op": "chunk", "version": good.label, "index": index, "hash": digest}, sent)
        assert b.push(1)["number"] == 1


def test_memory_is_bounded_and_what_is_silent_or_superseded_goes() -> None:
    with bench() as b:
        b.begin(manifest(5), "a")
        b.chunk(5, 0)
        assert b.receiver.status() == {"arriving": {manifest(5).label: [1, CHUNKS]}}
        b.begin(manifest(6), "b")
        with pytest.raises(Busy, match="are arriving"):
            b.begin(manifest(4), "c")
        b.now = 1.0
        b.chunk(5, 1)
        b.begin(manifest(7), "c")  # in place of 6, older and silent for longer
        assert list(b.receiver.status()["arriving"]) == [manifest(5).label, manifest(7).label]
        b.begin(manifest(8), "c")  # what the same sender began before is given up
        assert list(b.receiver.status()["arriving"]) == [manifest(5).label, manifest(8).label]
        assert b.receiver._arriving.memory == TRANSFERS
        b.now = SILENT_S
        b.chunk(5, 2)
        b.now = SILENT_S + 1.5
        b.receiver.tick()
        assert list(b.receiver.status()["arriving"]) == [manifest(5).label]
        b.now = 3 * SILENT_S
        b.receiver.tick()
        assert b.receiver.status() == {"arriving": {}} and b.receiver._arriving.memory == 0
        with pytest.raises(BeginAgain, match="begin the push again"):
            b.chunk(5, 3)


def test_abandoned_transfers_of_higher_versions_make_room_for_a_lower_one() -> None:
    with bench() as b:
        b.begin(manifest(8), "a")
        b.now = 1.0
        b.begin(manifest(9), "b")
        b.now = 9.9
        with pytest.raises(Busy, match="are arriving"):
            b.begin(manifest(4), "c")
        b.now = 12.0
        b.begin(manifest(4), "c")  # the longest silent goes first
        assert list(b.receiver.status()["arriving"]) == [manifest(9).label, manifest(4).label]
        b.chunk(9, 0)
        with pytest.raises(Busy, match="are arriving"):
            b.begin(manifest(3), "d")
        b.receiver.leave("b")  # its client said goodbye
        b.begin(manifest(3), "d")
        assert list(b.receiver.status()["arriving"]) == [manifest(4).label, manifest(3).label]
        assert b.receiver._arriving.memory == TRANSFERS


def test_shared_memory_is_copied_before_it_is_verified() -> None:
    with bench() as b, SharedBlock() as block:
        for number in (1, 2):
            name = block.hold(manifest(number), tensors(number))
            granted = b.begin(manifest(number), memory=name)
            assert granted["missing"] == ([] if name else [[0, CHUNKS]])
            assert b.push(number, memory=name)["number"] == number and b.served == (number, number)
        name = block.hold(manifest(3), tensors(3))
        b.begin(manifest(3), memory=name)
        block.hold(manifest(4), tensors(4))  # the sender goes on too early
        if name:
            with pytest.raises(WeightsRefused, match="other content"):
                b.commit(manifest(3))
        assert b.begin(manifest(3), memory="1-2-" + "0" * 32)["missing"] == [[0, CHUNKS]]
        assert b.push(3)["number"] == 3 and b.served == (3, 3)


def test_an_untrusted_signature_is_refused_first() -> None:
    class Trusted:
        def check(self, manifest: Manifest, signature: str) -> None:
            if signature != f"signed {manifest.number}":
                raise WeightsRefused("no trusted key signed it")

    with bench(trusted=Trusted()) as b:
        with pytest.raises(WeightsRefused, match="no trusted key"):
            b.begin(manifest(1), signature="signed 2")
        assert b.receiver.status() == {"arriving": {}}
        assert b.push(1, signature="signed 1")["number"] == 1


def test_a_version_is_stored_before_it_is_served_and_a_pin_decides(tmp_path: Path) -> None:
    store = Registry(tmp_path)
    with bench(store=store) as b:
        assert b.push(1)["number"] == 1
        assert store.versions(SPEC.name) == [manifest(1).version]
        store.pin(SPEC.name, 1)
        assert b.push(2)["number"] == 1 and b.served == (1, 1)
        assert store.versions(SPEC.name) == [manifest(1).version, manifest(2).version]
        assert b.push(2)["number"] == 1
        store.unpin(SPEC.name)
        assert b.push(2)["number"] == 2 and b.served == (2, 2)  # read from the store
        store.rollback(SPEC.name)
        with pytest.raises(WeightsHeld, match="rollback holds publication"):
            b.push(3)
        store.resume(SPEC.name)
        assert b.push(3)["number"] == 3


def test_a_full_disk_is_answered_and_what_arrived_is_kept() -> None:
    class Store:
        full = True

        def versions(self, policy: str) -> list[Version]:
            return []

        def wanted(self, policy: str) -> Version | None:
            return manifest(1).version

        def held(self, policy: str) -> object | None:
            return None

        def read(self, policy: str, number: int | str) -> Any:
            raise AssertionError

        def adopt(self, manifest: Manifest, tensors: Mapping[str, NDArray[Any]], signature: str = "") -> None:
            if self.full:
                raise InfrastructureError("no space left", "weights", "make room")

    store = Store()
    with bench(store=store) as b:
        with pytest.raises(InfrastructureError, match="no space left"):
            b.push(1)
        assert b.served == (0, 0)
        assert b.begin(manifest(1))["missing"] == []
        with pytest.raises(InfrastructureError, match="no space left"):
            b.commit(manifest(1))
        store.full = False
        assert b.commit(manifest(1))["number"] == 1 and b.served == (1, 1)
