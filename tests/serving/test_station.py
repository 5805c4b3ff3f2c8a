"""The server without sockets, on a fake clock."""

import time
from typing import Any

import numpy as np
from tiny import BODY, SPEC, TinyPolicy, manifest, observation, same, tensors, whole_desk

from embodied.errors import Busy
from embodied.serving.host import PolicyHost
from embodied.serving.station import ServerStation
from embodied.wire.codecs import chunk_from_message, error_from_body, observation_to_arrays, rows_to_arrays
from embodied.wire.message import Message, decode, encode


class World:
    """A station, its clock, and what it said to whom."""

    def __init__(self, **options: Any) -> None:
        self.now = 100.0
        self.host = PolicyHost(TinyPolicy())
        self.desk = whole_desk(self.host)
        self.station = ServerStation({"tiny": self.desk}, max_wait_s=0.5, clock=lambda: self.now, **options)

    def say(self, session: str, kind: str, id: int = 1, **fields: Any) -> None:
        self.station.handle(session.encode(), [bytes(f) for f in encode(Message(kind, id, session, **fields))])

    def ask(self, session: str, id: int = 1, rows: int = 2, deadline_ms: int = 0, mode: str = "sample") -> None:
        seen = observation(rows, id)
        arrays = {**observation_to_arrays(seen), "noise_keys": seen.rows.noise_keys(0)}
        self.say(session, "act", id, deadline_ms=deadline_ms, body={"mode": mode}, arrays=arrays)

    def until(self, ids: set[int]) -> dict[int, Message]:
        """What was answered to these, however long a version takes to load."""
        said: dict[int, Message] = {}
        limit = time.monotonic() + 30
        while not ids <= said.keys():
            assert time.monotonic() < limit, f"only {sorted(said)} were answered"
            said |= {message.id: message for _, message in self.hear()}
            time.sleep(0.001)
        return said

    def hear(self, **options: Any) -> list[tuple[str, Message]]:
        said = [(peer.decode(), decode([bytes(f) for f in frames])) for peer, frames in self.station.tick(**options)]
        return [(peer, message) for peer, message in said if message.kind != "heartbeat"]


def test_a_lone_client_is_answered_at_once() -> None:
    world = World()
    for id in (1, 2):
        world.ask("a", id)
        assert world.station.wait() == 0
        ((peer, answer),) = world.hear()
        assert (peer, answer.kind, answer.id) == ("a", "act", id)


def test_companions_share_a_batch_and_get_their_own_rows() -> None:
    world = World()
    for turn in (1, 2):
        world.ask("a", turn)
        world.ask("b", turn + 10, rows=3)
        assert len(world.hear()) == 2
    world.ask("a", 3)
    assert world.hear() == [] and 0 < world.station.wait() <= 0.5
    world.now += 0.3
    world.ask("b", 13, rows=3)
    answers = dict(world.hear())
    assert world.station.counts.batches == 3 and world.station.counts.rows == 15
    for session, id, rows in (("a", 3, 2), ("b", 13, 3)):
        seen = observation(rows, id)
        wanted = world.host.act(seen, seen.rows.noise_keys(0), "sample")
        same(chunk_from_message(answers[session].body, answers[session].arrays), wanted)


def test_rows_that_make_the_policy_fail_fail_alone() -> None:
    world = World()
    for session in "ab":
        world.ask(session, 1)
    world.hear()
    world.ask("a", 2)
    seen = observation(1)
    seen.streams["joint_pos"][:] = 1e9
    arrays = {**observation_to_arrays(seen), "noise_keys": seen.rows.noise_keys(0)}
    world.say("b", "act", 3, body={"mode": "sample"}, arrays=arrays)
    said = {message.id: message for _, message in world.hear()}
    assert said[2].kind == "act" and "RuntimeError: the policy has a bug" in said[3].body["what"]


def test_nobody_is_waited_for_longer_than_agreed_or_after_goodbye() -> None:
    world = World()
    for session in "ab":
        world.ask(session)
    world.hear()
    world.ask("a", 2)
    world.now += 0.499
    assert world.hear() == []
    world.now += 0.001
    assert len(world.hear()) == 1
    world.ask("b", 2)
    world.say("a", "bye")
    assert len(world.hear()) == 1


def test_a_request_whose_deadline_passed_is_refused() -> None:
    world = World()
    world.ask("a", 1, deadline_ms=100)
    world.now += 0.1
    ((_, answer),) = world.hear()
    assert answer.kind == "error" and answer.body["code"] == "deadline" and answer.id == 1
    assert world.station.counts.late == 1 and world.station.counts.batches == 0


def test_a_full_queue_says_when_to_come_back() -> None:
    world = World(max_requests=2)
    for id in (1, 2, 3):
        world.ask("a", id)
    answers = [message for _, message in world.hear()]
    refused = [answer for answer in answers if answer.kind == "error"]
    assert [answer.id for answer in refused] == [3]
    assert isinstance(error_from_body(refused[0].body), Busy) and refused[0].body["retry_ms"] >= 1
    assert world.station.counts.busy == 1


def test_weights_switch_between_batches() -> None:
    world = World()
    world.ask("a", 1)
    world.hear()
    world.say("learner", "push", 7, body={"manifest": manifest(5).to_dict()}, arrays=tensors(5))
    world.say("learner", "push", 8, body={"manifest": manifest(4).to_dict()}, arrays=tensors(4))
    world.say("learner", "push", 9, body={"manifest": {"policy": "tiny"}})
    assert world.station.wait() <= 0.001
    said = world.until({7, 8, 9})
    assert said[7].body == {"number": 5, "hash": manifest(5).version.hash}
    assert said[8].body["code"] == "weights_refused" and "stale" in said[8].body["what"]
    assert said[9].body["code"] == "message"
    assert not world.station.loading
    world.ask("a", 2)
    answer = world.until({2})[2]
    chunk = chunk_from_message(answer.body, answer.arrays)
    assert (chunk.versions == 5).all() and (chunk.values == 5).all()
    assert world.station.counts.switches == 1


def test_hello_status_reset_and_what_is_not_served_here() -> None:
    world = World()
    world.say("a", "hello", 1, body={"body": BODY.to_dict(), "agent": "robot"})
    world.say("a", "hello", 2, body={"body": BODY.to_dict(), "agent": "left"})
    world.say("a", "hello", 3, body={"body": {"task": 1}})
    world.say("a", "status", 4)
    world.ask("b", 1)
    world.say("b", "reset", 5)
    world.say("a", "segment", 6)
    world.say("a", "status", 7, policy="other")
    said = {message.id: message for _, message in world.hear()}
    assert said[1].body["spec"] == SPEC.to_dict()
    assert [said[id].body["code"] for id in (2, 3, 6, 7)] == ["spec_mismatch", "message", "message", "user"]
    assert said[4].body["policy"] == "tiny" and said[4].body["sessions"] == 1
    assert said[5].body == {"forgotten": 1}
    assert world.station.counts.batches == 0


def test_an_outcome_sent_twice_counts_once() -> None:
    world = World()
    arrays = {**rows_to_arrays(observation(2).rows), "outcomes": np.array([1, 2], np.uint8)}
    for _ in range(2):
        world.say("a", "outcome", 4, arrays=arrays)
    assert [message.kind for _, message in world.hear()] == ["ack", "ack"]
    assert world.host.outcomes[0].tolist() == [0, 1, 1, 0, 0, 0, 0]


def test_sessions_are_kept_by_heartbeats_and_forgotten_after_silence() -> None:
    world = World(heartbeat_s=1.0, expire_s=3.0)
    world.ask("a")
    world.say("b", "heartbeat", 0)
    world.hear()
    for _ in range(4):
        world.now += 1.0
        world.say("a", "heartbeat", 0)
        beats = {peer for peer, frames in world.station.tick() if decode(frames).kind == "heartbeat"}
        assert b"a" in beats
    assert world.station.status()["sessions"] == 1
    assert [peer for peer, _ in world.station.farewell()] == [b"a"]


def test_draining_answers_everything_without_waiting() -> None:
    world = World()
    for session in "ab":
        world.ask(session)
    world.hear()
    world.ask("a", 2)
    assert world.hear() == [] and world.station.waiting == 1
    assert len(world.hear(draining=True)) == 1 and world.station.waiting == 0
