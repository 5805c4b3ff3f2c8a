"""Credentials: folders with a server's CURVE key pair, its clients' public keys and permissions, and a folder for each
client.

A server's folder holds `server.key` and `server.key_secret`, `signing.key` and perhaps `signing.key_secret` (see
`embodied.weights.signing`), and `allowed/<name>.key`, the public key and permissions of each client. `clients/<name>/`
is to be copied to that client's machine: `client.key`, `client.key_secret`, `server.key`, `signing.key`, and
`signing.key_secret` only with the permission to push. One folder may be both, for two processes of one machine. Secret
keys are readable by their owner only. The key files are those of `zmq.auth`.
"""

import re
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import zmq
from zmq.utils import z85

from embodied.errors import CorruptFile, UserError, nearest
from embodied.files import (
    atomic_dir,
    disk_errors,
    fsync_dir,
    is_temporary,
    private,
    read_bytes,
    remove,
    warn_of_mode,
    write_bytes,
)

ACT, PUSH, ADMINISTER = "act", "push", "administer"
PERMISSIONS = (ACT, PUSH, ADMINISTER)
DOMAIN = "embodied"  # of the sockets with keys, for ZAP
ALLOWED, CLIENTS = "allowed", "clients"
MAKE = "run `embodied credentials create FOLDER` and `embodied credentials add FOLDER NAME permission=act`"

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,63}")
_FIELD = re.compile(r"\s*([a-z-]+)\s*=\s*(.*?)\s*")
_KEY = re.compile(r"[0-9a-zA-Z.\-:+=^!/*?&<>()\[\]{}@%$#]{40}")
_LIMIT = 2**16


class Client(NamedTuple):
    """One client that may connect: its name, permissions and public key (40 characters of Z85)."""

    name: str
    permissions: frozenset[str]
    key: str


def create_server(folder: Path) -> None:
    """Make a server's pair of keys and its empty list of clients.

    Raises:
        UserError: There are credentials in the folder.
        InfrastructureError: The disk is full, or not writable.
    """
    secret = folder / "server.key_secret"
    if secret.exists():
        raise UserError("credentials exist already", str(secret), "choose another folder")
    with private():
        with disk_errors(folder):
            (folder / ALLOWED).mkdir(parents=True, exist_ok=True)
            folder.chmod(0o700)
        _write_pair(folder, "server")


def add_client(folder: Path, name: str, permissions: Iterable[str], key: str = "") -> Path | None:
    """Let a client in, or change the permissions of one that is; its key stays.

    Args:
        folder: Of the server's credentials.
        name: Letters, digits, dash, underscore.
        permissions: Of `PERMISSIONS`, at least one.
        key: Public key of a client that has its own pair; empty makes one.

    Returns:
        The folder to carry to the client, or None where there is none here.

    Raises:
        UserError: A name, permission or key is not one, the key is another client's, or the folder is no server's.
        CorruptFile: A file of credentials cannot be read.
    """
    check_name(name)
    wanted = check_permissions(permissions)
    check_server(folder)
    if key and not is_key(key):
        raise UserError(f"{key[:60]!r} is no public key", "key", "copy the 40 characters that the server's log shows")
    certificate, carried = folder / ALLOWED / f"{name}.key", folder / CLIENTS / name
    known = read_client(certificate).key if certificate.exists() else ""
    if known and key and key != known:
        raise UserError(
            f"{name} has another key", str(certificate), f"first `embodied credentials remove {folder} {name}`"
        )
    other = _owner(folder, key)
    if other not in ("", name):
        fix = f"give {other} the permissions, or remove it first"
        raise UserError(f"that is the key of {other}", str(folder), fix)
    if key and not known:
        remove(carried)  # left behind by an `add` that was killed
    secret, fresh = folder / "signing.key_secret", not (known or key or carried.exists())
    if PUSH in wanted and (fresh or carried.exists()) and (folder / "signing.key").exists() and not secret.exists():
        raise UserError("who pushes must sign, and the signing key is not here", str(secret), "bring it back")
    with private():
        if fresh:
            with disk_errors(carried):
                carried.parent.mkdir(exist_ok=True)
            with atomic_dir(carried) as part:
                _write_pair(part, "client")
        if carried.exists():
            _furnish(folder, carried, PUSH in wanted)
        public = known or key or read_pair(carried / "client.key_secret")[0].decode()
        _write_public(certificate, public, {"permissions": ",".join(one for one in PERMISSIONS if one in wanted)})
    return carried if carried.exists() else None


def remove_client(folder: Path, name: str) -> None:
    """Let a client in no more, and drop what was to be carried to it.

    Raises:
        UserError: No client has that name.
    """
    check_server(folder)
    path = folder / ALLOWED / f"{name}.key"
    known = [client.stem for client in certificates(folder / ALLOWED)]
    if name not in known:
        raise UserError(f"no client {name!r} is let in", str(folder), nearest(name, known))
    with disk_errors(path):
        path.unlink(missing_ok=True)
        fsync_dir(path.parent)
    remove(folder / CLIENTS / name)


def list_clients(folder: Path) -> list[Client]:
    """Clients that are let in, by name.

    Raises:
        UserError: The folder is no server's.
        CorruptFile: A file cannot be read; names it.
    """
    check_server(folder)
    return [read_client(path) for path in certificates(folder / ALLOWED)]


def check_server(folder: Path) -> None:
    """Raise `UserError` unless `folder` holds a server's credentials."""
    for path in (folder / "server.key", folder / ALLOWED):
        if not path.exists():
            raise UserError("not a server's folder of credentials", str(path), MAKE)


def check_name(name: str) -> None:
    """Raise `UserError` unless `name` can name a client."""
    if not _NAME.fullmatch(name):
        raise UserError(f"{name[:80]!r} cannot name a client", "name", "use letters, digits, - and _, at most 64")


def check_permissions(permissions: Iterable[str]) -> frozenset[str]:
    """The permissions as a set; raises `UserError` if there are none, or one is unknown."""
    found = frozenset(permissions)
    for permission in sorted(found - set(PERMISSIONS)):
        raise UserError(f"unknown permission {permission[:40]!r}", "permission", nearest(permission, PERMISSIONS))
    if not found:
        raise UserError("a client without a permission", "permission", f"give some of {','.join(PERMISSIONS)}")
    return found


def certificates(folder: Path) -> list[Path]:
    """The files of the clients of an `allowed` folder."""
    return sorted(path for path in folder.glob("*.key") if not is_temporary(path))


def is_key(text: str) -> bool:
    """Whether `text` is a public key in Z85."""
    if not _KEY.fullmatch(text):
        return False
    try:
        return len(z85.decode(text.encode())) == 32
    except Exception:  # digits beyond 32 bits: how pyzmq says so is not documented
        return False


def read_client(path: Path) -> Client:
    """The client of an `allowed/<name>.key`.

    Raises:
        CorruptFile: It cannot be read, or its name, key or permissions are not such.
    """
    fields = _fields(path)
    key, given = fields.get("public-key", ""), fields.get("permissions", fields.get("roles", ""))  # roles: until 0.1
    permissions = frozenset(filter(None, given.split(",")))
    for good, what in (
        (_NAME.fullmatch(path.stem), "its name is no client's"),
        (is_key(key), "no public key in it"),
        (permissions, "no permissions in it"),
        (permissions <= set(PERMISSIONS), f"unknown permission {min(permissions - {*PERMISSIONS}, default='')[:40]!r}"),
    ):
        if not good:
            raise CorruptFile(what, str(path), "`embodied credentials remove` it, then add it anew")
    return Client(path.stem, permissions, key)


def read_pair(path: Path) -> tuple[bytes, bytes]:
    """Public and secret key of a `.key_secret` file; raises `UserError` if it cannot be read or has no secret half."""
    public, secret = _read(path)
    warn_of_mode(path, secret=True)
    if not secret:
        raise UserError("a key file without its secret half", str(path), "copy the .key_secret file")
    return public, secret


def read_public(path: Path) -> bytes:
    """The key of a `.key` file; raises `UserError` if it cannot be read."""
    return _read(path)[0]


def check_client(folder: Path) -> None:
    """Raise `UserError` where `folder` holds a server's credentials, and none for a client."""
    if (folder / "server.key_secret").exists() and not (folder / "client.key_secret").exists():
        made = [path.name for path in sorted((folder / CLIENTS).glob("*")) if path.is_dir() and not is_temporary(path)]
        here = (
            f" ({', '.join(made[:8])})"
            if made
            else f"; make one: embodied credentials add {folder} NAME permission=act"
        )
        raise UserError("that is a server's folder of credentials", str(folder), f"use its clients/NAME{here}")


def _owner(folder: Path, key: str) -> str:
    """The name of the client that has a key, or empty."""
    for path in certificates(folder / ALLOWED):
        with suppress(CorruptFile):
            if (client := read_client(path)).key == key:
                return client.name
    return ""


def _read(path: Path) -> tuple[bytes, bytes]:
    try:
        fields = _fields(path)
    except CorruptFile as error:
        raise UserError(f"cannot read a key: {error.what}", str(path), MAKE) from None
    public, secret = fields.get("public-key", ""), fields.get("secret-key", "")
    if not is_key(public) or (secret and not is_key(secret)):
        raise UserError("cannot read a key: no public key in it", str(path), MAKE)
    return public.encode(), secret.encode()


def _fields(path: Path) -> dict[str, str]:
    try:
        text = read_bytes(path, _LIMIT, MAKE).decode()
    except UnicodeDecodeError:
        raise CorruptFile("not text", str(path), MAKE) from None
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    return {found[1]: found[2].strip("\"'") for line in lines if (found := _FIELD.fullmatch(line))}


def _write_pair(folder: Path, name: str) -> None:
    public, secret = (key.decode() for key in zmq.curve_keypair())
    text = f'# Keep it secret.\nmetadata\ncurve\n    public-key = "{public}"\n    secret-key = "{secret}"\n'
    write_bytes(folder / f"{name}.key_secret", text.encode())
    _write_public(folder / f"{name}.key", public)


def _write_public(path: Path, public: str, metadata: dict[str, str] | None = None) -> None:
    told = "".join(f"    {name} = {value}\n" for name, value in (metadata or {}).items())
    write_bytes(path, f'metadata\n{told}curve\n    public-key = "{public}"\n'.encode())


def _furnish(folder: Path, carried: Path, pushes: bool) -> None:
    """Put into a client's folder what it needs of the server's."""
    for name in ("server.key", "signing.key", "signing.key_secret"):
        if (folder / name).exists() and (pushes or name != "signing.key_secret"):
            write_bytes(carried / name, (folder / name).read_bytes())
        else:
            remove(carried / name)
