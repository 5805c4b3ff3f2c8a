"""Any range of any version that an upstream server has, and its record of edges."""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from embodied.errors import Busy, CorruptFile, EmbodiedError, MessageError, WeightsRefused
from embodied.serving.answer import Answer
from embodied.serving.versioned_policy import VersionedPolicy
from embodied.weight_sync.version_server import VersionServer
from embodied.weights.manifest import Manifest, Version
from embodied.weights.registry import Registry
from embodied.weights.transfer import RANGE_BYTES, Content, range_hash
from embodied.wire.message import Message, decode, encode
from tests.serving.tiny import SPEC, TinyPolicy, manifest, tensors

MANY = {
    "b": np.arange(700, dtype=np.float32).reshape(7, 100),
    "a.empty": np.zeros((0, 3), np.float64),
    "a": np.arange(13, dtype=np.uint8),
    "c.flag": np.array([True, False, True]),
    "z": np.array(5, np.int64),
    "big": np.random.default_rng(0).normal(size=1000).astype(np.float16),
}


def ask(server: VersionServer, **body: Any) -> Message:
    """The answer as it looks after its way over the wire."""
    found: list[Message] = []

    def send(kind: str, body: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
        found.append(decode([bytes(frame) for frame in encode(Message(kind, 1, body=dict(body), arrays=dict(arrays)))]))

    def refuse(error: EmbodiedError) -> None:
        raise error

    server.handle(Message("fetch", 1, body=body), Answer("session", send, refuse))
    limit = time.monotonic() + 20
    while not found:
        assert time.monotonic() < limit
        server.tick()
        time.sleep(0.0005)
    return found[0]


def ask_until(server: VersionServer, **body: Any) -> Message:
    end = time.monotonic() + 20
    while True:
        try:
            return ask(server, **body)
        except Busy:
            assert time.monotonic() < end
            time.sleep(0.005)


def publish(registry: Registry, given: Mapping[str, np.ndarray]) -> Manifest:
    return registry.publish("tiny", registry.reserve("tiny"), given, SPEC.to_dict())


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_any_range_is_what_the_content_says(tmp_path: Path, data: st.DataObject) -> None:
    registry = Registry(tmp_path)
    version = (publish(registry, MANY) if not registry.policies() else registry.manifest("tiny", 1)).label
    content = Content(MANY)
    offset = data.draw(st.integers(0, content.nbytes - 1))
    size = data.draw(st.integers(1, content.nbytes - offset))
    answer = ask(
        VersionServer(VersionedPolicy(TinyPolicy()), registry=registry),
        version=version,
        offset=offset,
        size=size,
    )
    np.testing.assert_array_equal(answer.arrays["data"], content.read(offset, size))
    assert answer.body == {
        "version": version,
        "offset": offset,
        "hash": range_hash(answer.arrays["data"]),
    }


def test_manifests_of_the_registry_and_of_the_version_wanted(tmp_path: Path) -> None:
    registry = Registry(tmp_path)
    server = VersionServer(
        VersionedPolicy(TinyPolicy()), registry=registry, build={"_target_": "policies.mlp.build"}, clock=lambda: now
    )
    now = 0.0
    with pytest.raises(WeightsRefused, match="initial weights are served"):
        ask(server, version="")
    first, second = publish(registry, tensors(1)), publish(registry, tensors(2))
    now = 1.0
    answer = ask(server, version="")
    assert Manifest.from_dict(answer.body["manifest"]) == second
    assert answer.body["build"] == {"_target_": "policies.mlp.build"} and answer.body["signature"] == ""
    assert ask(server, version=first.label).body["manifest"]["number"] == 1
    registry.pin("tiny", 1)
    now = 2.0
    assert Manifest.from_dict(ask(server, version="").body["manifest"]) == first


def test_what_a_host_serves_is_offered_without_a_registry() -> None:
    now = 0.0
    host = VersionedPolicy(TinyPolicy(), TinyPolicy())
    server = VersionServer(host, clock=lambda: now)
    host.switch(manifest(3), tensors(3))
    label = host.version.label
    assert server.status()["active"] == label
    content = Content(tensors(3))
    whole = ask_until(server, version=label, offset=0, size=content.nbytes)
    np.testing.assert_array_equal(whole.arrays["data"], content.read(0, content.nbytes))
    host.switch(manifest(4), tensors(4))
    again = ask(server, version=label, offset=5, size=9)  # the copy goes on while somebody asks
    np.testing.assert_array_equal(again.arrays["data"], content.read(5, 9))
    now = 70.0
    server.tick()
    with pytest.raises(WeightsRefused, match=f"version {label} is not kept here.*ask for {host.version.label}"):
        ask(server, version=label, offset=0, size=1)
    ask_until(server, version=host.version.label, offset=0, size=1)


def test_a_copy_that_was_switched_in_between_is_refused() -> None:
    class Swapped(TinyPolicy):
        def tensors(self) -> dict[str, np.ndarray]:
            return tensors(9)

    host = VersionedPolicy(Swapped())
    host.switch(manifest(3), tensors(3))
    server = VersionServer(host)
    with pytest.raises(WeightsRefused, match="is served no more"):
        ask_until(server, version=host.version.label, offset=0, size=1)


def test_a_deleted_version_stays_readable_while_it_is_asked_for(tmp_path: Path) -> None:
    now = 0.0
    registry = Registry(tmp_path, keep=1)
    server = VersionServer(VersionedPolicy(TinyPolicy()), registry=registry, clock=lambda: now)
    first = publish(registry, tensors(1)).label
    ask(server, version=first, offset=0, size=1)
    second = publish(registry, tensors(2)).label
    for _ in range(5):
        now += 50.0
        server.tick()
        ask(server, version=first, offset=0, size=1)
    now += 61.0
    server.tick()
    with pytest.raises(WeightsRefused, match=f"not kept here.*ask for {second}"):
        ask(server, version=first, offset=0, size=1)


def test_open_files_are_bounded(tmp_path: Path) -> None:
    registry = Registry(tmp_path, keep=30)
    server = VersionServer(VersionedPolicy(TinyPolicy()), registry=registry)
    labels = [publish(registry, tensors(tag)).label for tag in range(12)]
    for label in labels:
        ask(server, version=label, offset=0, size=1)
    assert len(server._open) == 8
    ask(server, version=labels[0], offset=0, size=1)


@pytest.mark.parametrize(
    "body",
    [
        {},
        {},
        {"version": "", "offset": None, "size": 5},
        {"version": 7},
        {"version": "../../etc"},
        {"version": "", "offset": -1, "size": 5},
        {"version": "", "offset": 0, "size": 0},
        {"version": "", "offset": 0, "size": RANGE_BYTES + 1},
        {"version": "", "offset": 95, "size": 6},
        {"version": "", "offset": 2**62, "size": 2**62},
        {"version": "", "offset": True, "size": 1},
        {"version": "", "offset": 1.0, "size": "all"},
    ],
)
def test_malformed_requests_are_named(tmp_path: Path, body: dict[str, Any]) -> None:
    registry = Registry(tmp_path)
    publish(registry, tensors(1))
    with pytest.raises(MessageError):
        ask(VersionServer(VersionedPolicy(TinyPolicy()), registry=registry), **body)


def test_unknown_versions_and_damaged_files(tmp_path: Path) -> None:
    registry = Registry(tmp_path)
    server = VersionServer(VersionedPolicy(TinyPolicy()), registry=registry)
    with pytest.raises(WeightsRefused, match="version 5-0123456789ab is not kept here"):
        ask(server, version="5-0123456789ab")
    path = registry.path("tiny", publish(registry, tensors(1)).version) / "model.safetensors"
    whole = path.read_bytes()
    for harmed in (b"", whole[:4], b"\xff" * 8 + whole[8:], whole[:8] + b"x" * (len(whole) - 8), whole[:-8]):
        path.write_bytes(harmed)
        with pytest.raises(CorruptFile, match="safetensors"):
            ask(server, version=path.parent.name, offset=0, size=100)
    path.write_bytes(whole)
    assert ask(server, version=path.parent.name, offset=0, size=100).arrays["data"].size == 100


def test_followers_are_heard_bounded_and_forgotten() -> None:
    now = 0.0
    server = VersionServer(VersionedPolicy(TinyPolicy()), clock=lambda: now)
    label = Version(3, "ab12cd34ef56").label
    server.record_edge("s1", {"follow": {"name": "arm-1", "serving": ""}})
    now = 5.0
    server.record_edge("s1", {"follow": {"name": "arm-2", "serving": label}})
    now = 7.0
    assert server.status()["followers"] == {
        "arm-1": {"serving": "", "heard_s": 7.0},
        "arm-2": {"serving": label, "heard_s": 2.0},
    }
    for follow in (None, 3, {}, {"name": "", "serving": ""}, {"name": "x" * 101, "serving": ""}, {"name": "x"},
                   {"name": "x", "serving": "latest"}):  # fmt: skip
        with pytest.raises(MessageError):
            server.record_edge("s1", {"follow": follow})
    for i in range(300):
        server.record_edge("s2", {"follow": {"name": f"many-{i}", "serving": ""}})
    assert len(server.status()["followers"]) == 256 and "many-299" in server.status()["followers"]
    now = 3606.0
    server.record_edge("s1", {"follow": {"name": "arm-3", "serving": ""}})
    now = 3608.0
    server.tick()
    assert list(server.status()["followers"]) == ["arm-3"]
