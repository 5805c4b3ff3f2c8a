"""Checks of gateways by `embodied serve` before it listens."""

import socket
from typing import Any

import pytest

from embodied.errors import ConfigError, UserError
from embodied.gateways.gateway import Gateway, gateway_of
from embodied.gateways.groot.server import GrootGateway
from embodied.gateways.openpi.server import OpenpiGateway
from tests.serving import tiny


def check(kind: type[Gateway[Any, Any]], address: str, embodiment: str = "native") -> None:
    gateway_of(kind, {"server": "ipc:///s", "address": address, "embodiment": embodiment}).check(tiny.SPEC)


@pytest.mark.parametrize("kind", [GrootGateway, OpenpiGateway])
def test_mistakes_are_told_before_anything_runs(kind: type[Gateway[Any, Any]]) -> None:
    check(kind, "127.0.0.1:0")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UserError, match=rf"port {port} is in use by process \d+ .*"):
            check(kind, f"127.0.0.1:{port}")
    for address, says in (("nowhere", "not an address"), ("0.0.0.0:0", "no api_key is given")):
        with pytest.raises(UserError, match=says):
            check(kind, address)
    with pytest.raises(UserError, match="embodiment aloha"):
        check(kind, "127.0.0.1:0", "aloha")


def test_groot_wants_a_section_of_its_own() -> None:
    with pytest.raises(ConfigError, match="it has no section groot"):
        check(GrootGateway, "127.0.0.1:0", "droid")
