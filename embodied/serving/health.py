"""Health pages of a server for this machine: `/healthz`, `/metrics`, `/status`, plain HTTP on loopback.

A thread apart from the serving one answers, so that a hanging server is detected. Every connection is bounded in bytes
and time, and the oldest is closed for the newest.
"""

import errno
import ipaddress
import json
import logging
import re
import selectors
import socket
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from embodied.errors import UserError
from embodied.serving.metrics_page import MetricsPage, number
from embodied.wire.addresses import holder
from embodied.wire.descriptors import Spare

log = logging.getLogger(__name__)

Snapshot = Callable[[], Mapping[str, Any]]

_ADDRESS = re.compile(r"(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9._-]*):(\d{1,5})")
_CONNECTIONS = 16
_REQUEST_BYTES = 8192
_DISCARD_BYTES = 2**20  # read after an answer, since closing with unread bytes would reset the connection
_TIME_S = 5.0
_LOOK_S = 0.2
_PAUSE_S = 0.002  # after each answer, so that a flood of requests leaves the interpreter to the serving thread
_FRESH_S = 0.1
_TEXT = "text/plain; charset=utf-8"
_STATES = {"starting": "starting", "silent": "hanging", "died": "dead, and restarts", "ended": "ended"}
_REASONS = {
    200: "OK", 400: "Bad Request", 404: "Not Found", 405: "Method Not Allowed", 431: "Request Header Fields Too Large",
    500: "Internal Server Error", 503: "Service Unavailable",
}  # fmt: skip


@dataclass
class _Connection:
    sock: socket.socket
    until: float
    heard: bytearray
    answer: bytes = b""
    discarded: int = 0
    answered: bool = False


class HealthServer:
    """HTTP server of the health pages, for GET and HEAD.

    `/healthz` answers 200 while the server is well, else 503 with the reason in one line; `/metrics` is for Prometheus;
    `/status` is the snapshot as JSON. It has no credentials, so it listens on loopback only.

    Args:
        address: `host:port` of this machine, such as `127.0.0.1:8080`; `:0` takes a free port.
        snapshot: Called in the answering thread; plain values of `PolicyServer.snapshot`, of which any may be missing.
        stale_s: Age of a snapshot in seconds from which the serving thread counts as hanging.
        clock: Clock of the times in the snapshot, seconds.

    Raises:
        UserError: The address is malformed or beyond loopback, or the package prometheus-client is missing.
    """

    def __init__(
        self,
        address: str,
        snapshot: Snapshot,
        *,
        stale_s: float = 10.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._host, self._port = _parse(address)
        self.address, self._snapshot, self._stale_s, self._clock = address, snapshot, stale_s, clock
        self._metrics = MetricsPage(snapshot, clock)
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._connections: dict[int, _Connection] = {}  # by file descriptor, the oldest first
        self._selector = selectors.DefaultSelector()
        self._spare = Spare()
        self._pages: dict[str, tuple[float, tuple[int, str, bytes]]] = {}

    def start(self) -> str:
        """Listen and answer; returns `host:port`, with the port found for port 0.

        Raises:
            UserError: The address is in use, or not of this machine.
        """
        family = socket.AF_INET6 if ":" in self._host else socket.AF_INET
        listener = socket.socket(family, socket.SOCK_STREAM)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((self._host, self._port))
            listener.listen(_CONNECTIONS)
        except OSError as error:
            listener.close()
            what = f"port {self._port} cannot be listened on{holder(self._port)}: {error.strerror}"
            raise UserError(what, self.address, "choose another port; :0 takes a free one") from None
        listener.setblocking(False)
        host, port = listener.getsockname()[:2]
        self.address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        self._selector.register(listener, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._run, args=(listener,), name="health", daemon=True)
        self._thread.start()
        return self.address

    def close(self) -> None:
        """Stop the thread."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(2 * _TIME_S)
            self._thread = None

    def _run(self, listener: socket.socket) -> None:
        try:
            while not self._stop.is_set():
                for key, _ in self._selector.select(_LOOK_S):
                    if key.fileobj is listener:
                        self._accept(listener)
                    elif (connection := self._connections.get(key.fd)) is not None:
                        self._attend(connection)
                self._spare.restore()
                now = time.monotonic()
                for connection in [c for c in self._connections.values() if c.until <= now]:
                    self._drop(connection)
        finally:
            for connection in list(self._connections.values()):
                self._drop(connection)
            listener.close()
            self._selector.close()
            self._spare.close()

    def _accept(self, listener: socket.socket) -> None:
        sock: socket.socket | None
        try:
            sock, _ = listener.accept()
        except OSError as error:
            full = error.errno in (errno.EMFILE, errno.ENFILE) and self._spare.restore()
            sock = self._spare.accept(listener) if full else None
        if sock is None:  # the client has gone, or no file descriptor is left; without a pause this would spin
            time.sleep(_PAUSE_S)
            return
        sock.setblocking(False)
        if len(self._connections) >= _CONNECTIONS:
            self._drop(next(iter(self._connections.values())))
        connection = _Connection(sock, time.monotonic() + _TIME_S, bytearray())
        self._connections[sock.fileno()] = connection
        self._selector.register(sock, selectors.EVENT_READ)

    def _attend(self, connection: _Connection) -> None:
        try:
            if connection.answer:
                self._send(connection)
            elif not self._hear(connection):
                self._drop(connection)
        except BlockingIOError:
            pass
        except OSError:
            self._drop(connection)

    def _hear(self, connection: _Connection) -> bool:
        """Take in what has arrived; says whether more is to come."""
        data = connection.sock.recv(_REQUEST_BYTES)
        if connection.answered:
            connection.discarded += len(data)
            return bool(data) and connection.discarded <= _DISCARD_BYTES
        connection.heard += data
        head, end, _ = bytes(connection.heard).partition(b"\r\n\r\n")
        if end or len(connection.heard) > _REQUEST_BYTES:
            connection.answer = self._reply(head) if end else _response(431, _TEXT, b"the request is too long\n")
            self._selector.modify(connection.sock, selectors.EVENT_WRITE)
            self._send(connection)
            time.sleep(_PAUSE_S)
            return True
        return bool(data)

    def _send(self, connection: _Connection) -> None:
        connection.answer = connection.answer[connection.sock.send(connection.answer) :]
        if not connection.answer:
            connection.answered = True
            connection.sock.shutdown(socket.SHUT_WR)
            self._selector.modify(connection.sock, selectors.EVENT_READ)

    def _drop(self, connection: _Connection) -> None:
        self._connections.pop(connection.sock.fileno(), None)
        with suppress(KeyError, ValueError):
            self._selector.unregister(connection.sock)
        connection.sock.close()

    def _reply(self, head: bytes) -> bytes:
        words = head.split(b"\r\n", 1)[0].decode("latin-1").split(" ")
        if len(words) != 3 or not words[2].startswith("HTTP/1."):
            return _response(400, _TEXT, b"not an HTTP request\n")
        if words[0] not in ("GET", "HEAD"):
            return _response(405, _TEXT, b"only GET and HEAD\n", "Allow: GET, HEAD\r\n")
        try:
            status, kind, body = self._page(words[1].partition("?")[0])
        except Exception as error:
            log.exception("the health page failed")
            status, kind, body = 500, _TEXT, f"{type(error).__name__}; see the server's log\n".encode()
        return _response(status, kind, body, with_body=words[0] == "GET")

    def _page(self, path: str) -> tuple[int, str, bytes]:
        if path == "/healthz":
            status, line = judge(self._snapshot(), self._clock(), self._stale_s)
            return status, _TEXT, f"{line}\n".encode("utf-8", "replace")
        if path not in ("/metrics", "/status"):
            return 404, _TEXT, b"there are /healthz, /metrics and /status\n"
        now = time.monotonic()
        made, page = self._pages.get(path, (-float("inf"), (0, "", b"")))
        if now - made >= _FRESH_S:
            if path == "/metrics":
                page = (200, *self._metrics.render())
            else:
                page = (200, "application/json", (json.dumps(dict(self._snapshot()), default=str) + "\n").encode())
            self._pages[path] = (now, page)
        return page


def judge(snapshot: Mapping[str, Any], now: float, stale_s: float) -> tuple[int, str]:
    """HTTP status and line of `/healthz`, from a snapshot and the time on its clock."""
    if snapshot.get("draining"):
        return 503, "draining: it answers received requests and ends"
    if not snapshot.get("ready"):
        return 503, "starting: it is not ready yet"
    taken, since = number(snapshot.get("taken")), number(snapshot.get("computing_since"))
    if taken is not None and now - taken > stale_s:
        doing = (
            f"it has been computing a batch for {now - since:.1f} s" if since is not None else "it was not computing"
        )
        return 503, f"hanging: the serving thread was last heard {now - taken:.1f} s ago; {doing}"
    for gateway in snapshot.get("gateways") or ():
        if gateway.get("state") != "listening":
            why = f": {gateway['error']}" if gateway.get("error") else ""
            return 503, f"gateway {gateway.get('name')} is {_STATES.get(gateway.get('state'), 'not there')}{why}"
    return 200, "ok"


def _response(status: int, kind: str, body: bytes, more: str = "", with_body: bool = True) -> bytes:
    head = (
        f"HTTP/1.1 {status} {_REASONS[status]}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n"
        f"Cache-Control: no-store\r\nConnection: close\r\n{more}\r\n"
    )
    return head.encode() + (body if with_body else b"")


def _parse(address: str) -> tuple[str, int]:
    found = _ADDRESS.fullmatch(address)
    if found is None or int(found[2]) > 65535:
        raise UserError("not an address for HTTP", address[:200], "write host:port, such as 127.0.0.1:8080")
    host = found[1].strip("[]")
    host = "127.0.0.1" if host in ("", "localhost") else host
    try:
        local = ipaddress.ip_address(host).is_loopback
    except ValueError:
        local = False
    if not local:
        raise UserError(
            "the health page has no credentials and is for this machine only",
            address,
            "use 127.0.0.1, and put an SSH tunnel or a reverse proxy with TLS in front",
        )
    return host, int(found[2])
