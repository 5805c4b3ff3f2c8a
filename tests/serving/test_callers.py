"""Clients kept apart: roles, sessions, rates and shares, without sockets, on a fake clock."""

from embodied.errors import Busy, Unauthorized
from embodied.serving.answer import Caller
from embodied.serving.rate_limits import Rates
from embodied.wire.codecs import error_from_body
from embodied.wire.credentials import ACT
from tests.serving.tiny import manifest, tensors
from tests.serving.world import World, codes


def test_each_kind_needs_its_permission_and_a_removed_key_is_refused() -> None:
    world = World()
    reader = Caller("reader", frozenset({ACT}))
    pusher = Caller("pusher", frozenset({"push"}))
    world.say("a", "hello", 1, caller=reader)
    world.say("a", "offer", 2, caller=reader, body={"manifest": manifest(5).to_dict()}, arrays=tensors(5))
    world.say("a", "set_active", 3, caller=reader, body={"pointer": "pinned", "version": 1})
    world.say("b", "offer", 4, caller=pusher, body={"manifest": manifest(5).to_dict()}, arrays=tensors(5))
    world.say("b", "act", 5, caller=pusher)
    world.say("b", "offer", 8, caller=pusher, body={"manifest": manifest(4).to_dict(), "back": True})
    world.say("b", "status", 6, caller=None)
    world.say("b", "status", 7, caller=pusher)
    said = world.until({1, 2, 3, 4, 5, 6, 7, 8})
    assert [said[id].kind for id in (1, 4, 7)] == ["hello", "ack", "status"]
    for id, words in (
        (2, "permission push"), (3, "permission administer"), (5, "permission act"), (6, "not let in"),
        (8, "going back to an older version, which needs the permission administer"),
    ):  # fmt: skip
        error = error_from_body(said[id].body)
        assert isinstance(error, Unauthorized) and words in error.what


def test_two_callers_with_one_session_name_are_strangers() -> None:
    world = World()
    anna, bert = Caller("anna"), Caller("bert")
    world.ask("s", 1, caller=anna, peer="p1")
    world.say("s", "reset", 2, caller=bert, peer="p2")
    world.say("s", "bye", 0, caller=bert, peer="p2")
    answers = world.hear()
    assert [(peer, answer.id) for peer, answer in answers] == [("p2", 2), ("p1", 1)]
    assert answers[0][1].body == {"forgotten": 0}
    world.ask("s", 3, caller=anna, peer="p3")  # she reconnects
    assert [peer for peer, _ in world.hear()] == ["p3"]
    assert [peer for peer, _ in world.core.farewell()] == [b"p3"]


def test_clients_without_a_name_for_themselves_are_told_apart() -> None:
    world = World()
    world.ask("", 1, peer="p1")
    world.say("", "reset", 2, peer="p2")
    assert codes(world.hear()) == {1: "", 2: ""}
    assert world.core.status()["sessions"] == 2


def test_who_floods_is_told_to_slow_down_and_others_are_not() -> None:
    world = World(rates=Rates(messages=10, bytes=0))
    for id in range(1, 31):
        world.say("a", "status", id)
    world.say("b", "status", 99)
    answers = world.hear()
    refused = [answer for _, answer in answers if answer.kind == "error"]
    assert [answer.id for answer in refused] == list(range(11, 31))
    assert all(isinstance(error_from_body(a.body), Busy) and a.body["retry_ms"] >= 5 for a in refused)
    assert answers[-1][1].kind == "status"
    world.now += 0.5
    world.say("a", "status", 100)
    assert world.hear()[-1][1].kind == "status"


def test_a_new_session_name_is_no_way_around_the_rate() -> None:
    world = World(rates=Rates(messages=10, bytes=0))
    for id in range(1, 31):
        world.say(f"s{id}", "status", id, peer="p")
    assert sum(answer.kind == "error" for _, answer in world.hear()) == 20


def test_large_messages_are_counted_by_their_bytes_and_pushes_are_not() -> None:
    world = World(rates=Rates(messages=0, bytes=10_000))
    for id in range(1, 11):
        world.say("a", "status", id, body={"padding": "x" * 3000})
    refused = [answer for _, answer in world.hear() if answer.kind == "error"]
    assert 5 <= len(refused) <= 7
    for number in range(11, 14):
        world.say("learner", "offer", number, body={"manifest": {}, "padding": "x" * 9000})
    assert set(codes(world.hear()).values()) == {"message"}


def test_a_greedy_session_leaves_room_for_others() -> None:
    world = World(max_requests=4, max_rows=2)
    for id in range(1, 7):
        world.ask("greedy", id)
    world.ask("modest", 7)
    world.ask("r", 8, priority="robot")
    answers = [entry for _ in range(8) for entry in world.hear()]
    said = codes(answers)
    assert said[7] == said[8] == "" and [said[id] for id in (3, 4, 5, 6)] == ["busy"] * 4
    assert next(answer.id for _, answer in answers if answer.kind == "act") == 8


def test_names_of_sessions_cannot_fill_the_server() -> None:
    world = World(rates=Rates(0, 0))
    world.say("friend", "hello", 1)
    for index in range(3000):
        world.say(f"s{index}", "heartbeat", 0, peer="hostile")
    assert world.core.status()["sessions"] == 65
    for index in range(3000):
        world.say(f"s{index}", "heartbeat", 0)
    assert world.core.status()["sessions"] <= 1024
    world.ask("friend", 2)
    assert codes(world.hear())[2] == ""
