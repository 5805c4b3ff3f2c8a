"""Checks of gateways by `embodied serve` before it listens."""

import socket
from typing import Any

import pytest

from embodied.errors import ConfigError, UserError
from embodied.gateways.groot import server as groot
from embodied.gateways.openpi import server as openpi
from tests.serving import tiny


@pytest.mark.parametrize("made", [groot, openpi])
def test_mistakes_are_told_before_anything_runs(made: Any) -> None:
    settings: Any = made.GrootSettings if made is groot else made.OpenpiSettings
    made.check(settings("ipc:///s", "127.0.0.1:0"), tiny.SPEC)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UserError, match=rf"port {port} is in use by process \d+ .*"):
            made.check(settings("ipc:///s", f"127.0.0.1:{port}"), tiny.SPEC)
    for address, says in (("nowhere", "not an address"), ("0.0.0.0:0", "no api_key is given")):
        with pytest.raises(UserError, match=says):
            made.check(settings("ipc:///s", address), tiny.SPEC)
    with pytest.raises(UserError, match="embodiment aloha"):
        made.check(settings("ipc:///s", "127.0.0.1:0", embodiment="aloha"), tiny.SPEC)


def test_groot_wants_a_section_of_its_own() -> None:
    settings = groot.GrootSettings("ipc:///s", "127.0.0.1:0", embodiment="droid")
    with pytest.raises(ConfigError, match="it has no section groot"):
        groot.check(settings, tiny.SPEC)
