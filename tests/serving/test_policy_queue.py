"""Order of computation, and requests that are not computed: the server without sockets, on a fake clock."""

from typing import Any

import numpy as np

from embodied.data import ActionChunk, Observation
from embodied.errors import DeadlineExceeded
from embodied.spec import EnvSpec
from embodied.wire.codecs import chunk_from_message, error_from_body, observation_to_arrays
from tests.serving.tiny import AGENT, observation
from tests.serving.world import World, codes


def test_a_robot_waits_for_nobody_and_simulators_fill_its_batch() -> None:
    world = World(max_rows=4)
    for session in ("a", "b"):  # simulators that might ask soon
        world.ask(session)
    world.hear()
    world.ask("a", 2, rows=3)
    assert world.hear() == [], "a simulator waits for the other one"
    world.say("r", "hello", 9, body={"priority": "robot"})
    world.ask("r", 10, rows=2)
    assert world.core.wait() == 0
    assert [answer.id for _, answer in world.hear()] == [9, 10], "a batch has room for four rows"
    assert world.core.waiting == 1
    world.ask("b", 11, rows=1)
    world.ask("r", 12, rows=1)
    assert sorted(answer.id for _, answer in world.hear()) == [2, 12], "simulators fill the rest, the oldest first"


def test_simulators_do_not_starve_behind_robots() -> None:
    world = World(max_rows=2)
    world.ask("a", 1, rows=2)
    for id in range(2, 30):
        world.now += 0.1
        world.ask("r", id, rows=2, priority="robot")
        if 1 in [answer.id for _, answer in world.hear()]:
            break
    assert 0.5 <= world.now - 100.0 <= 0.7


def test_what_would_come_too_late_is_refused_at_once() -> None:
    world = World()
    world.policy.seconds = 0.3
    world.ask("a", 1)
    world.hear()
    world.ask("a", 2, deadline_ms=200)
    ((_, answer),) = world.hear()
    error = error_from_body(answer.body)
    assert isinstance(error, DeadlineExceeded) and answer.id == 2
    assert "300 ms" in error.what and "200 ms" in error.what
    assert world.core.counts.late == 1 and world.core.counts.batches == 1
    world.ask("a", 3, deadline_ms=400)
    assert codes(world.hear()) == {3: ""}


def test_a_request_that_has_become_late_is_not_computed() -> None:
    world = World(max_rows=2)
    world.policy.seconds = 0.3
    world.ask("a", 1)
    world.hear()
    world.ask("a", 2, deadline_ms=700)
    world.ask("b", 3, deadline_ms=700)
    world.ask("c", 4, deadline_ms=700)
    answers = [*world.hear(), *world.hear(), *world.hear()]
    assert codes(answers) == {2: "", 3: "", 4: "deadline"}
    assert world.core.counts.batches == 3


def test_one_slow_batch_locks_nobody_out() -> None:
    world = World()
    for id in range(1, 6):
        world.ask("a", id)
        world.policy.seconds = 60.0 if id == 5 else 0.01
        world.hear()
    world.policy.seconds = 0.01
    world.ask("a", 6, deadline_ms=50)
    assert codes(world.hear()) == {6: ""}


def test_a_slow_stretch_locks_nobody_out_for_ever() -> None:
    world = World()
    world.policy.seconds = 2.0
    for id in range(1, 20):
        world.ask("a", id)
        world.hear()
    world.policy.seconds = 0.01
    refused = 0
    for id in range(20, 300):
        world.ask("a", id, deadline_ms=100)
        if codes(world.hear())[id] == "":
            break
        refused += 1
        world.now += 0.1
    assert 10 < refused < 100, "the estimate is forgotten within seconds"


def test_a_robot_is_not_made_late_by_the_simulators_that_fill_its_batch() -> None:
    world = World()
    for id in range(1, 4):
        world.policy.seconds = 0.2
        world.ask("sim", id, rows=64)
        world.hear()
        world.policy.seconds = 0.01
        world.ask("r", 10 + id, rows=1, priority="robot")
        world.hear()
    world.ask("sim", 20, rows=64)
    world.ask("r", 21, rows=1, priority="robot", deadline_ms=100)
    assert [answer.id for _, answer in world.hear()] == [21]
    assert codes(world.hear()) == {20: ""}


def test_what_waited_behind_a_batch_counts() -> None:
    world = World()
    world.policy.seconds = 0.1
    world.ask("a", 1)
    world.hear()
    world.policy.seconds = 0.0
    world.ask("a", 2, deadline_ms=300, waited=0.25)
    world.ask("a", 3, deadline_ms=300, waited=0.15)
    world.ask("a", 4, deadline_ms=300, waited=60.0)
    said = world.hear()
    assert codes(said) == {2: "deadline", 3: "", 4: "deadline"}
    assert "after waiting 250 ms" in said[0][1].body["what"] and "-" not in said[1][1].body["what"]
    world.ask("a", 5, deadline_ms=300, waited=0.15)
    world.now += 0.151
    assert codes(world.hear()) == {5: "deadline"}


def test_a_slow_stretch_locks_a_robot_out_until_the_first_try() -> None:
    world = World()
    world.policy.seconds = 0.5
    for id in range(1, 17):
        world.ask("r", id, priority="robot")
        world.hear()
    world.policy.seconds = 0.01
    began, answered = world.now, []
    for id in range(20, 220):
        world.ask("r", id, priority="robot", deadline_ms=100)
        if codes(world.hear())[id] == "":
            answered.append(world.now - began)
        world.now += 0.05
    assert answered[0] < 3.0 and len(answered) > 140, "and from then on every one is answered"


def test_rows_of_several_agents_and_times_of_streams_go_through_one_request() -> None:
    """Two requests, of which one has a stream captured at another time than the rest."""
    world = World()
    seen_by_policy: list[Observation] = []
    act = world.policy.act

    def noted(observation: Observation, *rest: Any) -> ActionChunk:
        seen_by_policy.append(observation)
        return act(observation, *rest)

    world.policy.act = noted  # type: ignore[method-assign]
    for turn in range(2):  # the second time the form of the arrays is known
        for session, stamped in (("a", True), ("b", False)):
            seen = observation(4, turn)
            seen.rows.agent[:] = [0, 1, 0, 1]
            seen.time[:] = 5.0
            if stamped:
                seen.times = {"camera": np.array([1.0, 2.0, 3.0, 4.0])}
            arrays = {**observation_to_arrays(seen), "noise_keys": seen.rows.noise_keys(0)}
            world.say(session, "act", turn + 1, body={"mode": "mean"}, arrays=arrays)
        answers = world.hear()
        assert len(answers) == 2
        for _, answer in answers:
            chunk = chunk_from_message(answer.body, answer.arrays)
            assert chunk.rows.agent.tolist() == [0, 1, 0, 1]
    for batch in seen_by_policy:
        assert batch.rows.agent.tolist() == [0, 1] * 4
        assert batch.times.keys() == {"camera"}
        assert batch.times["camera"].tolist() == [1.0, 2.0, 3.0, 4.0, 5.0, 5.0, 5.0, 5.0]


def test_rows_of_an_agent_that_hello_did_not_name_are_refused_until_another_hello() -> None:
    world = World()
    pair = EnvSpec("wave", {"left": AGENT, "right": AGENT}, control_hz=20.0)
    world.ask("a", 1, agent=1)  # before a hello nothing is named
    world.say("a", "hello", 2, body={"env": pair.to_dict(), "agents": ["left"]})
    world.ask("a", 3, agent=1)
    world.ask("a", 4, agent=0)
    world.ask("b", 5, agent=1)  # another client's hello is not this one's
    answers = world.hear()
    answers += world.hear() + world.hear()
    assert codes(answers) == {1: "", 2: "", 3: "spec_mismatch", 4: "", 5: ""}
    refused = next(answer for _, answer in answers if answer.id == 3)
    assert error_from_body(refused.body).line() == (
        "a row of agent 1, and hello named 0 (rows.agent): send rows of these agents, or another hello"
    )
    world.say("a", "hello", 6, body={"env": pair.to_dict(), "agents": ["right", "left"]})
    world.ask("a", 7, agent=1)
    world.say("a", "hello", 8)  # without an environment nothing is checked
    world.ask("a", 9, agent=5)
    assert set(codes(world.hear() + world.hear()).values()) == {""}
