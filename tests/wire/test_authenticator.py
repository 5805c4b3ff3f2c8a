"""Clients with keys over real sockets, and the list of who is let in."""

import logging
import os
import resource
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest
import zmq
from hypothesis import given
from hypothesis import strategies as st

from embodied.errors import CorruptFile, UserError
from embodied.wire import addresses
from embodied.wire.authenticator import AllowList, authenticator
from embodied.wire.credentials import (
    PERMISSIONS,
    add_client,
    create_server,
    is_key,
    list_clients,
    read_client,
    remove_client,
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    create_server(tmp_path / "keys")
    return tmp_path / "keys"


@contextmanager
def listening(folder: Path) -> Iterator[tuple["zmq.Socket[bytes]", str, AllowList]]:
    """A ROUTER behind a authenticator, its address, and who is let in."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    allowed = AllowList(folder)
    guard = authenticator(context, allowed)
    try:
        router = context.socket(zmq.ROUTER)
        yield router, addresses.bind(router, "tcp://127.0.0.1:0", folder), allowed
    finally:
        guard.stop()
        context.destroy(linger=0)


@contextmanager
def calling(address: str, keys: Path | None) -> Iterator["zmq.Socket[bytes]"]:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    try:
        dealer = context.socket(zmq.DEALER)
        dealer.immediate = True
        dealer.reconnect_ivl = 20
        addresses.connect(dealer, address, keys)
        yield dealer
    finally:
        context.destroy(linger=0)


def ask(dealer: "zmq.Socket[bytes]", router: "zmq.Socket[bytes]", allowed: AllowList) -> object:
    """Name of the client by the router."""
    assert dealer.poll(5000, zmq.POLLOUT), "not let in"
    dealer.send(b"x")
    assert router.poll(5000)
    frames = router.recv_multipart(copy=False)
    return allowed.caller(str(frames[-1].get("User-Id")))


def test_the_router_knows_who_asks_and_what_they_may(folder: Path) -> None:
    robot, learner = add_client(folder, "robot", ["act"]), add_client(folder, "learner", ["act", "push"])
    with (
        listening(folder) as (router, address, allowed),
        calling(address, robot) as one,
        calling(address, learner) as two,
    ):
        assert ask(one, router, allowed) == ("robot", frozenset({"act"}))
        assert ask(two, router, allowed) == ("learner", frozenset({"act", "push"}))
        add_client(folder, "robot", ["administer"])
        allowed.look()
        assert ask(one, router, allowed) == ("robot", frozenset({"administer"}))
        remove_client(folder, "robot")
        allowed.look()
        assert ask(one, router, allowed) is None
        assert ask(two, router, allowed) is not None


def test_who_comes_later_is_let_in_at_once_by_a_running_server(folder: Path) -> None:
    with listening(folder) as (router, address, allowed):
        for name in ("one", "two", "three"):
            allowed._looked = time.monotonic() + 3600
            with calling(address, add_client(folder, name, ["act"])) as dealer:
                assert ask(dealer, router, allowed) == (name, frozenset({"act"}))


def test_strangers_stay_out_and_their_key_is_told_once(
    folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    robot = add_client(folder, "robot", ["act"])
    create_server(tmp_path / "other")
    stranger = add_client(tmp_path / "other", "robot", ["act"])
    assert robot is not None and stranger is not None
    (stranger / "server.key").write_bytes((robot / "server.key").read_bytes())
    wrong = tmp_path / "wrong"
    wrong.mkdir()
    for name in ("client.key", "client.key_secret"):
        (wrong / name).write_bytes((robot / name).read_bytes())
        (wrong / name).chmod(0o600)
    (wrong / "server.key").write_bytes((tmp_path / "other" / "server.key").read_bytes())
    with (
        caplog.at_level(logging.WARNING, "embodied.wire.authenticator"),
        listening(folder) as (router, address, allowed),
    ):
        for keys in (None, stranger, wrong, stranger):
            with calling(address, keys) as dealer:
                assert not dealer.poll(300, zmq.POLLOUT)
        limit = time.monotonic() + 10
        while not caplog.records and time.monotonic() < limit:
            time.sleep(0.01)
        (line,) = [record.getMessage() for record in caplog.records if record.name == "embodied.wire.authenticator"]
        key = line.rpartition("key='")[2].rstrip("'")
        assert f"embodied credentials add {folder} NAME permission=act key='" in line
        add_client(folder, "friend", ["act"], key)
        allowed.look()
        with calling(address, stranger) as dealer:
            assert ask(dealer, router, allowed) == ("friend", frozenset({"act"}))


def test_without_an_authenticator_every_client_is_refused(folder: Path) -> None:
    robot = add_client(folder, "robot", ["act"])
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    try:
        address = addresses.bind(context.socket(zmq.ROUTER), "tcp://127.0.0.1:0", folder)
        with calling(address, robot) as dealer:
            assert not dealer.poll(300, zmq.POLLOUT)
    finally:
        context.destroy(linger=0)


def test_an_authenticator_closes_once_even_after_its_thread_failed(folder: Path) -> None:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    one = authenticator(context, AllowList(folder))
    one.stop()
    one.stop()
    assert not one.thread.is_alive()
    two = authenticator(context, AllowList(folder))
    two._stopper.send(b"")
    two.thread.join(10)
    two.stop()
    authenticator(context, AllowList(folder)).stop()
    context.destroy(linger=0)


def test_credentials_over_ipc(folder: Path, tmp_path: Path) -> None:
    robot = add_client(folder, "robot", ["act"])
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    allowed = AllowList(folder)
    guard = authenticator(context, allowed)
    try:
        router = context.socket(zmq.ROUTER)
        address = addresses.bind(router, f"ipc://{tmp_path}/socket", folder)
        with calling(address, robot) as dealer:
            assert ask(dealer, router, allowed) == ("robot", frozenset({"act"}))
    finally:
        guard.stop()
        context.destroy(linger=0)


def test_a_removed_list_lets_nobody_in(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    add_client(folder, "robot", ["act"])
    (robot,) = list_clients(folder)
    allowed = AllowList(folder)
    assert allowed.caller(robot.key) is not None and allowed.callback("*", robot.key.encode())
    (folder / "allowed").rename(folder / "gone")
    assert allowed.caller(robot.key) is not None, "no look yet"
    allowed.look()
    assert allowed.caller(robot.key) is None and "nobody is let in" in caplog.text
    (folder / "gone").rename(folder / "allowed")
    allowed.look()
    assert allowed.caller(robot.key) is not None


def test_a_list_that_cannot_be_read_stays_as_it_was(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    add_client(folder, "robot", ["act"])
    (robot,) = list_clients(folder)
    path, allowed = folder / "allowed" / "robot.key", AllowList(folder)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        with ExitStack() as files:
            resource.setrlimit(resource.RLIMIT_NOFILE, (64 + len(list(Path("/proc/self/fd").iterdir())), limits[1]))
            with suppress(OSError):
                while True:
                    files.enter_context(Path(os.devnull).open())
            for _ in range(3):
                allowed.look()
                assert allowed.caller(robot.key) == ("robot", frozenset({"act"}))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert caplog.text.count("cannot be read") == 1
    path.unlink()
    os.mkfifo(path)
    for _ in range(3):
        allowed.look()
        assert allowed.caller(robot.key) == ("robot", frozenset({"act"}))
    assert caplog.text.count("stays let in as before") == 1
    path.unlink()
    allowed.look()
    assert allowed.caller(robot.key) is None


def test_one_bad_file_harms_only_its_client(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    add_client(folder, "robot", ["act"])
    (robot,) = list_clients(folder)
    good = (folder / "allowed" / "robot.key").read_text()
    bad = {
        "empty": "", "binary": "\xff\xfe", "roleless": good.replace("act", ""), "king": good.replace("act", "king"),
        "no client": good, "short": good.replace(robot.key, robot.key[:-1]), "twin": good, "long": good + "#" * 2**17,
    }  # fmt: skip
    for name, text in bad.items():
        (folder / "allowed" / f"{name}.key").write_bytes(text.encode("latin-1"))
    allowed = AllowList(folder)
    assert allowed.caller(robot.key) == ("robot", frozenset({"act"}))
    assert len(allowed._clients) == 1 and all(f"{name}.key" in caplog.text for name in bad)
    told = len(caplog.records)
    allowed.look()
    assert allowed.caller(robot.key) is not None and len(caplog.records) == told
    for name in bad:
        if name != "twin":
            with pytest.raises(CorruptFile) as caught:
                read_client(folder / "allowed" / f"{name}.key")
            assert "\n" not in caught.value.line()


def test_a_change_in_place_without_a_new_time_stamp_is_seen(folder: Path) -> None:
    add_client(folder, "robot", ["act"])
    (robot,) = list_clients(folder)
    path = folder / "allowed" / "robot.key"
    allowed = AllowList(folder)
    assert allowed.caller(robot.key) == ("robot", frozenset({"act"}))
    stamp = path.stat().st_mtime_ns
    path.write_text(path.read_text().replace("= act", "=push"))
    os.utime(path, ns=(stamp, stamp))
    allowed.look()
    assert allowed.caller(robot.key) == ("robot", frozenset({"push"}))


def test_many_refused_credentials_fill_neither_memory_nor_log(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    now = [0.0]
    allowed = AllowList(folder, clock=lambda: now[0])
    keys = [zmq.curve_keypair()[0] for _ in range(100)]
    for key in keys + keys:
        assert not allowed.callback("*", key)
    assert len(caplog.records) == len(allowed._told) == 32
    now[0] = 61.0
    assert not allowed.callback("*", keys[0]) and len(caplog.records) == 33 and len(allowed._told) == 1
    assert not allowed.callback("*", b"\xff" * 40)


def test_a_list_that_is_read_while_it_is_written_always_knows_who_stays(folder: Path) -> None:
    add_client(folder, "robot", ["act"])
    (robot,) = list_clients(folder)
    allowed, ended = AllowList(folder), threading.Event()

    def write() -> None:
        for count in range(30):
            add_client(folder, f"other{count % 3}", [PERMISSIONS[count % 2]])
            remove_client(folder, f"other{count % 3}")
        ended.set()

    writer = threading.Thread(target=write)
    writer.start()
    while not ended.is_set():
        allowed.look()
        assert allowed.caller(robot.key) == ("robot", frozenset({"act"}))
        time.sleep(0)
    writer.join()


def test_permissions_change_and_credentials_stay(folder: Path) -> None:
    for name in ("signing.key", "signing.key_secret"):
        (folder / name).write_text(name)
        (folder / name).chmod(0o600)
    robot = add_client(folder, "robot", ["act"])
    assert robot == folder / "clients" / "robot"
    (before,) = list_clients(folder)
    assert sorted(path.name for path in robot.iterdir()) == [
        "client.key", "client.key_secret", "server.key", "signing.key"]  # fmt: skip
    add_client(folder, "robot", ["push", "act"])
    (after,) = list_clients(folder)
    assert after == before._replace(permissions=frozenset({"act", "push"})) and (robot / "signing.key_secret").exists()
    add_client(folder, "robot", ["act"])
    assert list_clients(folder) == [before] and not (robot / "signing.key_secret").exists()
    for path in folder.rglob("*"):
        assert path.stat().st_mode & 0o077 == 0 or not path.name.endswith("_secret"), path
        assert path.stat().st_mode & 0o077 == 0 or path.is_file(), path
    robot.rename(folder.parent / "carried")
    assert add_client(folder, "robot", ["administer"]) is None
    (after,) = list_clients(folder)
    assert after.key == before.key
    remove_client(folder, "robot")
    assert list_clients(folder) == []
    add_client(folder, "robot", ["act"])
    assert list_clients(folder)[0].key != before.key, "a key that was removed stays removed"


def test_who_pushes_signs(folder: Path) -> None:
    (folder / "signing.key").write_text("x")
    with pytest.raises(UserError, match="signing key is not here"):
        add_client(folder, "learner", ["push"])
    assert list_clients(folder) == []


@pytest.mark.parametrize(
    ("name", "permissions", "key", "said"),
    [
        ("", ["act"], "", "cannot name a client"),
        ("../robot", ["act"], "", "cannot name a client"),
        ("-robot", ["act"], "", "cannot name a client"),
        ("a" * 65, ["act"], "", "cannot name a client"),
        ("robot\n", ["act"], "", "cannot name a client"),
        ("robot", [], "", "without a permission"),
        ("robot", ["actt"], "", "did you mean act"),
        ("robot", ["act"], "short", "no public key"),
        ("robot", ["act"], "#" * 40, "no public key"),
        ("known", ["act"], "y" * 40, "has another key"),
        ("robot", ["act"], "KNOWN", "that is the key of known"),
    ],
)
def test_mistakes_are_one_line(folder: Path, name: str, permissions: list[str], key: str, said: str) -> None:
    add_client(folder, "known", ["act"])
    before = list_clients(folder)
    with pytest.raises(UserError) as caught:
        add_client(folder, name, permissions, before[0].key if key == "KNOWN" else key)
    assert said in caught.value.line() and "\n" not in caught.value.line()
    assert list_clients(folder) == before


def test_folders_that_are_no_servers(folder: Path, tmp_path: Path) -> None:
    for call in (
        lambda: create_server(folder),
        lambda: add_client(tmp_path, "robot", ["act"]),
        lambda: list_clients(tmp_path),
        lambda: remove_client(folder, "robot"),
        lambda: AllowList(tmp_path),
    ):
        with pytest.raises(UserError) as caught:
            call()
        assert caught.value.fix and "\n" not in caught.value.line()


@given(st.text(max_size=50))
def test_no_text_breaks_the_check_of_credentials(text: str) -> None:
    assert is_key(text) in (True, False)
    assert is_key(zmq.curve_keypair()[0].decode())
