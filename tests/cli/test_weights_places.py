"""Places where `embodied weights` moves pointers: states of a registry or a server, and their errors."""

from pathlib import Path

import numpy as np
import pytest

from embodied.cli import weights
from embodied.cli.weights_places import OnServer
from embodied.errors import InfrastructureError
from embodied.weight_sync.upstream import UpstreamClient
from embodied.weights.pointers import Pointers
from embodied.weights.registry import Registry
from embodied.wire.endpoint import Requester
from embodied.wire.message import Message
from tests.cli.command import embodied, one_line


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    registry = Registry(tmp_path / "w")
    for _ in range(4):
        number = registry.reserve("mlp")
        registry.publish("mlp", number, {"w": np.full(2, number, np.float32)}, {"name": "mlp"})
    return registry.folder


def test_a_damaged_version_is_not_pinned(folder: Path, tmp_path: Path) -> None:
    file = Registry(folder).path("mlp", Registry(folder).find("mlp", 2)) / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1])
    for action in ("pin", "rollback"):
        line = one_line(embodied("weights", action, "2", f"weights={folder}", folder=tmp_path), status=3)
        assert str(file) in line and "use another version" in line
    assert Registry(folder).pointers("mlp") == Pointers()


def test_no_server_is_said_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Requester, "request", lambda *_, **__: pytest.fail("it is asked"))
    with pytest.raises(InfrastructureError, match=r"there is no such socket \(ipc://.*none\)") as caught:
        weights.main(["status", f"address=ipc://{tmp_path}/none"])
    assert caught.value.exit_status == 3


def test_an_edge_says_how_its_link_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    address = f"ipc://{tmp_path}/up"
    told = {"policy": "mlp", "number": 20, "hash": "ab12cd34ef56", "active": "20-ab12cd34ef56", "handed_out": 7,
            "newest": "21-ab12cd34ef56",
            "upstream": UpstreamClient(address, tmp_path).status()["upstream"]}  # fmt: skip
    (tmp_path / "edge").touch()
    place = OnServer(f"ipc://{tmp_path}/edge", None, "", 1.0)
    pulling = {"version": "22-ab12cd34ef56", "bytes": 1_500_000, "of": 4_000_000, "mbit_s": 2.5}
    linked = {
        "address": address,
        "state": "connected",
        "silent_s": 0.3,
        "active": "22-ab12cd34ef56",
        "error": "no room",
    }
    cut = {**linked, "state": "cut", "silent_s": 71.0, "error": ""}
    for upstream, expected in (
        ({}, f"upstream: {address} cut, silent for ? s"),
        ({**linked, "pulling": pulling}, f"upstream: {address} connected, wants 22-ab12cd34ef56, fetching "
         "22-ab12cd34ef56: 1.5 of 4.0 MB at 2.5 Mbit/s, last error: no room"),
        (cut, f"upstream: {address} cut, silent for 71.0 s, wants 22-ab12cd34ef56"),
    ):  # fmt: skip
        state = {**told, "upstream": upstream or told["upstream"]}
        place._asker.request = lambda *_, state=state, **__: Message("status", 1, body=state)  # type: ignore[method-assign]
        weights._show_state(place, place.state())
        shown = capsys.readouterr().out
        assert expected in shown.splitlines() and "handed_out" not in shown
        assert "active:  20-ab12cd34ef56 (older, as upstream wants; newest is 21-ab12cd34ef56)" in shown


def test_a_move_waits_for_the_switch_and_says_if_there_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    served, active = "4-ab12cd34ef56", "2-ab12cd34ef56"
    troubles = ["", "", "", "it does not fit"]
    asked: list[str] = []

    def request(self: Requester, kind: str, **_: object) -> Message:
        asked.append(kind)
        number = int(active[0]) if not troubles and "set_active" in asked else 4
        body = {"policy": "mlp", "number": number, "hash": "ab12cd34ef56", "active": active}
        return Message(kind, 1, body={**body, "trouble": troubles.pop(0) if troubles else ""})

    monkeypatch.setattr(Requester, "request", request)
    (tmp_path / "there").touch()
    place = OnServer(f"ipc://{tmp_path}/there", None, "", 1.0, switch_s=60.0)
    with pytest.raises(
        InfrastructureError, match=f"pointers moved, but the server still serves {served}: it does not"
    ) as caught:
        place.pin(2, "me")
    assert caught.value.exit_status == 3 and asked == ["status", "set_active", "status", "status"]
    asked.clear()
    troubles[:] = ["", "", ""]
    assert place.pin(2, "me")["served"] == active
    monkeypatch.setattr(
        Requester,
        "request",
        lambda *_, **__: Message(
            "status", 1, body={"policy": "mlp", "number": 4, "hash": "ab12cd34ef56", "active": active, "trouble": ""}
        ),
    )
    with pytest.raises(InfrastructureError, match="it is still loading"):
        OnServer(f"ipc://{tmp_path}/there", None, "", 1.0, switch_s=0.1).rollback(None, "me", "")
