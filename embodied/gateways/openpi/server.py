"""Gateway for openpi's clients: a WebSocket server that answers with the policy server's action chunks.

It is a process of its own, without torch. Each connection has a thread and a session of the policy server, so that the
server batches and versions, and a slow, silent or hostile client delays only itself.
"""

import http
import logging
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from embodied.client import RemoteClient
from embodied.errors import EmbodiedError, InfrastructureError, UserError
from embodied.gateways.embodiment import Embodiment
from embodied.gateways.listener import is_key, is_loopback, listen, one_of_several, parse, probe, signals
from embodied.gateways.openpi import messages as openpi
from embodied.gateways.openpi.connection import OpenpiConnection
from embodied.gateways.openpi.heartbeat import Heartbeat
from embodied.gateways.openpi.settings import OpenpiSettings
from embodied.gateways.send_watchdog import SendWatchdog, cut_off
from embodied.settings import configured
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


class OpenpiGateway:
    """Gateway for openpi's clients; `open`, then `run`.

    Raises:
        UserError: The address is malformed, or beyond this machine without an API key.
    """

    def __init__(self, settings: OpenpiSettings) -> None:
        self._settings = settings
        self._host, self._port = parse(settings.address)
        if settings.api_key == "":
            raise UserError("an empty api_key", "api_key", "give one, or none")
        if settings.api_key is None and not is_loopback(self._host):
            raise UserError(
                "others could reach this address, and no api_key is given",
                settings.address,
                "use 127.0.0.1, or give api_key and put TLS or SSH in front",
            )
        self._lock = threading.Lock()
        self._open = self._raw = self._seen = 0
        self._handshaking: dict[int, socket.socket] = {}
        self._stopping = threading.Event()
        self._watch = SendWatchdog()

    def open(self) -> str:
        """Connect to the policy server, then listen; returns the address in the form of openpi's client.

        Raises:
            DeadlineExceeded: The policy server does not answer.
            ConfigError, SpecMismatch: The embodiment does not fit the policy.
            UserError: The address is in use, not of this machine, or websockets is not installed.
        """
        settings = self._settings
        serve = _websockets()
        self._heartbeat = Heartbeat(settings.server, settings.timeout_s, settings.keys, settings.policy)
        with one_of_several(settings.policy):
            self.spec = self._heartbeat.start(settings.start_s)
        embodiment = Embodiment.from_config(settings.embodiment, self.spec)
        self._limits = openpi.Limits(total=embodiment.message_bytes)
        self._server: Server = serve(
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

    def run(self, stop: threading.Event) -> None:
        """Answer until `stop` is set; requests under way are answered first."""
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
        asked = self._settings
        client = RemoteClient(asked.server, asked.timeout_s, asked.keys, priority="robot", policy=asked.policy)
        try:
            if full:
                connection.close(1013, "too many clients")
                return
            self._answer_requests(connection, OpenpiConnection(client, self._settings, self._heartbeat, number))
        except ConnectionClosed:
            pass
        except EmbodiedError as error:
            self._close_with_error(connection, error)
        except Exception as error:
            log.exception("a connection of the openpi gateway failed")
            what = f"{type(error).__name__} in the gateway"
            self._close_with_error(connection, InfrastructureError(what, "openpi gateway", "see its log"))
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
                connection.close(1011, _cut(error.line(), _REASON_BYTES))
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

    def _close_with_error(self, connection: "ServerConnection", error: EmbodiedError) -> None:
        """Send an error as openpi's server does, one line in place of its traceback, and close."""
        from websockets.exceptions import ConnectionClosed

        with self._watch.within(connection.socket, self._settings.send_s):
            try:
                connection.send(_cut(error.line(), 4000))
                connection.close(1011, CLOSE_REASON)
            except ConnectionClosed:
                pass


def check(settings: OpenpiSettings, spec: PolicySpec) -> None:
    """Check that a gateway with these settings could start in front of a policy.

    Raises:
        ConfigError, SpecMismatch: The embodiment does not fit the policy.
        UserError: As `OpenpiGateway` and its `open`.
    """
    OpenpiGateway(settings)
    _websockets()
    Embodiment.from_config(settings.embodiment, spec)
    probe(*parse(settings.address), settings.address)


def run(
    settings: OpenpiSettings, announce: Callable[[str], object] = print, stop: threading.Event | None = None
) -> int:
    """Answer openpi's clients until SIGINT, SIGTERM or `stop`; returns the exit status.

    Args:
        settings: Settings of the gateway.
        announce: Called with one line when the gateway listens.
        stop: Ends the gateway when set.

    Raises:
        EmbodiedError: As `OpenpiGateway` and its `open`.
    """
    stop = stop or threading.Event()
    gateway = OpenpiGateway(settings)
    with signals(stop):
        bound = gateway.open()
        announce(f"answering openpi clients for policy {settings.policy or gateway.spec.name} at {bound}")
        gateway.run(stop)
    return 0


def main(arguments: Sequence[str]) -> int:
    """Run `python -m embodied.gateways.openpi.server server=ADDRESS [field=value ...]`, fields of `OpenpiSettings`."""
    words = [argument.partition("=") for argument in arguments]
    given = {name: _scalar(value) for name, _, value in words}
    return run(configured(OpenpiSettings, given, "openpi gateway"))


def _scalar(text: str) -> int | float | str:
    """A word of a command line as the number that it writes, or as it is."""
    try:
        return int(text)
    except ValueError:
        try:
            return float(text)
        except ValueError:
            return text


def _websockets() -> Any:
    try:
        from websockets.sync.server import serve
    except ImportError:
        raise UserError("websockets is not installed", "openpi gateway", "pip install 'embodied-rl[gateway]'") from None
    return serve


def _cut(text: str, size: int) -> str:
    return text.encode("utf-8", "replace")[:size].decode("utf-8", "ignore")


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except EmbodiedError as error:
        print(error.line(), file=sys.stderr)
        sys.exit(error.exit_status)
