from collections.abc import Mapping
from typing import Any

import pytest

from embodied.errors import MessageError, UserError
from embodied.serving.answer import Answer
from embodied.serving.loader import Loader
from embodied.serving.policy_slot import PolicySlot
from embodied.serving.versioned_policy import VersionedPolicy
from embodied.wire.message import Message
from tests.serving.tiny import TinyPolicy, whole_slot


class Noted:
    busy = False

    def __init__(self, name: str) -> None:
        self.name, self.kinds, self.ticks = name, [], 0  # type: ignore[var-annotated]

    def handle(self, message: Message, answer: Answer) -> None:
        self.kinds.append(message.kind)

    def tick(self) -> None:
        self.ticks += 1

    def status(self) -> Mapping[str, Any]:
        return {self.name: self.ticks}


ANSWER = Answer("s", lambda *_: None, lambda _: None)


def test_each_part_gets_its_kind_and_all_are_ticked() -> None:
    host = VersionedPolicy(TinyPolicy())
    parts = {kind: Noted(kind) for kind in ("offer", "fetch", "set_active")}
    slot = PolicySlot(host, Loader(host), parts["offer"], parts["fetch"], parts["set_active"])
    for kind in parts:
        slot.handle(Message(kind), ANSWER)
    slot.tick()
    assert all(part.kinds == [kind] and part.ticks == 1 for kind, part in parts.items())
    assert slot.status() == {"offer": 1, "fetch": 1, "set_active": 1}
    with pytest.raises(MessageError, match="no slot takes act"):
        slot.handle(Message("act"), ANSWER)
    slot.close()


def test_what_is_not_there_is_said() -> None:
    with pytest.raises(UserError, match="keeps no versions"):
        whole_slot().handle(Message("fetch"), ANSWER)
    host = VersionedPolicy(TinyPolicy())
    with pytest.raises(UserError, match="takes no pushes"):
        PolicySlot(host, Loader(host), None).handle(Message("offer"), ANSWER)
