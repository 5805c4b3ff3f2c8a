"""A policy behind two hops: our GR00T policy asks our GR00T gateway, which asks our server."""

import time
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import numpy as np
import pytest

from embodied.client import RemoteClient
from embodied.errors import InfrastructureError, Unauthorized
from embodied.gateways.groot.policy import GrootPolicy
from embodied.gateways.groot.server import run
from embodied.gateways.launcher import GatewayLauncher
from embodied.serving.versioned_policy import VersionedPolicy
from tests.gateways.groot.client import GrootClient
from tests.gateways.groot.gateway import gateway
from tests.serving import tiny


@pytest.fixture(scope="module")
def addresses(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """Of the server and of the gateway."""
    with tiny.server(f"ipc://{tmp_path_factory.mktemp('loop')}/s") as server, gateway(server, api_key="key") as found:
        yield server, found


@pytest.mark.parametrize(
    "options", [{"generation": "n1.5"}, {"generation": "n1.6"}, {"generation": "n1.6", "flat": True}]
)
@pytest.mark.parametrize("rows", [1, 5])
def test_the_same_actions_come_back(addresses: tuple[str, str], options: dict[str, Any], rows: int) -> None:
    server, at = addresses
    seen = tiny.observation(rows, seed=4)
    far = GrootPolicy("far", tiny.AGENT, at, chunk=3, api_key="key", timeout_s=20, **options)
    with closing(RemoteClient(server, timeout_s=20)) as direct, closing(far):
        wanted = direct.act(seen, seen.rows.noise_keys(0), "mean")
        given = VersionedPolicy(far).act(seen, seen.rows.noise_keys(0), "mean")
    np.testing.assert_array_equal(given.actions, wanted.actions)
    assert np.isnan(given.log_probs).all()


def test_what_the_gateway_refuses_is_said(addresses: tuple[str, str]) -> None:
    _, at = addresses
    seen = tiny.observation(65)
    far = GrootPolicy("far", tiny.AGENT, at, chunk=3, api_key="key", timeout_s=20, max_rows=65)
    with closing(far), pytest.raises(InfrastructureError, match="has 65 rows"):
        far.act(seen, seen.rows.noise_keys(0), "mean")
    split = GrootPolicy("far", tiny.AGENT, at, chunk=3, api_key="key", timeout_s=20)
    with closing(split):
        assert len(split.act(seen, seen.rows.noise_keys(0), "mean").actions) == 65
    stranger = GrootPolicy("far", tiny.AGENT, at, chunk=3, timeout_s=20)
    with closing(stranger), pytest.raises(Unauthorized, match="Invalid API token"):
        stranger.act(seen, seen.rows.noise_keys(0), "mean")


def test_a_permitted_kill_reaches_whoever_started_the_gateway(addresses: tuple[str, str]) -> None:
    lines: list[str] = []
    values = {"server": addresses[0], "address": "127.0.0.1:0", "api_key": "key"}
    started = GatewayLauncher({"groot": (run, values)}, lines.append)
    started.start()
    try:
        (line,) = started.wait_ready(60)
        with GrootClient(line.rpartition(" at ")[2], "key") as client:
            assert client.ping()["status"] == "ok" and not started.check()
            assert client.call("kill") is None
        end = time.monotonic() + 60
        while not started.check():
            assert time.monotonic() < end
            time.sleep(0.01)
    finally:
        started.close()
