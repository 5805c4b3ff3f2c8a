"""Edges that follow an upstream server over TCP: links cut, servers killed, rollbacks; each with its own registry."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest

from embodied.client import RemoteClient
from embodied.errors import CorruptFile, DeadlineExceeded, MessageError, UserError
from embodied.files import sealed
from embodied.weight_sync.upstream import UpstreamClient, UpstreamInfo
from embodied.weights.manifest import Version
from embodied.weights.registry import Registry
from embodied.wire.credentials import add_client, create_server
from tests.serving.tiny import SPEC, kill
from tests.weight_sync.edges import (
    BALLAST,
    BUILD,
    Proxy,
    heavy,
    publish,
    start_edge,
    start_upstream,
    status,
    wait_for,
    wait_until_serving,
)


class World:
    """Processes of a test, ended with it."""

    def __init__(self, folder: Path) -> None:
        self.above, self.stack = folder / "above", ExitStack()
        self.registry = Registry(self.above)

    def upstream(self, address: str = "tcp://127.0.0.1:0") -> tuple[BaseProcess, str]:
        process, bound = start_upstream(self.above, address)
        self.stack.callback(kill, process)
        return process, bound

    def edge(self, upstream: str, folder: Path, name: str = "arm", mbit: float = 0.0) -> tuple[BaseProcess, str]:
        process, bound = start_edge(upstream, folder, name, mbit)
        self.stack.callback(kill, process)
        return process, bound

    def proxy(self, target: str, rate: float = float("inf")) -> Proxy:
        proxy = Proxy(target, rate)
        self.stack.callback(proxy.close)
        return proxy


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    with made.stack:
        yield made


def adopted(folder: Path) -> list[int]:
    return [int(line["version"].split("-")[0]) for line in Registry(folder).audit() if line["event"] == "adopt"]


def test_two_edges_follow_one_of_them_late_and_go_back_with_upstream(world: World, tmp_path: Path) -> None:
    publish(world.registry, 1)
    _, above = world.upstream()
    _, one = world.edge(above, tmp_path / "one", "one")
    wait_until_serving(one, 1)
    publish(world.registry, 2)
    wait_until_serving(one, 2)
    _, two = world.edge(above, tmp_path / "two", "two", mbit=200.0)
    wait_until_serving(two, 2)
    second, first = world.registry.find("tiny", 2).label, world.registry.find("tiny", 1).label
    wait_for(lambda: {n: f["serving"] for n, f in status(above)["followers"].items()} == {"one": second, "two": second})
    world.registry.rollback("tiny", 1)
    wait_until_serving(one, 1)
    wait_until_serving(two, 1)  # which it had never had
    wait_for(lambda: {f["serving"] for f in status(above)["followers"].values()} == {first})
    Registry(tmp_path / "one").pin("tiny", 2)
    world.registry.resume("tiny")
    publish(world.registry, 3)
    wait_until_serving(two, 3)
    wait_for(lambda: 3 in adopted(tmp_path / "one"))
    wait_until_serving(one, 2)
    with (
        closing(RemoteClient(one)) as client,
        pytest.raises(UserError, match=f"this server follows another one .{above}.: push to that one"),
    ):
        client.push(world.registry.manifest("tiny", 3), heavy(3))
    found = status(one)["upstream"]
    assert found["state"] == "connected" and found["active"].startswith("3-") and found["error"] == ""


def test_a_cut_link_and_kills_on_both_sides(world: World, tmp_path: Path) -> None:
    publish(world.registry, 1)
    up, above = world.upstream()
    proxy = world.proxy(above, rate=1e6)
    process, edge = world.edge(proxy.address, tmp_path / "edge")
    wait_until_serving(edge, 1)
    proxy.most = proxy.passed + 3 * BALLAST // 4
    publish(world.registry, 2)
    wait_for(lambda: not proxy.open)
    wait_for(lambda: status(edge)["upstream"]["pulling"]["bytes"] > 0)
    here = status(edge)
    assert here["number"] == 1, "it serves on"
    kill(process)
    before = status(above)["handed_out"]
    proxy.restore()
    process, edge = world.edge(proxy.address, tmp_path / "edge")
    wait_until_serving(edge, 2)
    again = status(above)["handed_out"] - before
    assert again <= BALLAST + 100 - here["upstream"]["pulling"]["bytes"], "what had arrived was not asked again"
    kill(up)
    publish(world.registry, 3)
    assert status(edge)["number"] == 2
    world.upstream(above)
    wait_until_serving(edge, 3)
    assert adopted(tmp_path / "edge") == [1, 2, 3]


def test_an_edge_without_a_link_serves_what_it_kept(world: World, tmp_path: Path) -> None:
    first = publish(world.registry, 1)
    up, above = world.upstream()
    process, edge = world.edge(above, tmp_path / "edge")
    wait_until_serving(edge, 1)
    kill(up)
    kill(process)
    process, edge = world.edge(above, tmp_path / "edge")
    wait_until_serving(edge, 1)
    found = status(edge)
    assert found["upstream"]["state"] == "cut" and found["hash"] == first.hash
    another = UpstreamClient(above, tmp_path / "edge")
    assert not another.connect(0.1).fresh
    with pytest.raises(UserError, match=f"pid {process.pid} fetches versions into this folder already"):
        another.start(Registry(tmp_path / "edge"), heavy(0), lambda: Version(0, ""))


def test_no_link_and_nothing_kept_is_one_line(tmp_path: Path) -> None:
    address = "tcp://127.0.0.1:9"
    with pytest.raises(DeadlineExceeded, match=r"no answer to hello .* keeps nothing yet .*no server listens there"):
        UpstreamClient(address, tmp_path).connect(0.3)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "edge.json").write_text("{")
    with pytest.raises(CorruptFile, match="delete it and start with a link"):
        UpstreamClient(address, tmp_path).connect(0.3)
    (tmp_path / "edge.json").write_bytes(sealed({"policy": 7}))
    with pytest.raises(CorruptFile, match="does not say which policy"):
        UpstreamClient(address, tmp_path).connect(0.3)


def test_mistakes_are_named(tmp_path: Path) -> None:
    for wrong in ("tcp://10.0.0.1:5555", "http://127.0.0.1:1", "tcp://127.0.0.1"):
        with pytest.raises(UserError):
            UpstreamClient(wrong, tmp_path)
    with pytest.raises(UserError, match="bandwidth_mbit"):
        UpstreamClient("tcp://127.0.0.1:9", tmp_path, bandwidth_mbit=-1)
    with pytest.raises(UserError, match="connect"):
        UpstreamClient("tcp://127.0.0.1:9", tmp_path).start(Registry(tmp_path), heavy(0), lambda: Version(0, ""))
    assert UpstreamClient("tcp://127.0.0.1:9", tmp_path).status()["upstream"]["state"] == "cut"


def known(**build: Any) -> UpstreamInfo:
    return UpstreamInfo("served", SPEC, build)


def test_only_code_of_policies_is_made_on_upstreams_word() -> None:
    assert known(**BUILD).config() == BUILD
    for target in ("os.system", "policies", "policies.mlp", "policies.mlp.torch", "policies.mlp.Tensor",
                   "policies.mlp.build;x", "policiesx.mlp.build", "", None, 7):  # fmt: skip
        with pytest.raises(UserError, match=r"not of the package policies .*give policy\._target_"):
            known(target=target).config()
    mine = {"_target_": "mine.build", "size": 3}
    assert known(target="os.system").config(mine) == mine
    assert known(**BUILD).config({"size": 3}) == BUILD


def test_what_upstream_says_is_checked() -> None:
    good = {"policy": "served", "spec": SPEC.to_dict(), "build": BUILD}
    assert UpstreamInfo.from_hello(good).to_dict() == good
    harms: list[dict[str, Any]] = [
        {"policy": None},
        {"spec": "x"},
        {"spec": {}},
        {"spec": {**SPEC.to_dict(), "name": "../up"}},
        {"build": None},
        {"build": {"a": b"x"}},
        {"build": {"a": "x" * 2**19}},
    ]
    for harm in harms:
        with pytest.raises(MessageError):
            UpstreamInfo.from_hello({**good, **harm})


def test_an_edge_imports_no_simulator_and_no_ray() -> None:
    code = (
        "import sys, json, embodied.weight_sync.upstream, embodied.weight_sync.version_server, "
        "embodied.weight_sync.registry_watcher, embodied.serving.server; "
        "print(json.dumps([m for m in ('mujoco', 'ray', 'hydra') if m in sys.modules]))"
    )
    assert json.loads(subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout) == []


def test_keys_without_the_key_of_who_signs_are_refused(tmp_path: Path) -> None:
    create_server(tmp_path / "keys")
    carried = add_client(tmp_path / "keys", "arm", ["act"])
    upstream = UpstreamClient("tcp://192.0.2.1:5555", tmp_path / "edge", credentials=carried)
    upstream._info = UpstreamInfo("served", SPEC, BUILD)
    with pytest.raises(UserError, match=r"no signing.key in it, so no version could be checked"):
        upstream.start(Registry(tmp_path / "edge"), heavy(0), lambda: Version(0, ""))
    assert upstream.status()["upstream"]["final"] is False
