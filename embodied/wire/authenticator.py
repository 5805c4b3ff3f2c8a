"""Clients that may call a server: the allow list, with their permissions, and the thread that lets them in."""

import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import zmq
from zmq.utils import z85

from embodied.errors import CorruptFile, UserError
from embodied.files import is_temporary
from embodied.wire.credentials import ALLOWED, MAKE, Client, certificates, read_client

log = logging.getLogger(__name__)

_LOOK_S = 0.2  # how often the list of clients is compared with the disk
_SETTLED_S = 2.0  # a folder that changed this recently may change again without another time stamp
_TELL_S, _TELL_KEYS = 60.0, 32  # a refused key is named once in this time, and at most so many keys are
_ZAP = "inproc://zeromq.zap.01"
_JOIN_S = 5.0
_PLACE_S = 1.0

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
        self._refresh()

    def callback(self, domain: str, key: bytes) -> bool:
        """Whether a public key is let in, at once after it was added. Never raises."""
        try:
            text = key.decode("ascii", "replace")
            if self.caller(text) is not None or self._is_new(text):
                return True
            self._tell(text)
        except Exception:  # it would end the thread that lets clients in
            log.exception("a key could not be checked; its owner is not let in")
        return False

    def caller(self, user_id: str) -> tuple[str, frozenset[str]] | None:
        """Name and permissions of the client with this public key, the `User-Id` of its frames; None if unknown."""
        now = self._clock()
        if now - self._looked >= _LOOK_S and self._guard.acquire(blocking=False):
            try:
                self._looked = now
                self._refresh()
            finally:
                self._guard.release()
        client = self._clients.get(user_id)
        return None if client is None else (client.name, client.permissions)

    def _is_new(self, key: str) -> bool:
        """Whether an unknown key was added since the last look: who comes right after that need not wait."""
        with self._guard, suppress(OSError):
            changed = (self.folder / ALLOWED).stat().st_mtime_ns
            if self._seen is None or self._seen[0][1] != changed:
                self._refresh()
        return key in self._clients

    def _refresh(self) -> None:
        folder = self.folder / ALLOWED
        try:
            seen = _fingerprint(folder)
            if seen != self._seen:
                self._clients = self._read(folder)
                self._seen = seen if _is_settled(seen) else None
        except OSError as error:
            self._complain({f"nobody is let in: {folder} cannot be read: {error.strerror}"})
            self._seen, self._clients = None, {}

    def _read(self, folder: Path) -> dict[str, Client]:
        """Public key to client, of every good file."""
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
        return found

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
        admit = f"embodied credentials add {self.folder} NAME permission=act key='{key}'"
        log.warning("a client with the unknown key %s was refused; to let it in: %s", key, admit)


class Authenticator:
    """Lets the clients of a list in, at every socket of a context that `addresses.bind` gives keys.

    Who is refused calls again by itself, and is let in once its key is added. Frames of who is let in carry its public
    key as `User-Id`. A thread answers what ZeroMQ asks about every connection (ZAP, RFC 27). Made by `authenticator`.
    """

    def __init__(self, context: "zmq.Context[zmq.Socket[bytes]]", allowed: AllowList) -> None:
        self._allowed = allowed
        ends = f"inproc://authenticator-{id(self)}"
        self._door, self._bell, self._ear = (context.socket(kind) for kind in (zmq.ROUTER, zmq.PAIR, zmq.PAIR))
        self._door.linger = self._bell.linger = self._ear.linger = 0
        self._take_place()
        self._ear.bind(ends)
        self._bell.connect(ends)
        self.thread = threading.Thread(target=self._run, name="authenticator", daemon=True)

    def _take_place(self) -> None:
        """Bind; the place of a authenticator that has just been stopped is free a moment later."""
        limit = time.monotonic() + _PLACE_S
        while True:
            try:
                self._door.bind(_ZAP)
                return
            except zmq.ZMQError as error:
                if error.errno != zmq.EADDRINUSE or time.monotonic() >= limit:
                    for sock in (self._door, self._bell, self._ear):
                        sock.close()
                    raise
                time.sleep(0.005)

    def stop(self) -> None:
        """Let nobody in any more; before the context ends."""
        if not self._bell.closed:
            with suppress(zmq.Again):  # the thread has ended already
                self._bell.send(b"", zmq.NOBLOCK)
            self.thread.join(_JOIN_S)
            self._bell.close()

    def _run(self) -> None:
        poller = zmq.Poller()
        poller.register(self._door, zmq.POLLIN)
        poller.register(self._ear, zmq.POLLIN)
        try:
            while self._ear not in (ready := dict(poller.poll())):
                if self._door in ready:
                    self._answer(self._door.recv_multipart(zmq.NOBLOCK))
        except zmq.ZMQError as error:
            if error.errno not in (zmq.ETERM, zmq.ENOTSOCK):
                log.exception("nobody is let in any more")
        finally:
            self._door.close()
            self._ear.close()

    def _answer(self, frames: list[bytes]) -> None:
        if len(frames) < 8:
            return
        envelope, (mechanism, *credentials) = frames[:4], frames[7:]
        if mechanism == b"CURVE" and len(credentials) == 1 and len(credentials[0]) == 32:
            key: bytes = z85.encode(credentials[0])
            if self._allowed.callback("", key):
                self._door.send_multipart([*envelope, b"200", b"OK", key, b""])
                return
        # After 400 libzmq's clients would never call again; after 300 they do, once the time for the handshake is over.
        self._door.send_multipart([*envelope, b"300", b"unknown key", b"", b""])


def authenticator(context: "zmq.Context[zmq.Socket[bytes]]", allowed: AllowList) -> Authenticator:
    """Start the authenticator of a context; there may be one. Its `stop` ends it, before the context ends."""
    made = Authenticator(context, allowed)
    made.thread.start()
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
