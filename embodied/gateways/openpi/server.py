"""Gateway for openpi's clients: a WebSocket server that answers with the policy server's action chunks.

It is a process of its own, without torch. One event loop serves all connections, and they share a few sessions of the
policy server, so that a slow, silent or hostile client delays only itself and costs one descriptor.
"""

import asyncio
import http
import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from embodied.errors import DeadlineExceeded, EmbodiedError, UserError
from embodied.gateways.embodiment import Embodiment
from embodied.gateways.gateway import Gateway, failure_line, gateway_of, line_of, serve
from embodied.gateways.listener import is_key, listen
from embodied.gateways.openpi import messages as openpi
from embodied.gateways.openpi.connection import OpenpiConnection
from embodied.gateways.openpi.heartbeat import Heartbeat
from embodied.gateways.openpi.settings import OpenpiSettings
from embodied.gateways.shared_client import SharedClient
from embodied.gateways.unread_keys import UnreadKeys
from embodied.spec import PolicySpec
from embodied.supervisor import heartbeat

if TYPE_CHECKING:
    from websockets.asyncio.server import ServerConnection
    from websockets.http11 import Request, Response

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
_LOOK_S = 0.1  # interval at which `stop` is checked
_BEAT_S, _BEAT_LIMIT_S = 1.0, 2.0
_REASON_BYTES = 120  # a close frame holds 125


class OpenpiGateway(Gateway[OpenpiSettings, Embodiment]):
    """Gateway for openpi's clients; see `Gateway`."""

    protocol, settings_class = "openpi", OpenpiSettings

    def __init__(self, settings: OpenpiSettings) -> None:
        super().__init__(settings)
        self._seen, self._unread = 0, UnreadKeys("the gateway's embodiment")
        self._handshaking: OrderedDict[Any, asyncio.BaseTransport] = OrderedDict()
        self._open: set[ServerConnection] = set()
        self._busy: set[ServerConnection] = set()
        self._stopping = False

    def mapping(self, spec: PolicySpec) -> Embodiment:
        return Embodiment.from_config(self._settings.embodiment, spec)

    def check(self, spec: PolicySpec) -> None:
        _websockets()
        super().check(spec)

    def open(self) -> str:
        settings = self._settings
        _websockets()
        self.spec = self._ask_spec()
        self._limits = openpi.Limits(total=self.mapping(self.spec).message_bytes)
        self._listener = listen(self._host, self._port, settings.address)
        self._heartbeat = Heartbeat(self.connect(priority="tool"), settings.server, settings.timeout_s)
        self._heartbeat.start()
        host, port = self._listener.getsockname()[:2]
        return f"ws://[{host}]:{port}" if ":" in host else f"ws://{host}:{port}"

    def run(self, stop: threading.Event) -> int:
        asyncio.run(self._run(stop))
        self._heartbeat.close()
        return 0

    async def _run(self, stop: threading.Event) -> None:
        asyncio.get_running_loop().set_exception_handler(_Troubles())
        self._client = SharedClient(self.connect)
        server = await _websockets()(
            self._serve_client,
            sock=self._listener,
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
            create_connection=_bounded(self._handshaking),
        )
        beating = asyncio.create_task(self._beat())
        while not stop.is_set():
            await asyncio.sleep(_LOOK_S)
        beating.cancel()
        self._stopping = True
        server.close(close_connections=False)
        for transport in list(self._handshaking.values()):
            _abort(transport)
        closing = [self._end(connection) for connection in self._open - self._busy]
        closed = asyncio.gather(*closing, server.wait_closed(), return_exceptions=True)
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(closed, min(self._settings.timeout_s, _DRAIN_S) + _CLOSE_S)
        self._client.close()

    async def _beat(self) -> None:
        """Send a heartbeat to the launcher each second in which this gateway accepts and answers a request."""
        host, port = self._listener.getsockname()[:2]
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
        while True:
            with suppress(OSError, asyncio.TimeoutError):
                reader, writer = await asyncio.wait_for(asyncio.open_connection(host, port), _BEAT_LIMIT_S)
                try:
                    writer.write(b"GET /healthz HTTP/1.1\r\nHost: gateway\r\n\r\n")
                    if await asyncio.wait_for(reader.readline(), _BEAT_LIMIT_S):
                        heartbeat()
                finally:
                    writer.close()
            await asyncio.sleep(_BEAT_S)

    def _authorize(self, connection: "ServerConnection", request: "Request") -> "Response | None":
        """Answer plain HTTP and refuse unauthorized requests; None accepts the connection."""
        self._handshaking.pop(connection, None)
        trouble = self._heartbeat.trouble
        if request.path.partition("?")[0] == "/healthz":
            return connection.respond(*((503, f"{trouble}\n") if trouble else (200, "OK\n")))
        if not is_key(request.headers.get_all("Authorization"), self._settings.api_key):
            return connection.respond(http.HTTPStatus.UNAUTHORIZED, "send Authorization: Api-Key <key>\n")
        if trouble:
            return connection.respond(http.HTTPStatus.SERVICE_UNAVAILABLE, f"{trouble}\n")
        if len(self._open) >= self._settings.connections:
            many = f"{len(self._open)} clients are connected already\n"
            return connection.respond(http.HTTPStatus.SERVICE_UNAVAILABLE, many)
        return None

    async def _serve_client(self, connection: "ServerConnection") -> None:
        """Serve one client until it leaves."""
        from websockets.exceptions import ConnectionClosed

        self._open.add(connection)
        self._seen += 1
        try:
            if len(self._open) > self._settings.connections:
                await connection.close(1013, "too many clients")
                return
            robot = OpenpiConnection(self._client, self._settings, self._heartbeat, self._seen, self._unread)
            await self._answer_requests(connection, robot)
        except ConnectionClosed:
            pass
        except EmbodiedError as error:
            await self._close_with_error(connection, line_of(error, 4000))
        except Exception as error:
            log.exception("a connection of the openpi gateway failed")
            await self._close_with_error(connection, failure_line(error, self.protocol))
        finally:
            self._open.discard(connection)
            self._busy.discard(connection)

    async def _answer_requests(self, connection: "ServerConnection", robot: OpenpiConnection) -> None:
        try:
            greeting = await robot.greet()
        except EmbodiedError as error:  # a client expects no text as its first message
            await connection.close(1011, line_of(error, _REASON_BYTES))
            return
        await self._send(connection, openpi.encode(greeting))
        while not self._stopping:
            try:
                data = await asyncio.wait_for(connection.recv(), self._settings.idle_s)
            except TimeoutError:
                break
            self._busy.add(connection)
            if isinstance(data, str):
                raise UserError("a text frame", "openpi request", "send binary msgpack, as openpi's client does")
            answer = openpi.encode(await robot.infer(openpi.decode(data, self._limits)))
            await self._send(connection, answer)
            robot.sent()
            self._busy.discard(connection)
        await self._end(connection)

    async def _send(self, connection: "ServerConnection", data: bytes | str) -> None:
        """Send a message; a client that does not read it in time is cut off."""
        try:
            await asyncio.wait_for(connection.send(data), self._settings.send_s)
        except TimeoutError:
            _abort(connection.transport)
            raise DeadlineExceeded("an answer was not read in time", "openpi client", "read every answer") from None

    async def _end(self, connection: "ServerConnection") -> None:
        await connection.close(1001, "the gateway ends" if self._stopping else "idle for too long")

    async def _close_with_error(self, connection: "ServerConnection", line: str) -> None:
        """Send an error as openpi's server does, one line in place of its traceback, and close."""
        from websockets.exceptions import ConnectionClosed

        with suppress(ConnectionClosed, DeadlineExceeded):
            await self._send(connection, line)
            await connection.close(1011, CLOSE_REASON)


class _Troubles:
    """Exception handler of a loop, which logs each kind of trouble once: a full table of descriptors lasts."""

    def __init__(self) -> None:
        self._said: set[str] = set()

    def __call__(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        message = str(context.get("message"))
        if message not in self._said:
            self._said.add(message)
            log.error("%s: %s", message, context.get("exception"))


def _bounded(handshaking: "OrderedDict[Any, asyncio.BaseTransport]") -> Any:
    """Class of connections, of which only the newest may be without a complete handshake."""
    from websockets.asyncio.server import ServerConnection

    class Connection(ServerConnection):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            super().connection_made(transport)
            handshaking[self] = transport
            if len(handshaking) > _HANDSHAKES_AT_ONCE:
                _abort(handshaking.popitem(last=False)[1])

        def connection_lost(self, error: Exception | None) -> None:
            handshaking.pop(self, None)
            super().connection_lost(error)

    return Connection


def _abort(transport: asyncio.BaseTransport) -> None:
    assert isinstance(transport, asyncio.WriteTransport)
    transport.abort()


def run(
    values: Mapping[str, Any], announce: Callable[[str], object] = print, stop: threading.Event | None = None
) -> int:
    """Answer openpi's clients, with plain values of `OpenpiSettings`; see `serve`."""
    return serve(gateway_of(OpenpiGateway, values), announce, stop)


def _websockets() -> Any:
    try:
        from websockets.asyncio.server import serve
    except ImportError:
        raise UserError("websockets is not installed", "openpi gateway", "pip install 'embodied-rl[gateway]'") from None
    return serve
