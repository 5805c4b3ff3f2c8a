import os
import socket
from pathlib import Path

import pytest
import zmq

from embodied.errors import UserError
from embodied.wire import addresses
from embodied.wire.credentials import PERMISSIONS, list_clients
from embodied.wire.endpoint import Requester


@pytest.fixture
def router():
    context = zmq.Context()
    yield context.socket(zmq.ROUTER)
    context.destroy(linger=0)


@pytest.mark.parametrize(
    "address",
    ["", "5555", "tcp://127.0.0.1", "tcp://127.0.0.1:99999", "http://a:1", "inproc://x", "ipc://", "ipc://@abstract",
     "tcp://a b:1", "ipc://" + "x" * 200],
)  # fmt: skip
def test_malformed_addresses(address: str) -> None:
    with pytest.raises(UserError) as caught:
        addresses.check(address)
    assert caught.value.fix and "\n" not in caught.value.line()


@pytest.mark.parametrize(
    "address", ["tcp://0.0.0.0:0", "tcp://*:5000", "tcp://192.0.2.1:5000", "tcp://[::]:5000", "tcp://eth0:1"]
)
def test_listening_beyond_loopback_needs_credentials(router: zmq.Socket[bytes], address: str) -> None:
    with pytest.raises(UserError, match="no credentials are given"):
        addresses.bind(router, address)


@pytest.mark.parametrize("address", ["tcp://10.0.0.1:5555", "tcp://[::ffff:10.0.0.1]:1", "tcp://trainer.lan:5000"])
def test_calling_beyond_loopback_needs_credentials(router: zmq.Socket[bytes], address: str, tmp_path: Path) -> None:
    for call in (lambda: addresses.connect(router, address), lambda: Requester(address)):
        with pytest.raises(UserError, match="no credentials are given") as caught:
            call()
        assert "\n" not in caught.value.line()
    addresses.check_call(address, tmp_path)
    for local in ("tcp://127.0.0.1:5000", "tcp://[::1]:5000", "tcp://localhost:5000", f"ipc://{tmp_path}/x"):
        addresses.check_call(local)


@pytest.mark.parametrize("address", ["tcp://127.0.0.1:0", "tcp://localhost:0"])
def test_a_free_port_is_told(router: zmq.Socket[bytes], address: str) -> None:
    bound = addresses.bind(router, address)
    assert bound.startswith("tcp://127.0.0.1:") and not bound.endswith(":0")


def test_a_port_in_use_names_its_holder(router: zmq.Socket[bytes]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(UserError, match=f"port {port} is in use by process .*python"):
            addresses.bind(router, f"tcp://127.0.0.1:{port}")


def test_an_address_of_another_machine(router: zmq.Socket[bytes], tmp_path: Path) -> None:
    addresses.create_credentials(tmp_path / "keys")
    with pytest.raises(UserError, match="no such network address"):
        addresses.bind(router, "tcp://192.0.2.1:5000", tmp_path / "keys")


def test_socket_paths(router: zmq.Socket[bytes], tmp_path: Path) -> None:
    with pytest.raises(UserError, match="mkdir -p"):
        addresses.bind(router, f"ipc://{tmp_path}/missing/socket")
    with pytest.raises(UserError, match="mkdir -p"):
        addresses.connect(router, f"ipc://{tmp_path}/missing/socket")
    (tmp_path / "notes.txt").write_text("precious")
    with pytest.raises(UserError, match="no socket is in the way"):
        addresses.bind(router, f"ipc://{tmp_path}/notes.txt")
    assert (tmp_path / "notes.txt").read_text() == "precious"
    stale = socket.socket(socket.AF_UNIX)
    stale.bind(str(tmp_path / "socket"))
    stale.close()
    assert addresses.bind(router, f"ipc://{tmp_path}/socket") == f"ipc://{tmp_path}/socket"
    assert (tmp_path / "socket").stat().st_mode & 0o777 == 0o600
    with (
        zmq.Context() as context,
        context.socket(zmq.ROUTER) as second,
        pytest.raises(UserError, match="another server"),
    ):
        addresses.bind(second, f"ipc://{tmp_path}/socket")


def test_credentials(router: zmq.Socket[bytes], tmp_path: Path) -> None:
    with pytest.raises(UserError, match="embodied credentials create"):
        addresses.bind(router, "tcp://127.0.0.1:0", tmp_path)
    addresses.create_credentials(tmp_path)
    with pytest.raises(UserError, match="credentials exist"):
        addresses.create_credentials(tmp_path)
    for name in ("server", "client"):
        assert (tmp_path / f"{name}.key_secret").stat().st_mode & 0o077 == 0
    assert [client.permissions for client in list_clients(tmp_path)] == [frozenset(PERMISSIONS)]
    (tmp_path / "server.key_secret").write_text((tmp_path / "server.key").read_text())
    with pytest.raises(UserError, match="secret half"):
        addresses.bind(router, "tcp://127.0.0.1:0", tmp_path)


def test_a_bare_name_is_a_socket_in_the_users_own_folder(
    router: zmq.Socket[bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    addresses.check_call("ipc://policy")  # the server may come later
    assert addresses.bind(router, "ipc://policy") == f"ipc://{tmp_path}/embodied/policy"
    assert (tmp_path / "embodied").stat().st_mode & 0o777 == 0o700
    assert Requester("ipc://policy").address == f"ipc://{tmp_path}/embodied/policy"
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    assert addresses.resolve("ipc://policy").endswith(f"/embodied-{os.geteuid()}/policy")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a socket of another user")
def test_a_socket_or_folder_of_another_user_is_refused(router: zmq.Socket[bytes], tmp_path: Path) -> None:
    other = socket.socket(socket.AF_UNIX)
    other.bind(str(tmp_path / "policy"))
    for place in (tmp_path / "policy", tmp_path):
        os.chown(place, 12345, 12345)
        for call in (addresses.connect, addresses.bind):
            with pytest.raises(UserError, match="belongs to another user, number 12345"):
                call(router, f"ipc://{tmp_path}/policy")
        os.chown(place, 0, 0)
    other.close()
