"""Allow list of a server's clients with their permissions, and the thread that authenticates connections."""

import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import zmq
from zmq.utils import z85

from embodied.errors import CorruptFile, UserError
from embodied.files import is_temporary, warn_of_mode
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
    """Clients that a server's folder admits; follows the folder while the server runs.

    A removed client stays connected, but `caller` does not know it any more, 0.2 s later at most. Where the folder or a
    file of it cannot be read, for example without a free descriptor, what was read before stays in use.

    `caller` may be called from any thread and touches no disk. The authenticator's thread calls the other methods.

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
        self._clients: dict[str, Client] = {}
        self._files: dict[str, Client] = {}
        self._seen: _Seen | None = None
        self._wrong: set[str] = set()
        self._told: dict[str, float] = {}
        self.look()

    def callback(self, domain: str, key: bytes) -> bool:
        """Whether a public key is admitted, as soon as it was added. Never raises."""
        try:
            text = key.decode("ascii", "replace")
            if text in self._clients or self._is_new(text):
                return True
            self._tell(text)
        except Exception:  # it would end the thread that lets clients in
            log.exception("a key could not be checked; its owner is not let in")
        return False

    def caller(self, user_id: str) -> tuple[str, frozenset[str]] | None:
        """Name and permissions of the client with this public key, the `User-Id` of its frames; None if unknown."""
        client = self._clients.get(user_id)
        return None if client is None else (client.name, client.permissions)

    def look(self) -> None:
        """Compare the list with the folder, and read it again if it has changed. Never raises."""
        folder = self.folder / ALLOWED
        try:
            seen = _fingerprint(folder)
            if seen != self._seen:
                warn_of_mode(folder, secret=False)
                whole = self._read(folder)
                self._seen = seen if whole and _is_settled(seen) else None
        except FileNotFoundError:
            self._complain({f"nobody is let in: {folder} does not exist"})
            self._seen, self._clients, self._files = None, {}, {}
        except OSError as error:
            self._complain({f"{folder} cannot be read, and the clients read before stay let in: {error.strerror}"})
            self._seen = None

    def _is_new(self, key: str) -> bool:
        """Whether an unknown key was added since the last look, so that a new client need not wait for the next one."""
        with suppress(OSError):
            changed = (self.folder / ALLOWED).stat().st_mtime_ns
            if self._seen is None or self._seen[0][1] != changed:
                self.look()
        return key in self._clients

    def _read(self, folder: Path) -> bool:
        """Read the clients of every good file; whether every file could be read."""
        files: dict[str, Client] = {}
        found: dict[str, Client] = {}
        wrong, whole = set(), True
        for path in certificates(folder):
            try:
                client = read_client(path)
            except CorruptFile as error:
                if not path.exists():
                    continue
                known = self._files.get(path.name)
                if known is None or not isinstance(error.__context__, OSError):
                    wrong.add(f"a client is not let in: {error.line()}")
                    continue
                wrong.add(f"a client stays let in as before: {error.line()}")
                client, whole = known, False
            warn_of_mode(path, secret=False)
            files[path.name] = client
            if client.key in found:
                wrong.add(f"{path} is left out: it has the key of {found[client.key].name}")
            found.setdefault(client.key, client)
        self._complain(wrong)
        self._clients, self._files = found, files
        return whole

    def _complain(self, wrong: set[str]) -> None:
        for line in sorted(wrong - self._wrong):
            log.error("%s", line)
        self._wrong = wrong

    def _tell(self, key: str) -> None:
        now = self._clock()
        self._told = {name: at for name, at in self._told.items() if now - at < _TELL_S}
        if key in self._told or len(self._told) >= _TELL_KEYS:
            return
        self._told[key] = now
        admit = f"embodied credentials add {self.folder} NAME permission=act key='{key}'"
        log.warning("a client with the unknown key %s was refused; to let it in: %s", key, admit)


class Authenticator:
    """Authenticates the connections of every socket of a context to which `addresses.bind` gave credentials.

    A refused client calls again by itself, and is admitted once its key is added. Frames of an admitted client carry
    its public key as `User-Id`. A thread answers ZeroMQ's question about every connection (ZAP, RFC 27). Made by
    `authenticator`.
    """

    def __init__(self, context: "zmq.Context[zmq.Socket[bytes]]", allowed: AllowList) -> None:
        self._allowed = allowed
        ends = f"inproc://authenticator-{id(self)}"
        self._requests, self._stopper, self._stopped = map(context.socket, (zmq.ROUTER, zmq.PAIR, zmq.PAIR))
        self._requests.linger = self._stopper.linger = self._stopped.linger = 0
        self._take_place()
        self._stopped.bind(ends)
        self._stopper.connect(ends)
        self.thread = threading.Thread(target=self._run, name="authenticator", daemon=True)

    def _take_place(self) -> None:
        """Bind; the place of an authenticator that has just been stopped is free a moment later."""
        limit = time.monotonic() + _PLACE_S
        while True:
            try:
                self._requests.bind(_ZAP)
                return
            except zmq.ZMQError as error:
                if error.errno != zmq.EADDRINUSE or time.monotonic() >= limit:
                    for sock in (self._requests, self._stopper, self._stopped):
                        sock.close()
                    raise
                time.sleep(0.005)

    def stop(self) -> None:
        """End the thread; before the context ends."""
        if not self._stopper.closed:
            with suppress(zmq.Again):  # the thread has ended already
                self._stopper.send(b"", zmq.NOBLOCK)
            self.thread.join(_JOIN_S)
            self._stopper.close()

    def _run(self) -> None:
        poller = zmq.Poller()
        poller.register(self._requests, zmq.POLLIN)
        poller.register(self._stopped, zmq.POLLIN)
        try:
            look = time.monotonic()
            while self._stopped not in (ready := dict(poller.poll(int(1000 * _LOOK_S)))):
                if self._requests in ready:
                    self._answer(self._requests.recv_multipart(zmq.NOBLOCK))
                if (now := time.monotonic()) >= look:
                    self._allowed.look()
                    look = now + _LOOK_S
        except zmq.ZMQError as error:
            if error.errno not in (zmq.ETERM, zmq.ENOTSOCK):
                log.exception("the authenticator ended: no new client is let in")
        finally:
            self._requests.close()
            self._stopped.close()

    def _answer(self, frames: list[bytes]) -> None:
        if len(frames) < 8:
            return
        envelope, (mechanism, *credentials) = frames[:4], frames[7:]
        if mechanism == b"CURVE" and len(credentials) == 1 and len(credentials[0]) == 32:
            key: bytes = z85.encode(credentials[0])
            if self._allowed.callback("", key):
                self._requests.send_multipart([*envelope, b"200", b"OK", key, b""])
                return
        # After 400 libzmq's clients would never call again; after 300 they do, once the time for the handshake is over.
        self._requests.send_multipart([*envelope, b"300", b"unknown key", b"", b""])


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
