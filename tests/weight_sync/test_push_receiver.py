"""The receiving side of a push as a state machine: no sockets, a fake clock, the loader's own thread."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from embodied.errors import (
    Busy,
    InfrastructureError,
    MessageError,
    WeightsHeld,
    WeightsRefused,
)
from embodied.weight_sync.pending_uploads import SILENT_S, TRANSFERS
from embodied.weight_sync.push_receiver import DAMAGED, RETRY_S, WINDOW
from embodied.weights.manifest import Manifest, Version
from embodied.weights.registry import Registry
from embodied.weights.shared import SharedBlock
from embodied.weights.transfer import Content
from tests.serving.tiny import SPEC, manifest, tensors
from tests.weight_sync.pushed import RANGE, RANGES, Sender, bench


@pytest.mark.parametrize("standby", [True, False])
def test_versions_are_pushed_one_after_the_other(standby: bool) -> None:
    with bench(standby=standby) as b:
        for number in (3, 4, 9):
            assert b.push(number) == {"kind": "ack", "number": number, "hash": manifest(number).hash[:12]}
            assert b.served == (number, number)
        assert b.offer(manifest(9)).answers[0]["kind"] == "ack"
        with pytest.raises(WeightsRefused, match="stale"):
            b.push(4)
        assert b.push(4, back=True)["number"] == 4
        assert b.arriving() == {}


@settings(max_examples=25)
@given(st.lists(st.tuples(st.booleans(), st.integers(0, WINDOW), st.booleans()), max_size=30))
def test_reordered_and_repeated_ranges_never_give_a_mixed_version(steps: list[tuple[bool, int, bool]]) -> None:
    with bench() as b:
        b.push(1)
        two, three = b.offer(manifest(2), "a", back=True), b.offer(manifest(3), "b", back=True)
        for first, which, again in steps:
            sender = two if first else three
            if sender.fetches:
                which %= len(sender.fetches)
                fetch = sender.fetches[which]
                sender.range(which)
                if again:
                    sender.fetches.insert(0, fetch)  # a copy of a message that has arrived
                    sender.range(0)
            assert b.served == (1, 1)
        for sender in (two, three):
            assert sender.finish()["number"] == sender.of.number and b.served in ((2, 2), (3, 3))


def test_a_push_cut_at_every_range_is_resumed() -> None:
    with bench() as b:
        for cut in range(RANGES):
            first = b.offer(manifest(cut + 1), "first")
            first.ranges(cut)
            second = b.offer(manifest(cut + 1), "second")  # another process of the learner
            assert second.finish()["number"] == cut + 1 and b.served == (cut + 1, cut + 1)
            assert sorted(second.served) == list(range(cut, RANGES))
            assert first.answers == second.answers, "both have offered the version"


def test_an_offer_sent_again_is_answered_the_same() -> None:
    with bench() as b:
        first = b.offer(manifest(1))
        first.ranges(3)
        first.offer()  # over a new connection
        assert first.finish()["number"] == 1 and sorted(first.served) == list(range(RANGES))
        for number in (2, 3):
            assert b.push(number)["number"] == number
        first.answers.clear()
        first.offer()  # its answer was lost
        assert first.finish() == {"kind": "ack", "number": 1, "hash": manifest(1).hash[:12]}
        with pytest.raises(WeightsRefused, match="stale"):
            b.push(1)  # another offer of the same version
        altered = b.offer(manifest(4))
        altered.content = Content(tensors(5))
        for _ in range(2):
            with pytest.raises(WeightsRefused, match=r"tensor (tag|weight) has other content"):
                altered.finish()
            altered.answers.clear()
            altered.offer()
        assert b.served == (3, 3)
        assert b.push(4)["number"] == 4  # and the true content is taken


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
def test_a_version_that_does_not_fit_the_policy_is_refused_before_memory_is_taken(change: Any, words: str) -> None:
    unfit = Manifest.of(SPEC.name, 1, change(tensors(1)), SPEC.to_dict())
    with bench() as b:
        with pytest.raises(WeightsRefused, match=words):
            b.offer(unfit)
        assert b.arriving() == {} and b.receiver._uploads.memory == 0


def test_a_hostile_or_confused_sender_is_answered_by_name() -> None:
    with bench() as b:
        good = manifest(1)
        sender = Sender(b, good, "s", 1, {})
        for body in (
            {},
            {"manifest": {**good.to_dict(), "hash": "0" * 64}},
            {"manifest": good.to_dict(), "signature": 3},
            {"manifest": good.to_dict(), "back": 1},
            {"manifest": good.to_dict(), "memory": None},
        ):
            with pytest.raises(MessageError):
                sender.handle("offer", body)
        for label in (good.label, [], None, "x" * 1000):
            sender.handle("range", {"version": label, "offset": 0})  # nothing was offered
        sender.offer()
        fetches = list(sender.fetches)
        for offset in (1, -RANGE, 10**9, None, [], "0"):  # not asked for
            sender.handle("range", {"version": good.label, "offset": offset}, {"data": np.zeros(RANGE, np.uint8)})
        stranger = Sender(b, good, "stranger", 1, {})
        stranger.handle("range", {"version": good.label, "offset": 0, "hash": ""}, {"data": np.zeros(RANGE, np.uint8)})
        assert sender.fetches == fetches and sender.answers == [] and b.arriving() == {good.label: [0, 100]}
        assert sender.finish()["number"] == 1


def test_damaged_ranges_are_fetched_again_but_not_for_ever() -> None:
    with bench() as b:
        sender = b.offer(manifest(1))
        for change in ({"hash": "0" * 16}, {"hash": None}):
            sender.range(1, **change)
        sender.fetches.insert(1, {"version": sender.of.label, "offset": 16, "size": 3})
        sender.range(1)  # shorter than what was asked for
        assert sender.finish()["number"] == 1 and sender.served.count(1) >= 2
        worse = b.offer(manifest(2))
        for _ in range(DAMAGED):
            worse.range(len(worse.fetches) - 1, hash="0" * 16)
        with pytest.raises(MessageError, match="arrived damaged"):
            worse.finish()
        assert b.served == (1, 1) and b.arriving() == {}


def test_ranges_that_do_not_come_are_fetched_again() -> None:
    with bench() as b:
        sender = b.offer(manifest(1))
        sender.fetches.clear()  # lost on the way
        b.now = RETRY_S - 0.1
        b.receiver.tick()
        assert sender.fetches == []
        b.now = RETRY_S
        b.receiver.tick()
        assert len(sender.fetches) == RANGES and sender.finish()["number"] == 1


def test_a_sender_has_a_window_of_ranges_in_flight() -> None:
    with bench() as b:
        b.receiver._range_bytes = 4
        sender = b.offer(manifest(1))
        assert len(sender.fetches) == WINDOW
        sender.content = Content(tensors(1))
        while sender.fetches:
            assert len(sender.fetches) <= WINDOW
            sender.range()
        assert sender.finish()["number"] == 1


def test_memory_is_bounded_and_silent_or_superseded_uploads_go() -> None:
    with bench() as b:
        five = b.offer(manifest(5), "a")
        five.range()
        assert b.arriving() == {manifest(5).label: [RANGE, 100]}
        six = b.offer(manifest(6), "b")
        with pytest.raises(Busy, match="are arriving"):
            b.offer(manifest(4), "c")
        b.now = 1.0
        five.range()
        b.offer(manifest(7), "c")  # in place of 6, older and silent for longer
        assert list(b.arriving()) == [manifest(5).label, manifest(7).label]
        assert isinstance(six.answers[0], Busy), "its sender is told to try again"
        b.offer(manifest(8), "c")  # the same sender's earlier upload is given up
        assert list(b.arriving()) == [manifest(5).label, manifest(8).label]
        assert b.receiver._uploads.memory == TRANSFERS
        b.now = SILENT_S
        five.range()
        b.now = SILENT_S + 1.5
        b.receiver.tick()
        assert list(b.arriving()) == [manifest(5).label]
        b.now = 3 * SILENT_S
        b.receiver.tick()
        assert b.arriving() == {} and b.receiver._uploads.memory == 0
        assert isinstance(five.answers[0], Busy)


def test_abandoned_uploads_of_higher_versions_make_room_for_a_lower_one() -> None:
    with bench() as b:
        b.offer(manifest(8), "a")
        b.now = 1.0
        nine = b.offer(manifest(9), "b")
        b.now = 9.9
        with pytest.raises(Busy, match="are arriving"):
            b.offer(manifest(4), "c")
        b.now = 12.0
        b.offer(manifest(4), "c")  # the longest silent goes first
        assert list(b.arriving()) == [manifest(9).label, manifest(4).label]
        nine.range()
        with pytest.raises(Busy, match="are arriving"):
            b.offer(manifest(3), "d")
        b.receiver.leave("b")  # its client said goodbye
        b.offer(manifest(3), "d")
        assert list(b.arriving()) == [manifest(4).label, manifest(3).label]
        assert b.receiver._uploads.memory == TRANSFERS


def test_shared_memory_is_copied_before_it_is_verified() -> None:
    with bench() as b, SharedBlock() as block:
        for number in (1, 2):
            sender = b.offer(manifest(number), memory=block.hold(manifest(number), tensors(number)))
            shares = not sender.fetches
            assert sender.finish()["number"] == number and b.served == (number, number)
        if shares:
            block.hold(manifest(4), tensors(4))
            sender = b.offer(manifest(3), memory=block.hold(manifest(3), tensors(4)))  # not what was offered
            with pytest.raises(WeightsRefused, match="other content"):
                sender.finish()
        sender = b.offer(manifest(3), memory="1-2-" + "0" * 32)  # not of this machine
        assert len(sender.fetches) == RANGES and sender.finish()["number"] == 3 and b.served == (3, 3)


def test_an_untrusted_signature_is_refused_first() -> None:
    class Trusted:
        def check(self, manifest: Manifest, signature: str) -> None:
            if signature != f"signed {manifest.number}":
                raise WeightsRefused("no trusted key signed it")

    with bench(trusted=Trusted()) as b:
        with pytest.raises(WeightsRefused, match="no trusted key"):
            b.offer(manifest(1), signature="signed 2")
        assert b.arriving() == {} and b.receiver._uploads.memory == 0
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
        stored = b.offer(manifest(2))
        assert stored.fetches == [] and stored.finish()["number"] == 2 and b.served == (2, 2)  # read from the store
        store.rollback(SPEC.name)
        with pytest.raises(WeightsHeld, match="rollback holds publication"):
            b.push(3)
        store.resume(SPEC.name)
        assert b.push(3)["number"] == 3


def test_a_full_disk_is_answered_and_ranges_are_kept() -> None:
    class Store:
        full = True

        def versions(self, policy: str) -> list[Version]:
            return []

        def active(self, policy: str) -> Version | None:
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
        again = b.offer(manifest(1))
        with pytest.raises(InfrastructureError, match="no space left"):
            again.finish()
        store.full = False
        last = b.offer(manifest(1))
        assert last.finish()["number"] == 1 and b.served == (1, 1)
        assert again.served == last.served == []
