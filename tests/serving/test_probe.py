"""A server shows its version, its tensors and how it sees an observation, to whoever may push."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from embodied.client import LocalClient, RemoteClient
from embodied.data import Observation
from embodied.errors import DataError, MessageError, SpecMismatch, UserError
from embodied.serving.answer import Caller
from embodied.serving.versioned_policy import VersionedPolicy
from embodied.weights.manifest import Manifest
from embodied.wire.codecs import observation_to_arrays
from embodied.wire.message import SMALL, Message, decode, encode
from embodied.wire.probe import PROBE_ROWS, ProbeResult, probe_from_message, probe_to_message
from tests.learning.planted import film, seen
from tests.serving.shown import ShownPolicy, serve_shown
from tests.serving.tiny import kill, manifest, observation, start_server, tensors
from tests.serving.world import World, codes


def same(one: ProbeResult, two: ProbeResult) -> None:
    assert (one.number, one.hash, one.tensors, list(one.steps)) == (two.number, two.hash, two.tensors, list(two.steps))
    for name, array in one.steps.items():
        np.testing.assert_array_equal(array, two.steps[name], err_msg=name)
        assert array.dtype == two.steps[name].dtype


def test_the_tensors_shown_are_those_served_and_listed_as_in_the_manifest() -> None:
    host = VersionedPolicy(film())
    learned = film(seed=3).tensors()
    listed = Manifest.of("film", 4, learned, host.spec.to_dict())
    host.switch(listed, learned)
    shown = LocalClient(host).probe(seen(2))
    assert (shown.number, shown.hash) == listed.version
    assert shown.tensors == {name: (tensor.dtype, tensor.hash) for name, tensor in listed.tensors.items()}
    assert shown.steps["pictures/front_rgb"].shape == (2, 32, 32, 3) and shown.steps["state"].shape == (2, 3)


def test_a_policy_without_a_probe_shows_its_tensors() -> None:
    world = World()
    world.host.switch(manifest(5), tensors(5))
    shown = world.host.probe(observation(1))
    assert shown.number == 5 and set(shown.tensors) == {"weight", "tag"} and shown.steps == {}


@pytest.mark.parametrize("rows", [0, PROBE_ROWS + 1])
def test_few_rows_are_looked_at(rows: int) -> None:
    with pytest.raises(UserError, match=f"a probe of {rows} rows .*: send 1 to {PROBE_ROWS}"):
        VersionedPolicy(film()).probe(seen(rows))


def test_a_probe_is_checked_as_an_act_is() -> None:
    host, rows = VersionedPolicy(film()), seen(1)
    with pytest.raises(SpecMismatch, match="front_rgb"):
        host.probe(Observation(rows.rows, {n: a for n, a in rows.streams.items() if n != "front_rgb"}, rows.time))
    rows.streams["joint_pos"][0, 0] = np.nan
    with pytest.raises(DataError, match="joint_pos is not finite"):
        host.probe(rows)


def ask(world: World, id: int, rows: int = 1, **fields: Any) -> None:
    world.say("a", "probe", id, arrays=observation_to_arrays(observation(rows)), **fields)


def test_a_station_answers_one_probe_between_two_batches() -> None:
    world = World()
    ask(world, 1)
    ask(world, 2)
    answers = world.hear()
    assert codes(answers) == {2: "busy", 1: ""}
    ask(world, 3)
    (_, answer), *rest = world.hear()
    assert not rest and (answer.kind, answer.id) == ("probe", 3)
    assert probe_from_message(answer.body, answer.arrays).number == 0


def test_what_is_no_probe_is_refused() -> None:
    world = World()
    ask(world, 1, rows=PROBE_ROWS + 1)
    world.say("a", "probe", 2)
    arrays = observation_to_arrays(observation(1))
    world.say("a", "probe", 3, arrays={name: array for name, array in arrays.items() if "joint_pos" not in name})
    ask(world, 4, caller=Caller("robot", frozenset({"act"})))
    assert codes(world.hear()) == {1: "user", 2: "message", 3: "spec_mismatch", 4: "unauthorized"}


def test_a_policy_that_cannot_be_looked_into_fails_its_probe_alone(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(type(World().policy)):  # type: ignore[misc]
        def probe(self, observation: Observation) -> dict[str, np.ndarray]:
            raise RuntimeError("a bug")

    world = World()
    world.policy.__class__ = Broken
    ask(world, 1)
    (_, answer), *_ = world.hear()
    assert answer.kind == "error" and "RuntimeError: a bug" in answer.body["what"]
    world.ask("a", 2)
    world.now += 1.0
    assert codes(world.hear()) == {2: ""}


def test_over_the_wire_and_back() -> None:
    shown = VersionedPolicy(film()).probe(seen(3))
    body, arrays = probe_to_message(shown)
    message = decode([bytes(frame) for frame in encode(Message("probe", 1, "s", "film", 0, body, arrays))])
    same(probe_from_message(message.body, message.arrays), shown)


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@given(st.sampled_from(["number", "hash", "steps"]), PLAIN, st.binary(max_size=40), st.booleans())
def test_malformed_answers_are_told(field: str, value: Any, listed: bytes, replaced: bool) -> None:
    body, arrays = probe_to_message(ProbeResult(3, "ab", {"w": ("float32", "00")}, {"state": np.zeros(2, np.float32)}))
    body[field] = value
    if replaced:
        arrays["tensors"] = np.frombuffer(listed, np.uint8)
    try:
        found = probe_from_message(body, arrays)
    except MessageError:
        return
    assert type(found.number) is int and type(found.hash) is str and set(found.steps) <= {"state"}
    assert all(type(text) is str for pair in found.tensors.values() for text in pair)


def test_a_server_process_shows_what_a_host_here_does(tmp_path: Path) -> None:
    process, _, address = start_server(f"ipc://{tmp_path}/policy", serve_shown)
    client = RemoteClient(address, timeout_s=60)
    try:
        client.hello()
        here = VersionedPolicy(ShownPolicy())
        for target in (client, LocalClient(here)):
            target.push(manifest(4), tensors(4))
        rows = observation(PROBE_ROWS)
        more = replace(rows, streams={**rows.streams, "goal": np.zeros((PROBE_ROWS, 3), np.float32)})
        found = client.probe(more)
        assert found.number == 4 and found.steps["pictures/camera"].nbytes > SMALL
        same(found, here.probe(rows))
        with pytest.raises(UserError, match="a probe of 5 rows"):
            client.probe(observation(PROBE_ROWS + 1))
        assert client.act(rows, rows.rows.noise_keys(0), "mean").versions.tolist() == [4] * PROBE_ROWS
    finally:
        client.close()
        kill(process)
