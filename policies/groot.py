"""A GR00T server, of either generation, as a policy: asked over ZeroMQ, its actions mapped to our streams."""

import os
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
import zmq
from numpy.typing import NDArray

from embodied.data import ActionChunk, Observation
from embodied.errors import (
    Busy,
    ConfigError,
    DataError,
    DeadlineExceeded,
    EmbodiedError,
    InfrastructureError,
    Unauthorized,
    WeightsRefused,
    nearest,
)
from embodied.spec import AgentSpec, PolicySpec
from embodied.wire import addresses
from embodied.wire.groot import GENERATIONS, UNAUTHORIZED, Generation, pack, request, unpack
from embodied.wire.groot_keys import GrootKeys
from policies.base import Mode

_LOOK_S = 0.2  # how often a lost connection is looked for while waiting
_ANSWER_BYTES = 1 << 26
_TEXT = 500


class GrootPolicy:
    """Chunks of a GR00T server. It has no weights of ours, so log-probabilities and values are NaN.

    Args:
        name: Name of the policy.
        agent: Streams offered; those that the embodiment does not name are left out of `spec`.
        address: `tcp://host:port` of the server. GR00T's protocol is not encrypted: use it on this machine, or through
            SSH.
        chunk: Actions of the server's chunk that are taken, K.
        execute: How many of them to execute before asking again; all where not given.
        generation: `n1.6`, also for later ones, or `n1.5`.
        flat: Send `video.front` and the like to a server of the later generation, as one that was started for
            simulation wants it; N1.5 always takes that.
        embodiment: See `embodied.wire.groot_keys`.
        token: The server's `api_token`; `env:NAME` reads it from the environment.
        timeout_s: Seconds to wait for an answer, a restart of the server included.

    Raises:
        ConfigError: An argument is out of range, or the embodiment is wrong.
        UserError: The address is malformed.
        SpecMismatch: The body does not offer what the embodiment names.
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
        token: str | None = None,
        timeout_s: float = 15.0,
    ) -> None:
        if generation not in GENERATIONS:
            raise ConfigError(f"generation {generation!r}", "policy.generation", nearest(generation, GENERATIONS))
        if not 1 <= chunk <= 4096 or not (execute is None or 1 <= execute <= chunk):
            raise ConfigError(f"chunk {chunk}, execute {execute}", "policy", "1 <= execute <= chunk <= 4096")
        if not timeout_s > 0:
            raise ConfigError(f"timeout_s {timeout_s}", "policy.timeout_s", "choose more than 0 seconds")
        self._keys = GrootKeys.for_body(embodiment, agent)
        used = {stream.name for stream in self._keys.streams}
        needs = tuple(stream for stream in agent.observations if stream.name in used)
        extra = {"kind": "groot", "generation": generation, "embodiment": self._keys.name}
        self.spec = PolicySpec(name, AgentSpec(needs, agent.actions), chunk, execute or chunk, extra)
        self._nested = generation != "n1.5" and not flat
        self._generation, self._token = generation, _secret(token)
        self._asker = _Asker(address, timeout_s)

    def act(self, observation: Observation, noise_keys: NDArray[np.int64], mode: Mode) -> ActionChunk:
        """See `policies.base.Policy`; the server draws its own noise, so `noise_keys` and `mode` change nothing.

        Raises:
            DeadlineExceeded: No answer in time.
            Unauthorized: The token is wrong.
            InfrastructureError: The server answered with an error.
            DataError: Its actions are missing, not finite, of another shape, or too few.
        """
        count, spec = len(observation.rows), self.spec
        actions = np.zeros((0, spec.chunk, spec.agent.action_dim), np.float32)
        if count:
            seen = self._keys.request(observation.streams, self._nested)
            modern = self._generation != "n1.5"
            answer = self.ask("get_action", {"observation": seen, "options": None} if modern else seen)
            if modern:
                if not isinstance(answer, list) or len(answer) != 2:
                    raise DataError("the answer is no [action, info]", self._asker.address, "set generation=n1.5?")
                answer = answer[0]
            given = self._keys.actions_of(answer, count)
            if given.shape[1] < spec.chunk:
                raise DataError(
                    f"chunks of {given.shape[1]} actions, and {spec.chunk} are wanted",
                    f"GR00T server at {self._asker.address}",
                    f"set chunk={given.shape[1]}",
                )
            actions = np.ascontiguousarray(given[:, : spec.chunk])
        return ActionChunk(
            observation.rows,
            actions,
            np.full(actions.shape, np.nan, np.float32),
            np.full(count, np.nan, np.float32),
            np.zeros(count, np.int64),
            spec.name,
        )

    def ask(self, endpoint: str, data: Any = None) -> Any:
        """The answer of any endpoint; raises as `act`."""
        where = f"GR00T server at {self._asker.address}"
        answer = unpack(self._asker.ask(pack(request(endpoint, data, self._token)), endpoint))
        if isinstance(answer, dict) and "error" in answer:
            raise _refusal(" ".join(str(answer["error"]).split())[:_TEXT], where)
        return answer

    def tensors(self) -> dict[str, NDArray[Any]]:
        """None: the weights are the server's."""
        return {}

    def load(self, tensors: Mapping[str, NDArray[Any]]) -> None:
        if tensors:
            raise WeightsRefused(
                f"{len(tensors)} tensors for a policy whose weights are a GR00T server's",
                f"policy {self.spec.name}",
                "load them there",
            )

    def close(self) -> None:
        """Drop the connection; the next request makes a new one."""
        self._asker.close()


class _Asker:
    """What a REQ socket does, with a deadline: a lost connection is noticed, and the request sent again."""

    def __init__(self, address: str, timeout_s: float) -> None:
        addresses.check(address)
        self.address, self._timeout_s = address, timeout_s
        self._context: zmq.Context[zmq.Socket[bytes]] | None = None
        self._socket: zmq.Socket[bytes] | None = None
        self._events: zmq.Socket[bytes] | None = None

    def ask(self, message: bytes, endpoint: str) -> bytes:
        limit = time.monotonic() + self._timeout_s
        sock = self._open()
        sent = False
        while (left := limit - time.monotonic()) > 0:
            if not sent:
                if sock.poll(round(min(left, _LOOK_S) * 1000) + 1, zmq.POLLOUT):
                    self._lost()
                    sock.send_multipart([b"", message], zmq.NOBLOCK)
                    sent = True
            elif sock.poll(round(min(left, _LOOK_S) * 1000) + 1, zmq.POLLIN):
                parts = sock.recv_multipart()
                return parts[-1]
            else:
                sent = not self._lost()
        self.close()  # an answer that comes too late must not be taken for the next one's
        doing = "is it busy?" if sent else "nobody listens there; start it, then ask again"
        raise DeadlineExceeded(
            f"no answer to {endpoint} within {self._timeout_s:g} s", f"GR00T server at {self.address}", doing
        )

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
                sock.connect(self.address.replace("//localhost:", "//127.0.0.1:"))
            except zmq.ZMQError as error:
                self.close()
                raise ConfigError(f"cannot be called: {error}", self.address, "write tcp://<host>:<port>") from None
        return self._socket

    def _lost(self) -> bool:
        """Whether the connection broke since this was last asked."""
        broke = False
        while self._events is not None and self._events.poll(0):
            self._events.recv_multipart()
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
        return Unauthorized(said, where, "give its token")
    if said.startswith("busy"):
        return Busy(said, where, "ask again later")
    return InfrastructureError(f"it answered with an error: {said}", where, "see its log")


def _secret(token: str | None) -> str:
    if not token or not token.startswith("env:"):
        return token or ""
    name = token.removeprefix("env:")
    if not os.environ.get(name):
        raise ConfigError(f"the environment has no {name}", "policy.token", f"export {name}=<token>")
    return os.environ[name]


def build(agent: AgentSpec, seed: int = 0, **config: Any) -> GrootPolicy:
    """The policy a config's import path points to; `config` holds any argument of `GrootPolicy`, `seed` is not used."""
    try:
        return GrootPolicy(agent=agent, **config)
    except TypeError as error:
        raise ConfigError(f"not a GR00T policy: {error}", "policy", "see the arguments of GrootPolicy") from None
