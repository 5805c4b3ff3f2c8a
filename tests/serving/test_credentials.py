"""A policy server with keys, as a process, and who may ask it for what."""

import logging
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from embodied.client import RemoteClient
from embodied.errors import DeadlineExceeded, EmbodiedError, Unauthorized
from embodied.runtime.slots import push_slots
from embodied.serving.server import serve
from embodied.serving.versioned_policy import VersionedPolicy
from embodied.wire.credentials import add_client, create_server, list_clients, remove_client
from embodied.wire.endpoint import Requester
from tests.serving.tiny import BODY, SPAWN, SPEC, TinyPolicy, kill

LONG, SHORT = 30.0, 1.0


def _serve(keys: str, log: str, pipe: Connection) -> None:

    logging.basicConfig(filename=log)
    serve(
        push_slots(VersionedPolicy(TinyPolicy())),
        "tcp://127.0.0.1:0",
        keys,
        lambda line: pipe.send(line.rpartition(" at ")[2]),
    )


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path, Path]]:
    """Address of a server, its folder of credentials, its log."""
    folder = tmp_path_factory.mktemp("server")
    create_server(folder / "keys")
    ours, theirs = SPAWN.Pipe()
    process = SPAWN.Process(target=_serve, args=(str(folder / "keys"), str(folder / "log"), theirs), daemon=True)
    process.start()
    theirs.close()
    assert ours.poll(60), "the server did not start"
    yield ours.recv(), folder / "keys", folder / "log"
    kill(process)


@pytest.fixture
def ask(served: tuple[str, Path, Path]) -> Iterator[Callable[..., str]]:
    """Asks with a client's keys; returns the kind of the answer, or the code of the error."""
    address = served[0]
    open_ones: dict[Path | None, Requester] = {}

    def ask(keys: Path | None, kind: str, timeout_s: float = LONG, **body: object) -> str:
        if keys not in open_ones:
            open_ones[keys] = Requester(address, "policy server", credentials=keys)
        try:
            return open_ones[keys].request(kind, body=body, timeout_s=timeout_s).kind
        except EmbodiedError as error:
            assert "\n" not in error.line()
            return error.code

    yield ask
    for requester in open_ones.values():
        requester.close()


def client(folder: Path, name: str, *permissions: str) -> Path:
    carried = add_client(folder, name, permissions)
    assert carried is not None
    return carried


def test_a_known_client_gets_chunks(served: tuple[str, Path, Path]) -> None:
    address, folder, _ = served
    robot = RemoteClient(address, timeout_s=LONG, credentials=client(folder, "robot", "act"))
    assert robot.hello(BODY) == SPEC
    robot.close()


def test_roles_bound_what_is_answered(served: tuple[str, Path, Path], ask: Callable[..., str]) -> None:
    folder = served[1]
    actor, learner, admin = (
        client(folder, name, *permissions)
        for name, permissions in {"actor": ("act",), "learner": ("act", "push"), "admin": ("administer",)}.items()
    )
    assert ask(actor, "status") == ask(learner, "status") == ask(admin, "status") == "status"
    assert ask(actor, "offer") == "unauthorized"
    assert ask(actor, "set_active", pointer="held", version=None) == "unauthorized"
    assert ask(learner, "set_active", pointer="held", version=None) == "unauthorized"
    # The rest is malformed, or more than this server keeps, and is refused for that.
    assert ask(learner, "offer") not in ("unauthorized", "deadline")
    assert ask(admin, "set_active", pointer="held", version=None) not in ("unauthorized", "deadline")
    assert ask(admin, "offer") == "unauthorized"
    assert ask(admin, "act") == "unauthorized"


def test_the_refusal_says_what_would_help(served: tuple[str, Path, Path]) -> None:
    address, folder, _ = served
    asking = Requester(address, "policy server", credentials=client(folder, "curious", "act"))
    with pytest.raises(Unauthorized, match=r"embodied credentials add FOLDER curious permission=act,administer$"):
        asking.request("set_active", body={"pointer": "held", "version": None}, timeout_s=LONG)
    asking.close()


def test_a_revoked_client_is_refused_while_it_is_connected(
    served: tuple[str, Path, Path], ask: Callable[..., str], tmp_path: Path
) -> None:
    folder = served[1]
    client(folder, "leaver", "act").rename(tmp_path / "leaver")
    leaver = tmp_path / "leaver"
    assert ask(leaver, "status") == "status"
    remove_client(folder, "leaver")
    assert _until(lambda: ask(leaver, "status"), "unauthorized")
    with pytest.raises(DeadlineExceeded):
        Requester(served[0], credentials=leaver).request("status", timeout_s=SHORT)


def test_changed_roles_count_while_it_is_connected(served: tuple[str, Path, Path], ask: Callable[..., str]) -> None:
    folder = served[1]
    riser = client(folder, "riser", "act")
    assert ask(riser, "offer") == "unauthorized"
    client(folder, "riser", "act", "push")
    assert _until(lambda: str(ask(riser, "offer") != "unauthorized"), "True")
    client(folder, "riser", "act")
    assert _until(lambda: ask(riser, "offer"), "unauthorized")


def test_clients_without_credentials_get_no_answer_and_one_hint(served: tuple[str, Path, Path], tmp_path: Path) -> None:
    address, folder, log = served
    friend = client(folder, "friend", "act")
    create_server(tmp_path / "other")
    stranger, wrong = client(tmp_path / "other", "friend", "act"), tmp_path / "wrong"
    wrong.mkdir()
    for name in ("client.key", "client.key_secret"):
        (wrong / name).write_bytes((friend / name).read_bytes())
    (wrong / "server.key").write_bytes((stranger / "server.key").read_bytes())
    (stranger / "server.key").write_bytes((friend / "server.key").read_bytes())
    for keys in (None, stranger, wrong):
        asking = Requester(address, "policy server", credentials=keys)
        with pytest.raises(DeadlineExceeded, match="credentials differ"):
            asking.request("status", timeout_s=SHORT)
        asking.close()
    (other,) = list_clients(tmp_path / "other")
    line = f"embodied credentials add {folder} NAME permission=act key='{other.key}'"
    assert _until(lambda: str(line in log.read_text()), "True")
    assert log.read_text().count(line) == 1


def test_who_was_refused_is_let_in_once_its_key_is_added(served: tuple[str, Path, Path], tmp_path: Path) -> None:
    address, folder, _ = served
    create_server(tmp_path / "other")
    newcomer = client(tmp_path / "other", "newcomer", "act")
    (newcomer / "server.key").write_bytes((folder / "server.key").read_bytes())
    asking = Requester(address, "policy server", credentials=newcomer)
    with pytest.raises(DeadlineExceeded):
        asking.request("status", timeout_s=SHORT)
    add_client(folder, "newcomer", ["act"], list_clients(tmp_path / "other")[0].key)
    assert asking.request("status", timeout_s=LONG).kind == "status"
    asking.close()


def _until(look: Callable[[], str], wanted: str) -> bool:

    limit = time.monotonic() + LONG
    while look() != wanted:
        if time.monotonic() > limit:
            return False
        time.sleep(0.05)
    return True
