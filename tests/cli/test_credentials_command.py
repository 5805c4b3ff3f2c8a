"""`embodied credentials`, as a user types it."""

import json
import shutil
from pathlib import Path

import pytest
import zmq

from embodied.cli.credentials import main
from embodied.errors import UserError
from embodied.weights.signing import Signer, Trusted
from embodied.wire.credentials import add_client, list_clients
from tests.cli.command import embodied, launch, one_line


@pytest.fixture
def folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    main(["create", str(tmp_path / "keys")])
    assert f"client.credentials={tmp_path / 'keys'} " in capsys.readouterr().out
    return tmp_path / "keys"


def names(path: Path) -> list[str]:
    return sorted(child.name for child in path.iterdir())


def test_the_command_from_nothing_to_removal(tmp_path: Path) -> None:
    done = launch("credentials", "create", "keys", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    keys = tmp_path / "keys"
    assert names(keys) == [
        "allowed", "server.key", "server.key_secret", "signing.key", "signing.key_secret"]  # fmt: skip
    assert keys.stat().st_mode & 0o777 == 0o700
    for secret in keys.glob("*_secret"):
        assert secret.stat().st_mode & 0o777 == 0o600
    assert "choose a new folder" in one_line(embodied("credentials", "create", "keys", folder=tmp_path))
    done = embodied("credentials", "add", "keys", "robot", "permission=act", folder=tmp_path)
    assert done.stdout == "robot may act; carry keys/clients/robot to its machine, where it is credentials=FOLDER\n"
    assert "did you mean act" in one_line(
        embodied("credentials", "add", "keys", "robot", "permission=akt", folder=tmp_path)
    )
    done = embodied("credentials", "ls", "keys", "--json", folder=tmp_path)
    (robot,) = [json.loads(line) for line in done.stdout.splitlines()]
    assert (robot["name"], robot["permissions"], robot["folder"]) == ("robot", ["act"], "keys/clients/robot")
    done = embodied("credentials", "remove", "keys", "robot", folder=tmp_path)
    assert done.returncode == 0 and names(keys / "allowed") == names(keys / "clients") == []


def test_what_is_carried_is_what_a_client_needs(folder: Path) -> None:
    main(["add", str(folder), "robot", "permission=act"])
    main(["add", str(folder), "learner", "permission=act,push"])
    robot, learner = folder / "clients" / "robot", folder / "clients" / "learner"
    assert names(robot) == ["client.key", "client.key_secret", "server.key", "signing.key"]
    assert names(learner) == [
        "client.key", "client.key_secret", "server.key", "signing.key", "signing.key_secret"]  # fmt: skip
    for path in (robot, learner):
        assert path.stat().st_mode & 0o777 == 0o700
        for secret in path.glob("*_secret"):
            assert secret.stat().st_mode & 0o777 == 0o600
        assert (path / "server.key").read_bytes() == (folder / "server.key").read_bytes()
        assert Trusted.from_folder(path) is not None
    assert Signer.from_folder(robot) is None
    signer, own = Signer.from_folder(learner), Signer.from_folder(folder)
    assert signer is not None and own is not None and signer.public == own.public


def test_roles_are_changed_and_clients_admitted_by_key(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["add", str(folder), "robot", "permission=act"])
    (before,) = list_clients(folder)
    shutil.rmtree(folder / "clients" / "robot")
    main(["add", str(folder), "robot", "permission=administer,act"])
    assert list_clients(folder) == [before._replace(permissions=frozenset({"act", "administer"}))]
    assert "robot may act, administer; its key stays" in capsys.readouterr().out
    main(["remove", str(folder), "robot"])
    main(["add", str(folder), "friend", "permission=act,push", f"key={before.key}"])
    assert list_clients(folder)[0].key == before.key
    assert "it must have in its folder" in capsys.readouterr().out
    assert not (folder / "clients" / "friend").exists()
    (folder / "allowed" / "bad.key").write_text("nonsense")
    main(["ls", str(folder)])
    printed = capsys.readouterr().out
    assert before.key in printed and "not let in: no public key in it" in printed
    main(["ls", str(folder), "--json"])
    listed = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert listed[0]["name"] == "friend" and "bad.key" in listed[1]["damaged"]
    main(["add", str(folder), "robot", "permission=act"])  # another's bad file is in nobody's way
    main(["remove", str(folder), "bad"])
    assert [client.name for client in list_clients(folder)] == ["friend", "robot"]


def test_credentials_are_shown_as_they_are(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    keys = [zmq.curve_keypair()[0].decode() for _ in range(40)]
    for count, key in enumerate(keys):
        add_client(folder, f"c{count}", ["act"], key)
    main(["ls", str(folder)])
    printed = capsys.readouterr().out
    assert all(key in printed for key in keys)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["crate", "KEYS"], "did you mean create"),
        (["create"], "write embodied credentials create FOLDER"),
        (["add", "KEYS"], "write embodied credentials add FOLDER NAME"),
        (["add", "KEYS", "robot"], "such as permission=act"),
        (["add", "KEYS", "robot", "permission="], "such as permission=act"),
        (["add", "KEYS", "robot", "permission=act,"], "unknown permission ''"),
        (["add", "KEYS", "robot", "permissions=act"], "did you mean permission"),
        (["add", "KEYS", "../robot", "permission=act"], "cannot name a client"),
        (["add", "nowhere", "robot", "permission=act"], "not a server's folder of credentials"),
        (["ls", "nowhere"], "not a server's folder of credentials"),
        (["ls", "KEYS", "--jsn"], "unknown flag"),
        (["ls", "KEYS", "permission=act"], "ls takes none"),
        (["remove", "KEYS", "robot"], "no client 'robot'"),
        (["remove", "KEYS", "robot", "--json"], "--json is for ls"),
        (["remove", "KEYS", "../server"], "no client"),
    ],
)
def test_a_mistake_gets_one_line(folder: Path, words: list[str], said: str) -> None:
    with pytest.raises(UserError) as caught:
        main([str(folder) if word == "KEYS" else word for word in words])
    assert said in caught.value.line() and "\n" not in caught.value.line()


def test_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == main(["--help"]) == 0
    assert "embodied credentials create site" in capsys.readouterr().out
