"""Addresses to listen at, `tcp://host:port` and `ipc://path`, checked before ZeroMQ sees them.

A bare name, `ipc://policy`, is a socket in a folder of the user's own: `$XDG_RUNTIME_DIR/embodied`, or
`embodied-<uid>` in the folder of temporary files. A socket of another user is never called.

Beyond this machine, servers and clients need CURVE credentials: folders as `embodied credentials` makes them, see
`embodied.wire.credentials`. On this machine they may be used. Without them an `ipc` address is open to the user of the
server alone, a loopback `tcp` address to every user and every program of this machine.
"""

import errno
import ipaddress
import os
import re
import shutil
import socket
import stat
import tempfile
from contextlib import closing, nullcontext, suppress
from pathlib import Path

import zmq

from embodied.errors import InfrastructureError, UserError
from embodied.files import private, warn_of_mode
from embodied.wire.credentials import (
    DOMAIN,
    PERMISSIONS,
    add_client,
    check_client,
    create_server,
    read_pair,
    read_public,
)

_TCP = re.compile(r"tcp://(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9._*-]+):(\d{1,5})")
_USE = "write tcp://<host>:<port> or ipc://<path of a socket file>"
_LINGER_MS = 200
_HANDSHAKE_MS = 2000  # connections that say nothing for so long are closed, and refused clients call again


def check(address: str) -> None:
    """Raise `UserError` unless `address` is one that a server can listen on and a client can call."""
    address = resolve(address)
    if address.startswith("ipc://"):
        path = address.removeprefix("ipc://")
        if not path or path.startswith("@") or "\0" in path:
            raise UserError("an ipc address without a path", address, _USE)
        size = len(os.fsencode(path))
        if size > zmq.IPC_PATH_MAX_LEN:
            raise UserError(f"socket path of {size} bytes", address, f"use one of at most {zmq.IPC_PATH_MAX_LEN} bytes")
        return
    found = _TCP.fullmatch(address)
    if found is None or int(found[2]) > 65535:
        raise UserError("not an address", address[:200], _USE)


def resolve(address: str) -> str:
    """The address with the path that a bare name of an ipc socket stands for."""
    name = address.removeprefix("ipc://")
    return address if name == address or not name or "/" in name or name.startswith("@") else f"ipc://{_own() / name}"


def _own() -> Path:
    """The folder of this user's sockets; it need not exist."""
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    if runtime and Path(runtime).is_dir():
        return Path(runtime) / "embodied"
    return Path(tempfile.gettempdir()) / f"embodied-{os.geteuid()}"


def is_local(address: str) -> bool:
    """Whether only this machine can reach a checked address."""
    if address.startswith("ipc://"):
        return True
    found = _TCP.fullmatch(address)
    host = found[1].strip("[]") if found else ""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def bind(sock: zmq.Socket[bytes], address: str, credentials: Path | None = None, guarded: bool = False) -> str:
    """Listen on `address`; returns it with the port that port 0 found.

    With `credentials`, `embodied.wire.authenticator.authenticator` must run on the socket's context; without it no
    client is let in. The file of an `ipc` address is for its owner only.

    Args:
        guarded: Whoever listens asks for a token of its own, so no credentials are needed.

    Raises:
        UserError: The address is malformed, in use, not of this machine, without its folder, or open to others
            without credentials.
    """
    check(address)
    address = resolve(address)
    if not (is_local(address) or guarded or credentials is not None):
        raise UserError(
            "others could reach this address, and no credentials are given",
            address,
            "use 127.0.0.1, or give credentials",
        )
    if credentials is not None:
        sock.curve_publickey, sock.curve_secretkey = read_pair(credentials / "server.key_secret")
        sock.curve_server = True
        sock.zap_domain = DOMAIN.encode()
        sock.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)
    sock.handshake_ivl = _HANDSHAKE_MS
    if address.startswith("ipc://"):
        if Path(address.removeprefix("ipc://")).parent == _own():
            with private(), suppress(OSError):  # `_check_folder` says why there is none
                _own().mkdir(parents=True, exist_ok=True)
        _clear_path(address)
    _prepare(sock, address)
    try:
        with private() if address.startswith("ipc://") else nullcontext():
            sock.bind(_numeric(address))
    except zmq.ZMQError as error:
        raise _bind_error(error, address) from None
    if address.startswith("ipc://"):
        Path(address.removeprefix("ipc://")).chmod(0o600)
    return sock.getsockopt_string(zmq.LAST_ENDPOINT)


def check_call(address: str, credentials: Path | None = None) -> None:
    """Raise `UserError` unless `address` can be called with a client's `credentials`; no server need be there."""
    check(address)
    address = resolve(address)
    if address.endswith(":0"):
        raise UserError("port 0 cannot be called", address, "take the port that the server printed")
    if not is_local(address) and credentials is None:
        raise UserError(
            "it is beyond this machine, and no credentials are given", address, "give credentials, or use 127.0.0.1"
        )
    if credentials is not None:
        check_client(credentials)
    if address.startswith("ipc://") and Path(address.removeprefix("ipc://")).parent != _own():
        _check_folder(address)
    if address.startswith("ipc://"):
        _check_owner(address)


def connect(sock: zmq.Socket[bytes], address: str, credentials: Path | None = None) -> None:
    """Call `address`; a missing server shows later.

    Raises:
        UserError: As `check_call`, or a key file is missing.
    """
    check_call(address, credentials)
    address = resolve(address)
    if credentials is not None:
        sock.curve_publickey, sock.curve_secretkey = read_pair(credentials / "client.key_secret")
        sock.curve_serverkey = read_public(credentials / "server.key")
    _prepare(sock, address)
    try:
        sock.connect(_numeric(address))
    except zmq.ZMQError as error:
        raise UserError(f"cannot call this address: {error}", address, _USE) from None


def create_credentials(folder: Path) -> None:
    """Create the credentials of a server and of a client with every permission, for two processes of one machine.

    Raises:
        UserError: There are credentials in the folder.
    """
    create_server(folder)
    carried = add_client(folder, "client", PERMISSIONS)
    assert carried is not None
    for name in ("client.key", "client.key_secret"):
        (carried / name).replace(folder / name)
    shutil.rmtree(carried.parent)


def _prepare(sock: zmq.Socket[bytes], address: str) -> None:
    sock.linger = _LINGER_MS
    if "[" in address:
        sock.ipv6 = True


def _numeric(address: str) -> str:
    return address.replace("//localhost:", "//127.0.0.1:")


def _check_folder(address: str) -> None:
    folder = Path(address.removeprefix("ipc://")).parent
    if not folder.is_dir():
        raise UserError("the socket's folder does not exist", address, f"make it: mkdir -p {folder}")


def _check_owner(address: str) -> None:
    """Refuse a socket or a folder of another user, who could read and alter all that passes through it."""
    path = Path(address.removeprefix("ipc://"))
    for place in (path.parent, path):
        try:
            state = place.lstat()
        except OSError:
            continue
        others = place == path or not state.st_mode & stat.S_ISVTX  # a folder for all, as of temporary files
        if state.st_uid not in (os.geteuid(), 0) and others:
            kind = "socket" if place == path else "folder"
            what = f"the {kind} belongs to another user, number {state.st_uid}"
            raise UserError(what, str(place), "use one of your own, such as ipc://policy, or tcp with credentials")
    warn_of_mode(path.parent, secret=False)


def _clear_path(address: str) -> None:
    """Refuse what is no free socket path. ZeroMQ would silently unlink a file or a living server's socket."""
    _check_folder(address)
    _check_owner(address)
    path = Path(address.removeprefix("ipc://"))
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise UserError("a file that is no socket is in the way", address, "choose another path, or remove the file")
    with closing(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink(missing_ok=True)  # left behind by a server that was killed
            return
        except OSError as error:
            raise UserError(
                f"cannot tell whether a server listens there: {error}", address, "choose another path"
            ) from None
    raise UserError("another server listens there", address, "stop it, or choose another path")


def _bind_error(error: zmq.ZMQError, address: str) -> UserError | InfrastructureError:
    if error.errno == errno.EADDRINUSE:
        port = int(address.rpartition(":")[2])
        return UserError(f"port {port} is in use{holder(port)}", address, "stop that process, or choose another port")
    if error.errno in (errno.EADDRNOTAVAIL, errno.ENODEV):
        return UserError("this machine has no such network address", address, "use 127.0.0.1, or an address of its own")
    if error.errno == errno.EACCES:
        return UserError("listening there is not permitted", address, "choose a port above 1023, or a folder of yours")
    return InfrastructureError(f"cannot listen: {error}", address, "choose another address")


def holder(port: int) -> str:
    """` by process 12 (python)` where Linux tells, else empty."""
    inodes = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with suppress(OSError):
            for line in Path(table).read_text().splitlines()[1:]:
                cells = line.split()
                if int(cells[1].rpartition(":")[2], 16) == port and cells[3] == "0A":
                    inodes.add(f"socket:[{cells[9]}]")
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if any(str(link.readlink()) in inodes for link in (process / "fd").iterdir()):
                return f" by process {process.name} ({(process / 'comm').read_text().strip()})"
    return ""
