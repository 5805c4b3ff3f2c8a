"""Mailboxes of stages: numbered messages, sent again until they are acknowledged, and taken once, in order.

    outbox.put("scorer", body)
    for message in outbox.due(now): inbox.offer(message)        # a channel may drop, double, delay or reorder them
    message = inbox.take()
    for receipt in inbox.receipts(): outbox.acknowledge(receipt)

A message is acknowledged when its receiver takes it, so that its sender keeps it until then.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

LIMIT = 32
RESEND_S = 2.0


@dataclass(frozen=True)
class Receipt:
    """Identity of a message: sender, its attempt of the run, receiver, and number within these, from 1."""

    sender: str
    attempt: int
    to: str
    number: int


@dataclass(frozen=True)
class Message:
    """One message between two stages."""

    id: Receipt
    body: Any


class Outbox:
    """Messages of one stage that are not acknowledged yet.

    Args:
        sender: Name of the stage.
        attempt: Start of the run; messages of an earlier one are ignored by receivers.
        limit: Most messages held.
        resend_s: Seconds after which a message without acknowledgement is due again.
    """

    def __init__(self, sender: str, attempt: int = 0, limit: int = LIMIT, resend_s: float = RESEND_S) -> None:
        self.sender, self.attempt, self.limit, self.resend_s = sender, attempt, limit, resend_s
        self._numbers: dict[str, int] = {}
        self._pending: dict[Receipt, Message] = {}
        self._next: dict[Receipt, float] = {}

    @property
    def empty(self) -> bool:
        """Whether every message is acknowledged."""
        return not self._pending

    @property
    def room(self) -> int:
        """Messages that still fit."""
        return self.limit - len(self._pending)

    def put(self, to: str, body: Any) -> None:
        """Add a message for the stage named `to`.

        Raises:
            OverflowError: No room; stages look at `room` before they work.
        """
        if self.room < 1:
            raise OverflowError(f"outbox of {self.sender} is full: {self.limit} messages")
        number = self._numbers[to] = self._numbers.get(to, 0) + 1
        id = Receipt(self.sender, self.attempt, to, number)
        self._pending[id] = Message(id, body)

    def due(self, now: float) -> list[Message]:
        """Messages to send at `now`: new ones, and those sent `resend_s` ago without acknowledgement."""
        due = [message for id, message in self._pending.items() if self._next.get(id, now) <= now]
        self._next |= {message.id: now + self.resend_s for message in due}
        return due

    def acknowledge(self, receipt: Receipt) -> None:
        """Forget an acknowledged message."""
        self._pending.pop(receipt, None)
        self._next.pop(receipt, None)


class Inbox:
    """Messages that wait for one stage; each sender's are taken once and by number.

    Args:
        limit: Most messages held of one sender. One beyond is dropped without acknowledgement and is sent again.
    """

    def __init__(self, limit: int = LIMIT) -> None:
        self.limit = limit
        self._expected: dict[str, tuple[int, int]] = {}
        self._held: dict[str, dict[int, Message]] = {}
        self._receipts: dict[Receipt, None] = {}

    def offer(self, message: Message) -> None:
        """Take in a message; one that was taken before, or that an earlier attempt sent, is acknowledged again."""
        id = message.id
        attempt, expected = self._expected.setdefault(id.sender, (id.attempt, 1))
        if id.attempt > attempt:
            attempt, expected = self._expected[id.sender] = id.attempt, 1
            self._held.pop(id.sender, None)
        if (id.attempt, id.number) < (attempt, expected):
            self._receipts[id] = None
        elif id.number < expected + self.limit:
            self._held.setdefault(id.sender, {})[id.number] = message

    def take(self) -> Message | None:
        """The next message in order of any sender, acknowledged with this; None where there is none."""
        for sender, held in self._held.items():
            attempt, expected = self._expected[sender]
            if (message := held.pop(expected, None)) is not None:
                self._expected[sender] = attempt, expected + 1
                self._receipts[message.id] = None
                return message
        return None

    def receipts(self) -> list[Receipt]:
        """Acknowledgements since the last call."""
        receipts, self._receipts = list(self._receipts), {}
        return receipts


class Stage(Protocol):
    """One stage of the loop: a state machine without sockets, sleeps or clocks. Stages inherit what they do not define.

    Attributes:
        name: Address of its messages.
    """

    name: str
    inbox: Inbox
    outbox: Outbox

    def tick(self, now: float) -> bool:
        """Do one piece of work at `now`, monotonic seconds; whether there was any."""
        ...

    def doing(self) -> str:
        """Present work in one phrase; empty at rest, and for work that takes one tick."""
        return ""

    def state(self) -> dict[str, Any]:
        """State for a checkpoint: tensors, arrays and plain values."""
        return {}

    def load(self, state: Mapping[str, Any]) -> None:
        """Continue from `state`."""
        return


def deliver(stages: Mapping[str, Stage], now: float) -> None:
    """Carry every due message and acknowledgement at once, within one process."""
    for stage in stages.values():
        for message in stage.outbox.due(now):
            stages[message.id.to].inbox.offer(message)
    for stage in stages.values():
        for receipt in stage.inbox.receipts():
            stages[receipt.sender].outbox.acknowledge(receipt)
