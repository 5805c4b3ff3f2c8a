"""Mailboxes: every message once and in order, whatever its channel does."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from embodied.train.mailbox import Inbox, Message, Outbox, Receipt


def sent(number: int, attempt: int = 0, sender: str = "a") -> Message:
    return Message(Receipt(sender, attempt, "b", number), number)


def taken(inbox: Inbox) -> list[int]:
    bodies = []
    while (message := inbox.take()) is not None:
        bodies.append(message.body)
    return bodies


@given(st.lists(st.integers(1, 8), max_size=40))
def test_any_order_with_repeats_is_taken_once_and_in_order(arrivals: list[int]) -> None:
    inbox, bodies = Inbox(limit=8), list[int]()
    for number in arrivals:
        inbox.offer(sent(number))
        bodies += taken(inbox)
    complete = next((n for n in range(1, 10) if n not in arrivals), 9)
    assert bodies == list(range(1, complete))
    assert {receipt.number for receipt in inbox.receipts()} == set(bodies)


def test_a_message_taken_before_is_acknowledged_again() -> None:
    inbox = Inbox()
    inbox.offer(sent(1))
    assert taken(inbox) == [1] and inbox.receipts() == [sent(1).id] and inbox.receipts() == []
    inbox.offer(sent(1))
    assert taken(inbox) == [] and inbox.receipts() == [sent(1).id]


def test_a_full_inbox_drops_without_acknowledgement() -> None:
    inbox = Inbox(limit=2)
    for number in (3, 2, 1):
        inbox.offer(sent(number))
    assert taken(inbox) == [1, 2]
    inbox.offer(sent(3))
    assert taken(inbox) == [3]


def test_a_new_attempt_counts_anew_and_ends_the_old_one() -> None:
    inbox = Inbox()
    inbox.offer(sent(1))
    inbox.offer(sent(2))
    assert inbox.take() is not None
    inbox.offer(sent(1, attempt=1))
    inbox.offer(sent(3, attempt=0))
    message = inbox.take()
    assert message is not None and (message.id.attempt, message.body) == (1, 1) and inbox.take() is None
    assert sent(3).id in inbox.receipts()


def test_senders_are_counted_apart() -> None:
    inbox = Inbox()
    for sender in ("a", "c"):
        inbox.offer(sent(1, sender=sender))
    assert taken(inbox) == [1, 1]


def test_what_is_not_acknowledged_is_due_again_and_an_outbox_is_bounded() -> None:
    outbox = Outbox("a", limit=2, resend_s=2.0)
    outbox.put("b", "x")
    outbox.put("c", "y")
    with pytest.raises(OverflowError, match="2 messages"):
        outbox.put("b", "z")
    first = outbox.due(10.0)
    assert [(m.id.to, m.id.number, m.body) for m in first] == [("b", 1, "x"), ("c", 1, "y")]
    assert outbox.due(11.9) == []
    outbox.acknowledge(first[0].id)
    assert outbox.room == 1 and not outbox.empty
    assert outbox.due(12.0) == [first[1]]
    outbox.acknowledge(first[1].id)
    outbox.acknowledge(first[1].id)
    assert outbox.empty and outbox.due(20.0) == []
