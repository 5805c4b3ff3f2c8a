"""`embodied credentials`: a server's credentials, and who may call it."""

import json
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from embodied.errors import ConfigError, CorruptFile, UserError, nearest
from embodied.files import private
from embodied.wire.credentials import (
    ALLOWED,
    CLIENTS,
    PERMISSIONS,
    PUSH,
    add_client,
    certificates,
    check_server,
    create_server,
    read_client,
    remove_client,
)

HELP = """\
embodied credentials create|add|ls|remove FOLDER [NAME] [key=value ...] [--json]

  embodied credentials create site                        a server's keys, and those that weights are signed with
  embodied credentials add site robot permission=act      let a client in: copy site/clients/robot to its machine
  embodied credentials add site learner permission=act,push   several permissions; for a known client the key stays
  embodied credentials add site robot permission=act key='...'  a client with its own pair (key: see the server's log)
  embodied credentials ls site                            who may do what (--json: one object a line)
  embodied credentials remove site robot                  a running server refuses its next message

Permissions: act (ask for actions, follow weights), push (publish weights, which are signed), administer (pin, roll
back, resume); all may read the status. The server takes credentials=site, a client credentials=FOLDER with what was
carried to it.
"""
KEYS = {"create": (), "add": ("permission", "key"), "ls": (), "remove": ()}
NAMES = {"create": 1, "add": 2, "ls": 1, "remove": 2}


def main(arguments: Sequence[str]) -> int:
    words = [word for word in arguments if word not in ("-h", "--help", "--json")]
    as_json = "--json" in arguments
    if len(words) < len(arguments) - as_json or not words:
        print(HELP)
        return 0
    action, *rest = words
    if action not in KEYS:
        raise ConfigError(f"unknown action {action!r}", "embodied credentials", nearest(action, KEYS))
    names, options = _parse(action, rest)
    if as_json and action != "ls":
        raise ConfigError("--json is for ls", "embodied credentials", "leave it out")
    folder = Path(names[0])
    if action == "create":
        _create(folder)
    elif action == "add":
        _add(folder, names[1], options)
    elif action == "remove":
        remove_client(folder, names[1])
        print(f"{names[1]} is let in no more; a running server refuses its next message")
    else:
        _list(folder, as_json)
    return 0


def _parse(action: str, words: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """The words without and with a key."""
    names = [word for word in words if "=" not in word]
    options = {key: value for key, _, value in (word.partition("=") for word in words if "=" in word)}
    for name in names:
        if name.startswith("-"):
            raise ConfigError(f"unknown flag {name!r}", "embodied credentials", "known: --json, --help")
    for key in options:
        if key not in KEYS[action]:
            fix = nearest(key, KEYS[action]) if KEYS[action] else f"{action} takes none"
            raise ConfigError(f"unknown key {key!r}", f"embodied credentials {action}", fix)
    if len(names) != NAMES[action]:
        form = " ".join(["embodied credentials", action, *("FOLDER", "NAME")[: NAMES[action]]])
        raise ConfigError(f"{len(names)} names", f"embodied credentials {action}", f"write {form}")
    return names, options


def _create(folder: Path) -> None:
    from embodied.weights.signing import create_signing_keys

    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(
            "credentials want a folder of their own, and something is there", str(folder), "choose a new folder"
        )
    with private():
        folder.mkdir(parents=True, exist_ok=True)
    create_signing_keys(folder)
    create_server(folder)
    print(f"{folder} holds the keys of a server and of who signs; next:")
    print(f"  embodied credentials add {folder} NAME permission=act")
    print(f"  embodied train ... client.credentials={folder}      signs the versions it publishes")
    print(f"  embodied serve run=latest address=tcp://0.0.0.0:5555 credentials={folder}")


def _add(folder: Path, name: str, options: dict[str, str]) -> None:
    if not options.get("permission"):
        raise ConfigError(
            "no permission", "embodied credentials add", f"give some of {','.join(PERMISSIONS)}, such as permission=act"
        )
    permissions = options["permission"].split(",")
    carried = add_client(folder, name, permissions, options.get("key", ""))
    may = f"{name} may {', '.join(permission for permission in PERMISSIONS if permission in permissions)}"
    if carried is not None:
        print(f"{may}; carry {carried} to its machine, where it is credentials=FOLDER")
    elif PUSH in permissions:
        print(f"{may}; it signs with signing.key_secret, which it must have in its folder of credentials")
    else:
        print(f"{may}; its key stays")


def _list(folder: Path, as_json: bool) -> None:
    check_server(folder)
    table = Table("name", "permissions", box=None)
    table.add_column("public key", min_width=40)
    table.add_column("to be carried", overflow="fold")
    console = Console(soft_wrap=True)
    damaged = []
    for path in certificates(folder / ALLOWED):
        try:
            client = read_client(path)
        except CorruptFile as error:
            damaged.append(error.line())
            continue
        permissions = [permission for permission in PERMISSIONS if permission in client.permissions]
        carried = folder / CLIENTS / client.name
        here = str(carried) if carried.is_dir() else ""
        if as_json:
            print(json.dumps({"name": client.name, "permissions": permissions, "key": client.key, "folder": here}))
        table.add_row(client.name, ",".join(permissions), Text(client.key), here)
    if as_json:
        for line in damaged:
            print(json.dumps({"damaged": line}))
        return
    console.print(table)
    for line in damaged:
        print(f"not let in: {line}")
