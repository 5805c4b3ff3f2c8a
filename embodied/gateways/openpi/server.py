"""Gateway for openpi's clients: a WebSocket server that answers with the policy server's action chunks.

It is a process of its own, without torch. Each connection has a thread and a session of the policy server, so that the
server batches and versions, and a slow, silent or hostile client delays only itself.
"""

import http
import logging
import socket
import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from embodied.errors import EmbodiedError, UserError
from embodied.gateways.embodiment import Embodiment
from embodied.gateways.gateway import Gateway, failure_line, gateway_of, line_of, serve
from embodied.gateways.listener import is_key, listen
from embodied.gateways.openpi import messages as openpi
from embodied.gateways.openpi.connection import OpenpiConnection
from embodied.gateways.openpi.heartbeat import Heartbeat
from embodied.gateways.openpi.settings import OpenpiSettings
from embodied.gateways.send_watchdog import SendWatchdog, cut_off
from embodied.spec import PolicySpec

if TYPE_CHECKING:
    from websockets.http11 import Request, Response
    from websockets.sync.server import Server, ServerConnection

log = logging.getLogger(__name__)
_HANDSHAKES = logging.getLogger(f"{__name__}.handshakes")
_HANDSHAKES.setLevel(logging.CRITICAL)  # failed handshakes are not logged

CLOSE_REASON = "Internal server error. Traceback included in previous frame."
"""Close reason that openpi's clients expect after an error."""

_HANDSHAKES_AT_ONCE = 32  # connections before the end of their handshake; beyond, the oldest is closed for the newest
_SHAKE_S = 5.0
_PING_S, _PONG_S = 20.0, 60.0
_CLOSE_S = 2.0
_DRAIN_S = 2.0
_REASON_BYTES = 120  # a close frame holds 125


class OpenpiGateway(Gateway[OpenpiSettings, Embodiment]):
    """Gateway for openpi's clients; see `Gateway`."""

    protocol, settings_class = "openpi", OpenpiSettings

    def __init__(self, settings: OpenpiSettings) -> None:
        super().__init__(settings)
        self._lock = threading.Lock()
        self._open = self._raw = self._seen = 0
        self._handshaking: dict[int, socket.socket] = {}
        self._stopping = threading.Event()
        self._watch = SendWatchdog()

    def mapping(self, spec: PolicySpec) -> Embodiment:
        return Embodiment.from_config(self._settings.embodiment, spec)

    def check(self, spec: PolicySpec) -> None:
        _websockets()
        super().check(spec)

    def open(self) -> str:
        settings = self._settings
        start = _websockets()
        self.spec = self._ask_spec()
        self._heartbeat = Heartbeat(self.connect(priority="tool"), settings.server, settings.timeout_s)
        self._heartbeat.start()
        self._limits = openpi.Limits(total=self.mapping(self.spec).message_bytes)
        self._server: Server = start(
            self._serve_client,
            sock=listen(self._host, self._port, settings.address),
            compression=None,
            origins=[None],  # no browser page of another site
            process_request=self._authorize,
            open_timeout=_SHAKE_S,
            close_timeout=_CLOSE_S,
            ping_interval=_PING_S,
            ping_timeout=_PONG_S,
            max_size=self._limits.total,
            max_queue=1,  # each may be as long as a message
            logger=_HANDSHAKES,
        )
        shake = self._server.handler
        self._server.handler = lambda sock, peer: self._accept(shake, sock, peer)
        host, port = self._server.socket.getsockname()[:2]
        return f"ws://[{host}]:{port}" if ":" in host else f"ws://{host}:{port}"

    def run(self, stop: threading.Event) -> int:
        threading.Thread(target=self._server.serve_forever, name="accept", daemon=True).start()
        self._watch.start()
        stop.wait()
        self._stopping.set()
        threading.Thread(target=self._server.shutdown, args=(False,), daemon=True).start()
        limit = time.monotonic() + min(self._settings.timeout_s, _DRAIN_S) + _CLOSE_S
        while self._raw and time.monotonic() < limit:
            time.sleep(0.02)
        self._heartbeat.close()
        self._watch.close()
        return 0

    def _accept(self, shake: Callable[[socket.socket, Any], None], sock: socket.socket, peer: Any) -> None:
        """Handle one TCP connection, in its own thread."""
        with self._lock:
            self._raw += 1
            self._handshaking[id(sock)] = sock
            oldest = next(iter(self._handshaking.values())) if len(self._handshaking) > _HANDSHAKES_AT_ONCE else None
        if oldest is not None:
            cut_off(oldest)
        try:
            shake(sock, peer)
        finally:
            with self._lock:
                self._raw -= 1
                self._handshaking.pop(id(sock), None)

    def _authorize(self, connection: "ServerConnection", request: "Request") -> "Response | None":
        """Answer plain HTTP and refuse unauthorized requests; None accepts the connection."""
        with self._lock:
            self._handshaking.pop(id(connection.socket), None)
        trouble = self._heartbeat.trouble
        if request.path.partition("?")[0] == "/healthz":
            return connection.respond(*((503, f"{trouble}\n") if trouble else (200, "OK\n")))
        if not is_key(request.headers.get_all("Authorization"), self._settings.api_key):
            return connection.respond(http.HTTPStatus.UNAUTHORIZED, "send Authorization: Api-Key <key>\n")
        if trouble:
            return connection.respond(http.HTTPStatus.SERVICE_UNAVAILABLE, f"{trouble}\n")
        if self._open >= self._settings.connections:
            many = f"{self._open} clients are connected already\n"
            return connection.respond(http.HTTPStatus.SERVICE_UNAVAILABLE, many)
        return None

    def _serve_client(self, connection: "ServerConnection") -> None:
        """Serve one client until it leaves."""
        from websockets.exceptions import ConnectionClosed

        with self._lock:
            self._open += 1
            full = self._open > self._settings.connections
            number = self._seen = self._seen + 1
        client = self.connect()
        try:
            if full:
                connection.close(1013, "too many clients")
                return
            self._answer_requests(connection, OpenpiConnection(client, self._settings, self._heartbeat, number))
        except ConnectionClosed:
            pass
        except EmbodiedError as error:
            self._close_with_error(connection, line_of(error, 4000))
        except Exception as error:
            log.exception("a connection of the openpi gateway failed")
            self._close_with_error(connection, failure_line(error, self.protocol))
        finally:
            client.close()
            with self._lock:
                self._open -= 1

    def _answer_requests(self, connection: "ServerConnection", robot: OpenpiConnection) -> None:
        settings = self._settings
        with self._watch.within(connection.socket, settings.timeout_s + settings.send_s):
            try:
                greeting = robot.greet()
            except EmbodiedError as error:  # a client expects no text as its first message
                connection.close(1011, line_of(error, _REASON_BYTES))
                return
            connection.send(openpi.encode(greeting))
        while (data := self._next(connection)) is not None:
            with self._watch.within(connection.socket, settings.timeout_s + settings.send_s):
                if isinstance(data, str):
                    raise UserError("a text frame", "openpi request", "send binary msgpack, as openpi's client does")
                answer = openpi.encode(robot.infer(openpi.decode(data, self._limits)))
            with self._watch.within(connection.socket, settings.send_s):
                connection.send(answer)
            robot.sent()
        with self._watch.within(connection.socket, 2 * _CLOSE_S):
            connection.close(1001, "the gateway ends" if self._stopping.is_set() else "idle for too long")

    def _next(self, connection: "ServerConnection") -> bytes | str | None:
        """Next request; None when the connection is to be closed."""
        limit = time.monotonic() + self._settings.idle_s
        with self._watch.within(connection.socket, self._settings.idle_s + _CLOSE_S):
            while not self._stopping.is_set() and time.monotonic() < limit:
                try:
                    return connection.recv(timeout=0.5)
                except TimeoutError:
                    continue
        return None

    def _close_with_error(self, connection: "ServerConnection", line: str) -> None:
        """Send an error as openpi's server does, one line in place of its traceback, and close."""
        from websockets.exceptions import ConnectionClosed

        with self._watch.within(connection.socket, self._settings.send_s):
            try:
                connection.send(line)
                connection.close(1011, CLOSE_REASON)
            except ConnectionClosed:
                pass


def run(
    values: Mapping[str, Any], announce: Callable[[str], object] = print, stop: threading.Event | None = None
) -> int:
    """Answer openpi's clients, with plain values of `OpenpiSettings`; see `serve`."""
    return serve(gateway_of(OpenpiGateway, values), announce, stop)


def _websockets() -> Any:
    try:
        from websockets.sync.server import serve
    except ImportError:
        raise UserError("websockets is not installed", "openpi gateway", "pip install 'embodied-rl[gateway]'") from None
    return serve
