"""Policy that asks a GR00T server of either generation over ZeroMQ, with its keys mapped to streams."""

import time
from collections.abc import Mapping
from typing import Any

import numpy as np
import zmq
from numpy.typing import NDArray

from embodied.errors import (
    Busy,
    ConfigError,
    DataError,
    DeadlineExceeded,
    EmbodiedError,
    InfrastructureError,
    MessageError,
    Unauthorized,
    nearest,
)
from embodied.gateways.groot.key_mapping import GrootKeys
from embodied.gateways.groot.messages import GENERATIONS, UNAUTHORIZED, Generation, pack, request, unpack
from embodied.gateways.remote_policy import RemotePolicy, check_sizes, secret
from embodied.settings import configured
from embodied.spec import AgentSpec, PolicySpec
from embodied.wire import addresses

_LOOK_S = 0.2  # how often a lost connection is looked for while waiting
_ANSWER_BYTES = 1 << 26
_TEXT = 500


class GrootClient:
    """`InferenceClient` of a GR00T server: several rows a request; it connects at the first request.

    Args:
        address: `tcp://host:port`, or `host:port`.
        keys: Mapping of the server's modalities.
        generation: Generation of the server.
        nested: Whether to send maps of modalities instead of keys such as `video.front`.
        token: `api_token` of the server; None sends none.
        timeout_s: Deadline of one `infer`, seconds.
        max_rows: Rows of one request; more rows take several requests, one after another.

    Raises:
        UserError: The address is malformed.
    """

    def __init__(
        self,
        address: str,
        keys: GrootKeys,
        generation: Generation,
        nested: bool,
        token: str | None,
        timeout_s: float,
        max_rows: int = 64,
    ) -> None:
        self._connection = _Connection(address if "://" in address else f"tcp://{address}", timeout_s)
        self.where = self._connection.where
        self._keys, self._modern, self._nested, self._token = keys, generation != "n1.5", nested, token or ""
        self._max_rows, self._timeout_s = max_rows, timeout_s

    def infer(self, streams: Mapping[str, NDArray[Any]], rows: int) -> list[NDArray[np.float32]]:
        limit, made = time.monotonic() + self._timeout_s, list[NDArray[np.float32]]()
        while (start := len(made)) < rows:
            count = min(self._max_rows, rows - start)
            some = {name: array[start : start + count] for name, array in streams.items()}
            made += self._infer(some, count, max(limit - time.monotonic(), 0.0))
        return made

    def _infer(self, streams: Mapping[str, NDArray[Any]], rows: int, timeout_s: float) -> list[NDArray[np.float32]]:
        seen = self._keys.request(streams, self._nested)
        data = {"observation": seen, "options": None} if self._modern else seen
        answer = self.ask("get_action", data, timeout_s)
        if self._modern:
            if not isinstance(answer, list) or len(answer) != 2:
                raise DataError("the answer is no pair of action and info", self.where, "is its generation n1.5?")
            answer = answer[0]
        return list(self._keys.actions_of(answer, rows))

    def ask(self, endpoint: str, data: Any = None, timeout_s: float | None = None) -> Any:
        """Answer of any endpoint; raises as `infer`."""
        wait_s = self._timeout_s if timeout_s is None else timeout_s
        said = self._connection.ask(pack(request(endpoint, data, self._token)), endpoint, wait_s)
        try:
            answer = unpack(said)
        except MessageError as error:
            raise MessageError(error.what, self.where, "check that it is a GR00T server") from None
        if isinstance(answer, dict) and "error" in answer:
            raise _refusal(" ".join(str(answer["error"]).split())[:_TEXT], self.where)
        return answer

    def close(self) -> None:
        self._connection.close()


class GrootPolicy(RemotePolicy):
    """Chunks of a GR00T server, of `max_rows` rows in one request.

    Args:
        name: Name of the policy.
        agent: Streams of the environment's agent; `spec` has those that the embodiment names.
        address: `host:port` of the server. Its protocol is not encrypted: beyond this machine put SSH in front.
        chunk: Actions of the server's chunk that are taken, K.
        execute: Actions to execute before asking again; None for all.
        generation: `n1.6`, also for later ones, or `n1.5`.
        flat: Whether to send keys such as `video.front` to a server of the later generation that was started for
            simulation; N1.5 always gets them.
        embodiment: Mapping of keys, see `embodied.gateways.groot.key_mapping`.
        api_key: `api_token` of the server; `env:NAME` reads it from the environment.
        timeout_s: Seconds to wait for the answers for all rows, a restart of the server included.
        max_rows: Rows of one request; our gateway accepts 64.

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
        chunk: int = 16,
        execute: int | None = None,
        generation: Generation = "n1.6",
        flat: bool = False,
        embodiment: Mapping[str, Any] | str = "native",
        api_key: str | None = None,
        timeout_s: float = 15.0,
        max_rows: int = 64,
    ) -> None:
        check_sizes(chunk, execute, timeout_s)
        if type(max_rows) is not int or max_rows < 1:
            raise ConfigError(f"max_rows {max_rows!r}", "policy.max_rows", "choose a whole number from 1")
        if generation not in GENERATIONS:
            raise ConfigError(f"generation {generation!r}", "policy.generation", nearest(generation, GENERATIONS))
        keys = GrootKeys.for_env(embodiment, agent)
        used = {stream.name for stream in keys.streams}
        needs = tuple(stream for stream in agent.observations if stream.name in used)
        extra = {"kind": "groot", "generation": generation, "embodiment": keys.name}
        spec = PolicySpec(name, AgentSpec(needs, agent.actions), chunk, execute or chunk, extra)
        nested, token = generation != "n1.5" and not flat, secret(api_key, "policy.api_key")
        super().__init__(spec, GrootClient(address, keys, generation, nested, token, timeout_s, max_rows))


class _Connection:
    """Connection like a REQ socket's, with a deadline; after a lost connection the request is sent again."""

    def __init__(self, address: str, timeout_s: float) -> None:
        addresses.check(address)
        self._address, self._timeout_s = address, timeout_s
        self.where = f"GR00T server at {address}"
        self._context: zmq.Context[zmq.Socket[bytes]] | None = None
        self._socket: zmq.Socket[bytes] | None = None
        self._events: zmq.Socket[bytes] | None = None

    def ask(self, message: bytes, endpoint: str, timeout_s: float) -> bytes:
        limit = time.monotonic() + timeout_s
        sock = self._open()
        sent = False
        while (left := limit - time.monotonic()) > 0:
            if not sent:
                if sock.poll(round(min(left, _LOOK_S) * 1000) + 1, zmq.POLLOUT):
                    self._lost()
                    sock.send_multipart([b"", message], zmq.NOBLOCK)
                    sent = True
            elif sock.poll(round(min(left, _LOOK_S) * 1000) + 1, zmq.POLLIN):
                parts = sock.recv_multipart(zmq.NOBLOCK)
                return parts[-1]
            else:
                sent = not self._lost()
        self.close()  # a late answer must not be read as the next request's
        doing = "is it busy?" if sent else "no server listens there; start it, then ask again"
        raise DeadlineExceeded(f"no answer to {endpoint} within {self._timeout_s:g} s", self.where, doing)

    def _open(self) -> zmq.Socket[bytes]:
        if self._socket is None:
            self._context = zmq.Context()
            sock = self._socket = self._context.socket(zmq.DEALER)
            sock.linger, sock.maxmsgsize = 0, _ANSWER_BYTES
            sock.immediate = True  # a request to a dead server waits here, not in a queue that outlives its deadline
            sock.reconnect_ivl, sock.reconnect_ivl_max = 50, 1000
            sock.tcp_keepalive, sock.tcp_keepalive_idle, sock.tcp_keepalive_intvl = 1, 5, 1
            self._events = sock.get_monitor_socket(zmq.EVENT_DISCONNECTED)
            try:
                sock.connect(self._address.replace("//localhost:", "//127.0.0.1:"))
            except zmq.ZMQError as error:
                self.close()
                raise ConfigError(f"cannot connect: {error}", self._address, "write tcp://<host>:<port>") from None
        return self._socket

    def _lost(self) -> bool:
        """Whether the connection broke since the last call."""
        broke = False
        while self._events is not None and self._events.poll(0):
            self._events.recv_multipart(zmq.NOBLOCK)
            broke = True
        return broke

    def close(self) -> None:
        if self._socket is not None and self._events is not None and self._context is not None:
            self._socket.disable_monitor()
            self._events.close(0)
            self._context.destroy(linger=0)
        self._context = self._socket = self._events = None


def _refusal(said: str, where: str) -> EmbodiedError:
    if said == UNAUTHORIZED:
        return Unauthorized(said, where, "give its api_key")
    if said.startswith("busy"):
        return Busy(said, where, "ask again later")
    return InfrastructureError(f"it answered with an error: {said}", where, "see its log")


def build(agent: AgentSpec, seed: int = 0, **config: Any) -> GrootPolicy:
    """Build the policy from a config: `config` holds arguments of `GrootPolicy`, `seed` is unused."""
    return configured(GrootPolicy, config, agent=agent)
