"""Policy that asks an openpi server over WebSockets, with its keys mapped to streams."""

import re
import socket
import struct
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embodied.errors import (
    DataError,
    DeadlineExceeded,
    EmbodiedError,
    InfrastructureError,
    MessageError,
    Unauthorized,
    UserError,
)
from embodied.gateways.embodiment import Embodiment
from embodied.gateways.openpi import messages as openpi
from embodied.gateways.remote_policy import RemotePolicy, check_sizes, secret
from embodied.settings import configured
from embodied.spec import AgentSpec, PolicySpec

_ADDRESS = re.compile(r"(?:wss?://)?(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9._-]+)(:\d{1,5})?(/\S*)?")
_ANSWER = openpi.Limits(total=1 << 26)
_AGAIN_S = 0.1
_TEXT = 500
_CONNECTIONS = 8


class OpenpiClient:
    """`InferenceClient` of an openpi server: one connection a row, made at the first request.

    A request whose connection breaks is sent again when the server is back, within its deadline.

    Args:
        address: `host:port`, `ws://host:port` or `wss://host`.
        embodiment: Mapping of the server's keys.
        api_key: Key sent in `Authorization: Api-Key <key>`; None sends none.
        timeout_s: Deadline of one `infer`, seconds.

    Raises:
        UserError: The address is malformed.
    """

    def __init__(self, address: str, embodiment: Embodiment, api_key: str | None, timeout_s: float) -> None:
        found = _ADDRESS.fullmatch(address)
        if found is None or int((found[2] or ":0")[1:]) > 65535:
            raise UserError("not an address", address[:200], "write host:port, ws://host:port or wss://host")
        self._url = address if "://" in address else f"ws://{address}"
        self.where = f"openpi server at {self._url}"
        self._embodiment, self._timeout_s = embodiment, timeout_s
        self._headers = {"Authorization": f"Api-Key {api_key}"} if api_key else None
        self._connections: list[Any] = []

    def infer(self, streams: Mapping[str, NDArray[Any]], rows: int) -> list[NDArray[np.float32]]:
        limit = time.monotonic() + self._timeout_s
        made: list[NDArray[np.float32]] = []
        while len(made) < rows:
            some = range(len(made), min(len(made) + _CONNECTIONS, rows))
            requests = [
                openpi.encode(self._embodiment.request({name: array[row] for name, array in streams.items()}))
                for row in some
            ]
            made += [self._embodiment.actions_of(answer) for answer in self._exchange(requests, limit)]
        return made

    def close(self) -> None:
        connections, self._connections = self._connections, []
        for connection in connections:
            _drop(connection)

    def _exchange(self, requests: list[bytes], limit: float) -> list[dict[str, Any]]:
        """Send every request on its own connection, then read every answer."""
        sent = [False] * len(requests)
        answers: list[dict[str, Any]] = []
        try:
            for index, request in enumerate(requests):
                sent[index] = self._send(index, request, limit)
            for index, request in enumerate(requests):
                answers.append(self._receive(index, request, sent[index], limit))
        except BaseException:
            self.close()  # a late answer must not be read as the next request's
            raise
        return answers

    def _send(self, index: int, request: bytes, limit: float) -> bool:
        """Whether the request was sent; connects where there is no connection."""
        from websockets.exceptions import ConnectionClosed

        while len(self._connections) <= index:
            self._connections.append(self._connect(limit))
        try:
            if self._connections[index] is None:
                self._connections[index] = self._connect(limit)
            self._connections[index].send(request)
        except ConnectionClosed as closed:  # it broke since the last answer
            self._check(closed)
            self._connections[index] = None
            return False
        return True

    def _receive(self, index: int, request: bytes, sent: bool, limit: float) -> dict[str, Any]:
        from websockets.exceptions import ConnectionClosed

        while True:
            if not sent:
                if time.monotonic() >= limit:
                    raise self._late("its connection breaks again and again; look at its log")
                sent = self._send(index, request, limit)
                continue
            try:
                return self._read(self._connections[index].recv(timeout=max(limit - time.monotonic(), 0.0)))
            except TimeoutError:
                raise self._late("it is busy or hangs: look at its log, or allow more time") from None
            except ConnectionClosed as closed:
                self._check(closed)
                self._connections[index], sent = None, False
                time.sleep(min(_AGAIN_S, max(limit - time.monotonic(), 0.0)))

    def _read(self, data: bytes | str) -> dict[str, Any]:
        if isinstance(data, str):
            lines = [line for line in data[-10_000:].splitlines() if line.strip()] or ["nothing"]
            said = " ".join(lines[-1].split())[:_TEXT]
            raise InfrastructureError(f"it answered with an error: {said}", self.where, "see its log")
        try:
            return openpi.decode(data, _ANSWER)
        except MessageError as error:
            raise MessageError(error.what, self.where, error.fix) from None

    def _check(self, closed: Any) -> None:
        """Raise if a connection was closed for another reason than a restart."""
        frame = closed.rcvd
        if frame is not None and frame.code == 1011 and frame.reason and "keepalive" not in frame.reason:
            raise InfrastructureError(f"it closed the connection: {frame.reason}", self.where, "see its log")
        if (frame is not None and frame.code == 1009) or (closed.sent is not None and closed.sent.code == 1009):
            raise DataError("a message is larger than the other side takes", self.where, "send smaller images")

    def _connect(self, limit: float) -> Any:
        """Open a connection and read the server's metadata."""
        try:
            from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus
            from websockets.sync.client import connect
        except ImportError:
            fix = "pip install 'embodied-rl[gateway]'"
            raise UserError("websockets is not installed", self.where, fix) from None
        why = "no server listens there; start it, then ask again"
        while (left := limit - time.monotonic()) > 0:
            connection = None
            try:
                connection = connect(
                    self._url,
                    additional_headers=self._headers,
                    compression=None,
                    max_size=_ANSWER.total,
                    open_timeout=left,
                    close_timeout=1.0,
                    ping_timeout=60.0,
                    max_queue=4,
                    proxy=None,
                ).__enter__()
                _bound_sends(connection.socket, self._timeout_s)
                self._read(connection.recv(timeout=max(limit - time.monotonic(), 0.0)))
                return connection
            except InvalidStatus as error:
                status, body = error.response.status_code, error.response.body or b""
                said = " ".join(body[:_TEXT].decode("utf-8", "replace").split()) or f"status {status}"
                if status in (401, 403):
                    raise Unauthorized(f"it refused the key: {said}", self.where, "give its api_key") from None
                if status not in (502, 503, 504):
                    raise InfrastructureError(
                        f"it refused the connection: {said}", self.where, "check that it speaks openpi"
                    ) from None
                why = f"it said: {said}"
            except ConnectionClosed as closed:
                self._check(closed)
                why = "it closed the connection without a message; look at its log"
            except TimeoutError:
                why = "it accepted the connection and sent nothing; check that it is the right server"
            except InvalidHandshake as error:  # also of a server that ends just now
                why = f"no WebSocket server: {error}; check that it is the right one"
            except OSError as error:
                if isinstance(error, socket.gaierror):
                    raise InfrastructureError("unknown host name", self.where, "correct the address") from None
                if not isinstance(error, ConnectionError):
                    why = f"it cannot be reached: {error}"
            except EmbodiedError:
                _drop(connection)
                raise
            _drop(connection)
            time.sleep(min(_AGAIN_S, max(limit - time.monotonic(), 0.0)))
        raise self._late(why)

    def _late(self, why: str) -> DeadlineExceeded:
        return DeadlineExceeded(f"no answer within {self._timeout_s:g} s", self.where, why)


def _drop(connection: Any) -> None:
    if connection is not None:
        with suppress(Exception):
            connection.socket.shutdown(socket.SHUT_RDWR)  # else `close` would wait for a close frame
        with suppress(Exception):
            connection.close()


def _bound_sends(sock: socket.socket, seconds: float) -> None:
    """Bound the time of a send, so that a server that never reads counts as a lost connection."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", int(seconds), int(seconds % 1 * 1e6)))


class OpenpiPolicy(RemotePolicy):
    """Chunks of an openpi server.

    Args:
        name: Name of the policy.
        agent: Streams of the environment's agent; `spec` has those that the embodiment names.
        address: `host:port` of the server. Beyond this machine put TLS (`wss://`) or SSH in front.
        chunk: Actions of the server's chunk that are taken, K.
        execute: Actions to execute before asking again; None for all.
        embodiment: See `embodied.gateways.embodiment`.
        api_key: Key of the server; `env:NAME` reads it from the environment.
        timeout_s: Seconds to wait for an answer, a restart of the server included.

    Raises:
        ConfigError: An argument is out of range, or the embodiment is wrong.
        UserError: The address is malformed.
        SpecMismatch: The agent has no stream that the embodiment names.
    """

    def __init__(
        self,
        name: str,
        agent: AgentSpec,
        address: str,
        chunk: int = 10,
        execute: int | None = None,
        embodiment: Mapping[str, Any] | str = "native",
        api_key: str | None = None,
        timeout_s: float = 10.0,
    ) -> None:
        check_sizes(chunk, execute, timeout_s)
        made = Embodiment.for_env(embodiment, agent)
        used = {source.stream.name for source in made.sources}
        needs = tuple(stream for stream in agent.observations if stream.name in used)
        extra = {"kind": "openpi", "embodiment": made.name}
        spec = PolicySpec(name, AgentSpec(needs, agent.actions), chunk, execute or chunk, extra)
        super().__init__(spec, OpenpiClient(address, made, secret(api_key, "policy.api_key"), timeout_s))


def build(agent: AgentSpec, seed: int = 0, **config: Any) -> OpenpiPolicy:
    """Build the policy from a config: `config` holds arguments of `OpenpiPolicy`, `seed` is unused."""
    return configured(OpenpiPolicy, config, agent=agent)
