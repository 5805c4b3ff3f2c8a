"""The server without sockets, on a fake clock."""

import json
from typing import Any

import numpy as np
import pytest

from embodied.data import ActionChunk
from embodied.errors import Busy
from embodied.serving.core import ServerCore
from embodied.weight_sync.push_receiver import PushReceiver
from embodied.wire.codecs import chunk_from_message, error_from_body, observation_to_arrays, rows_to_arrays
from embodied.wire.message import Message, decode
from tests.serving.tiny import BODY, SPEC, manifest, observation, same, tensors, whole_slot
from tests.serving.world import World, codes


def test_a_lone_client_is_answered_at_once() -> None:
    world = World()
    for id in (1, 2):
        world.ask("a", id)
        assert world.core.wait() == 0
        ((peer, answer),) = world.hear()
        assert (peer, answer.kind, answer.id) == ("a", "act", id)


def test_companions_share_a_batch_and_get_their_own_rows() -> None:
    world = World()
    for turn in (1, 2):
        world.ask("a", turn)
        world.ask("b", turn + 10, rows=3)
        assert len(world.hear()) == 2
    world.ask("a", 3)
    assert world.hear() == [] and 0 < world.core.wait() <= 0.5
    world.now += 0.3
    world.ask("b", 13, rows=3)
    answers = dict(world.hear())
    assert world.core.counts.batches == 3 and world.core.counts.rows == 15
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
    assert world.core.counts.late == 1 and world.core.counts.batches == 0


def test_a_full_queue_says_when_to_come_back() -> None:
    world = World(max_requests=2)
    for id in (1, 2, 3):
        world.ask("a", id)
    answers = [message for _, message in world.hear()]
    refused = [answer for answer in answers if answer.kind == "error"]
    assert [answer.id for answer in refused] == [3]
    assert isinstance(error_from_body(refused[0].body), Busy) and refused[0].body["retry_ms"] >= 1
    assert world.core.counts.busy == 1


def test_weights_switch_between_batches() -> None:
    world = World()
    world.ask("a", 1)
    world.hear()
    world.say("learner", "offer", 7, body={"manifest": manifest(5).to_dict()}, arrays=tensors(5))
    world.say("learner", "offer", 8, body={"manifest": manifest(4).to_dict()}, arrays=tensors(4))
    world.say("learner", "offer", 9, body={"manifest": {"policy": "tiny"}})
    assert world.core.wait() <= 0.001
    said = world.until({7, 8, 9})
    assert said[7].body == {"number": 5, "hash": manifest(5).version.hash}
    assert said[8].body["code"] == "weights_refused" and "stale" in said[8].body["what"]
    assert said[9].body["code"] == "message"
    assert not world.core.loading
    world.ask("a", 2)
    answer = world.until({2})[2]
    chunk = chunk_from_message(answer.body, answer.arrays)
    assert (chunk.versions == 5).all() and (chunk.values == 5).all()
    assert world.core.counts.switches == 1


def test_hello_status_reset_and_what_is_not_served_here() -> None:
    world = World()
    world.say("a", "hello", 1, body={"env": BODY.to_dict(), "agents": ["robot"]})
    world.say("a", "hello", 2, body={"env": BODY.to_dict(), "agents": ["left"]})
    world.say("a", "hello", 3, body={"env": {"task": 1}})
    world.say("a", "status", 4)
    world.ask("b", 1)
    world.say("b", "reset", 5)
    world.say("a", "segment", 6)
    world.say("a", "status", 7, policy="other")
    world.say("a", "hello", 8, body={"env": BODY.to_dict(), "agents": "robot"})
    world.say("a", "hello", 9, body={"env": BODY.to_dict(), "agents": []})
    said = {message.id: message for _, message in world.hear()}
    assert said[1].body["spec"] == said[9].body["spec"] == SPEC.to_dict()
    assert [said[id].body["code"] for id in (2, 3, 6, 7, 8)] == [
        "spec_mismatch", "message", "message", "user", "message",
    ]  # fmt: skip
    assert said[4].body["policy"] == "tiny" and said[4].body["sessions"] == 1
    assert said[5].body == {"forgotten": 1}
    assert world.core.counts.batches == 0


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
        beats = {peer for peer, frames in world.core.tick() if decode(frames).kind == "heartbeat"}
        assert b"a" in beats
    assert world.core.status()["sessions"] == 1
    assert [peer for peer, _ in world.core.farewell()] == [b"a"]


def test_draining_answers_everything_without_waiting() -> None:
    world = World()
    for session in "ab":
        world.ask(session)
    world.hear()
    world.ask("a", 2)
    assert world.hear() == [] and world.core.waiting == 1
    assert len(world.hear(draining=True)) == 1 and world.core.waiting == 0


def test_several_policies_by_name() -> None:
    world = World()
    left, right = whole_slot(), whole_slot(build={"_target_": "tiny.TinyPolicy"})
    world.core = ServerCore({"left": left, "right": right}, clock=lambda: world.now)
    world.say("a", "hello", 1)
    world.say("a", "hello", 2, policy="right")
    world.ask("a", 3, policy="left")
    world.ask("b", 4, policy="right")
    world.ask("c", 5, policy="rihgt")
    world.ask("c", 6, policy="tiny")
    world.say("c", "heartbeat", 0)
    said = {answer.id: answer for _, answer in [*world.hear(), *world.hear()]}
    for id, words in ((1, "left, right"), (5, "did you mean right?"), (6, "left, right")):
        assert said[id].body["code"] == "user" and words in said[id].body["fix"]
    assert said[2].body["policy"] == "right" and said[2].body["build"] == {"_target_": "tiny.TinyPolicy"}
    assert said[3].kind == said[4].kind == "act"
    assert world.core.status("right")["counts"]["requests"] == 1
    assert world.core.status("right")["served_as"] == "right"
    assert world.core.counts.errors == 3 and world.core.counts.batches == 2


def test_a_policy_is_also_known_by_its_own_name() -> None:
    world = World()
    world.core = ServerCore({"front": world.slot}, clock=lambda: world.now)
    for id, policy in enumerate(("", "front", "tiny"), 1):
        world.ask("a", id, policy=policy)
        assert codes(world.hear()) == {id: ""}


class Hearing:
    """A part that notes what followers serve."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, Any]] = []

    def record_edge(self, session: str, body: Any) -> None:
        self.seen.append((session, body))

    def handle(self, message: Message, answer: Any) -> None:
        answer("range", {"offset": 0})

    def tick(self) -> None:
        raise RuntimeError("a part has a bug")

    def status(self) -> dict[str, Any]:
        return {"followers": len(self.seen)}


def test_status_holds_the_desks_and_followers_are_heard() -> None:
    world = World()
    world.slot.versions = Hearing()
    world.say("edge", "status", 1, body={"follow": {"name": "arm-1", "serving": "3-abc"}})
    world.say("edge", "fetch", 2, body={"offset": 0})
    said = {answer.id: answer for _, answer in world.hear()}
    assert said[1].body["followers"] == 1 and said[1].body["pushes"] == "whole" and said[1].body["policy"] == "tiny"
    assert said[2].kind == "range" and said[2].body == {"offset": 0}
    assert world.slot.versions.seen == [("edge", {"follow": {"name": "arm-1", "serving": "3-abc"}})]


def test_a_snapshot_is_plain_and_tells_how_long_answers_took() -> None:
    world = World()
    world.policy.seconds = 0.03
    world.ask("a", 1)
    world.hear()
    seen = json.loads(json.dumps(world.core.snapshot()))
    assert seen["ready"] and not seen["draining"] and seen["sessions"] == 1
    latency = seen["policies"]["tiny"]["latency"]
    assert latency["count"] == 1 and latency["counts"][latency["buckets"].index(0.05)] == 1
    assert latency["sum"] == pytest.approx(0.03)
    assert seen["limits"]["max_requests"] == 256
    world.core.draining = True
    assert not world.core.snapshot()["ready"]


def test_another_thread_sees_that_a_batch_is_being_computed() -> None:
    world = World()
    seen = []
    inner = world.policy.act

    def act(*args: Any) -> ActionChunk:
        seen.append(world.core.computing_since)
        return inner(*args)

    world.policy.act = act  # type: ignore[method-assign]
    world.ask("a", 1)
    world.hear()
    assert seen == [100.0] and world.core.computing_since is None


def test_priorities_and_modes_of_a_wrong_type_are_refused() -> None:
    world = World()
    for id, body in enumerate(({"priority": 3}, {"priority": "king"}, {"priority": ["robot"]}), 1):
        world.say("a", "hello", id, body=body)
    world.ask("a", 4, mode="median")
    world.ask("a", 5, mode=[1])  # type: ignore[arg-type]
    assert codes(world.hear()) == {1: "user", 2: "user", 3: "user", 4: "user", 5: "message"}


def test_a_server_that_ends_answers_everyone() -> None:
    world = World()
    world.policy.seconds = 0.1
    for id in (1, 2):
        world.ask("a", id, rows=2000)
    world.core.stopping = True
    for id, kind in enumerate(("act", "hello", "status", "offer", "fetch", "set_active", "outcome", "reset"), 3):
        world.say("b", kind, id)
    for kind in ("heartbeat", "bye", "error"):
        world.say("b", kind, 99)
    said = dict(codes(world.hear(draining=True)))
    assert said == {1: "", **dict.fromkeys(range(3, 11), "busy")}
    frames = world.core.dismiss()
    ((peer, answer),) = [(peer, decode([bytes(f) for f in message])) for peer, message in frames]
    assert (peer, answer.id, answer.body["code"], answer.body["retry_ms"]) == (b"a", 2, "busy", 500)
    assert "stopping" in answer.body["what"] and world.core.waiting == 0


def test_who_says_goodbye_leaves_its_push() -> None:
    world = World()
    world.slot.receiver = PushReceiver(world.host, world.slot.loader, clock=lambda: world.now)
    for session, number in (("a", 8), ("b", 9), ("c", 4)):
        world.say(session, "offer", number, body={"manifest": manifest(number).to_dict()})
    said = [(answer.id, answer.kind, answer.body.get("code")) for _, answer in world.hear()]
    assert said == [(8, "fetch", None), (9, "fetch", None), (4, "error", "busy")]
    world.say("b", "bye")
    world.say("c", "offer", 5, body={"manifest": manifest(4).to_dict()})
    said = [(answer.id, answer.kind, answer.body.get("code")) for _, answer in world.hear()]
    assert said == [(9, "error", "busy"), (5, "fetch", None)], "the departed one's version gives way"
