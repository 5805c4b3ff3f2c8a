"""Who may call a server: the list of clients let in, with their roles, which the server follows while it runs."""

import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import zmq

from embodied.errors import CorruptFile, UserError
from embodied.files import is_temporary
from embodied.wire.key_files import ALLOWED, MAKE, Client, certificates, read_client

if TYPE_CHECKING:
    from zmq.auth.thread import ThreadAuthenticator

log = logging.getLogger(__name__)

DOMAIN = "embodied"

_LOOK_S = 0.2  # how often the list of clients is compared with the disk
_SETTLED_S = 2.0  # a folder that changed this recently may change again without another time stamp
_TELL_S, _TELL_KEYS = 60.0, 32  # a refused key is named once in this time, and at most so many keys are

_Seen = tuple[tuple[str, int, int], ...]


class AllowList:
    """The clients that a server's folder lets in; follows the folder while the server runs. Thread-safe.

    A client that is removed stays connected, but `caller` knows it no more, 0.2 s later at most. Where the folder
    cannot be read nobody is let in.

    Args:
        folder: Of the server's keys.
        clock: Seconds, monotonic.

    Raises:
        UserError: It holds no `allowed` folder.
    """

    def __init__(self, folder: Path | str, clock: Callable[[], float] = time.monotonic) -> None:
        self.folder, self._clock = Path(folder), clock
        if not (self.folder / ALLOWED).is_dir():
            raise UserError("no folder of clients that are let in", str(self.folder / ALLOWED), MAKE)
        self._guard = threading.Lock()
        self._clients: dict[str, Client] = {}
        self._seen: _Seen | None = None
        self._wrong: set[str] = set()
        self._looked = -float("inf")
        self._told: dict[str, float] = {}

    def callback(self, domain: str, key: bytes) -> bool:
        """Whether a public key is let in: what `configure_curve_callback` of `zmq.auth` asks. Never raises."""
        try:
            text = key.decode("ascii", "replace")
            if self.caller(text) is not None:
                return True
            self._tell(text)
        except Exception:  # raised here, it would end the thread that lets clients in
            log.exception("a key could not be checked; its owner is not let in")
        return False

    def caller(self, user_id: str) -> tuple[str, frozenset[str]] | None:
        """Name and roles of the client behind a frame's `User-Id`, which is its public key; None for no one known."""
        with self._guard:
            now = self._clock()
            if now - self._looked >= _LOOK_S:
                self._looked = now
                self._refresh()
            client = self._clients.get(user_id)
        return None if client is None else (client.name, client.roles)

    def _refresh(self) -> None:
        folder = self.folder / ALLOWED
        try:
            seen = _fingerprint(folder)
        except OSError as error:
            self._complain({f"nobody is let in: {folder} cannot be read: {error.strerror}"})
            self._seen, self._clients = None, {}
            return
        if seen == self._seen:
            return
        found: dict[str, Client] = {}
        wrong = set()
        for path in certificates(folder):
            try:
                client = read_client(path)
            except CorruptFile as error:
                if path.exists():
                    wrong.add(f"a client is not let in: {error.line()}")
                continue
            if client.key in found:
                wrong.add(f"{path} is left out: it has the key of {found[client.key].name}")
            found.setdefault(client.key, client)
        self._complain(wrong)
        self._clients, self._seen = found, seen if _is_settled(seen) else None

    def _complain(self, wrong: set[str]) -> None:
        for line in sorted(wrong - self._wrong):
            log.error("%s", line)
        self._wrong = wrong

    def _tell(self, key: str) -> None:
        with self._guard:
            now = self._clock()
            self._told = {name: at for name, at in self._told.items() if now - at < _TELL_S}
            if key in self._told or len(self._told) >= _TELL_KEYS:
                return
            self._told[key] = now
        admit = f"embodied keys add {self.folder} NAME role=act key='{key}'"
        log.warning("a client with the unknown key %s was refused; to let it in: %s", key, admit)


def doorman(context: "zmq.Context[zmq.Socket[bytes]]", allowed: AllowList) -> "ThreadAuthenticator":
    """Start the thread that lets clients in, for every socket of `context` that `addresses.bind` gives keys.

    Its `stop` ends it, before the context ends.
    """
    from zmq.auth.thread import ThreadAuthenticator

    made = ThreadAuthenticator(context)
    made.configure_curve_callback(DOMAIN, allowed)
    made.start()
    return made


def _fingerprint(folder: Path) -> _Seen:
    """Names, sizes and times of change of a folder and its files."""
    found = []
    for path in folder.iterdir():
        try:
            state = path.stat()
        except FileNotFoundError:  # renamed or removed since it was listed
            continue
        if not is_temporary(path):
            found.append((path.name, state.st_mtime_ns, state.st_size))
    return (("", folder.stat().st_mtime_ns, 0), *sorted(found))


def _is_settled(seen: _Seen) -> bool:
    return time.time() - max(changed for _, changed, _ in seen) / 1e9 > _SETTLED_S
