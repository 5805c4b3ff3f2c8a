"""Worker of the GR00T gateway: a thread with a session of the policy server that answers one request at a time."""

import logging
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import zmq

from embodied.client import RemoteClient, version_label
from embodied.data import Observation, Rows
from embodied.errors import EmbodiedError, InfrastructureError, SpecMismatch
from embodied.gateways.gateway import failure_line, line_of
from embodied.gateways.groot.key_mapping import GrootKeys
from embodied.gateways.groot.messages import Generation, pack
from embodied.gateways.groot.settings import GrootSettings
from embodied.spec import PolicySpec

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ActionRequest:
    """Request for actions.

    Attributes:
        envelope: Frames that precede the answer.
        data: Data of the request.
        generation: Generation of the client.
        env: Environment of its first row.
        episode, step: Episode and step of its rows.
        arrived: Time of arrival, seconds.
        size: Bytes of its message.
    """

    envelope: list[bytes]
    data: Any
    generation: Generation
    env: int
    episode: int
    step: int
    arrived: float
    size: int


class GrootWorker:
    """Thread with its own session of the policy server; answers go to `inproc://done` as number, envelope, message.

    Args:
        number: Index among the workers.
        context: ZeroMQ context of the gateway.
        connect: Opens the session, in the thread.
        spec: Spec of the policy for which `keys` were made.
        keys: Mapping of keys.
        options: Settings of the gateway.
        clock: Monotonic seconds.

    Attributes:
        outdated: Whether the server has another policy by now.
    """

    def __init__(
        self,
        number: int,
        context: "zmq.Context[zmq.Socket[bytes]]",
        connect: Callable[[], RemoteClient],
        spec: PolicySpec,
        keys: GrootKeys,
        options: GrootSettings,
        clock: Callable[[], float],
    ) -> None:
        self._number, self._context, self._connect = number, context, connect
        self._spec, self._keys, self._options, self._clock = spec, keys, options, clock
        self.outdated = False
        self._requests: queue.SimpleQueue[ActionRequest | None] = queue.SimpleQueue()
        self._labels: dict[int, str] = {}
        self._thread = threading.Thread(target=self._run, name=f"groot-{number}", daemon=True)
        self._thread.start()

    def give(self, request: ActionRequest) -> None:
        """Queue a request; the worker is idle."""
        self._requests.put(request)

    def stop(self) -> None:
        """End the thread after the answer under way."""
        self._requests.put(None)

    def ended(self, timeout_s: float) -> bool:
        """Whether the thread has ended after at most `timeout_s` seconds."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        done = self._context.socket(zmq.PUSH)
        done.linger = 0
        done.connect("inproc://done")
        number = self._number.to_bytes(4, "little")
        client: RemoteClient | None = None
        try:
            while (request := self._requests.get()) is not None:
                try:
                    client = client or self._connect()
                    answer = pack(self._answer(client, request), request.generation)
                except EmbodiedError as error:
                    answer = pack({"error": line_of(error)})
                except Exception as error:
                    log.exception("a GR00T request could not be answered")
                    answer = pack({"error": failure_line(error, "GR00T")})
                done.send_multipart([number, *request.envelope, answer])
        except zmq.ContextTerminated:
            pass
        finally:
            done.close()
            if client is not None:
                client.close()

    def _answer(self, client: RemoteClient, request: ActionRequest) -> Any:
        start = self._clock()
        modern = request.generation == "n1.6"
        asked = self._keys.observe(request.data["observation"] if modern else request.data, self._options.max_rows)
        count = asked.rows
        rows = Rows.of_envs(count)
        rows.env += request.env
        rows.episode[:], rows.step[:] = request.episode, request.step
        observation = Observation(rows, asked.streams, np.zeros(count))
        try:
            chunk = client.act(observation, rows.noise_keys(self._options.seed), self._options.mode)
        except SpecMismatch:
            self._check_policy(client)
            raise
        if chunk.actions.shape[1:] != (self._spec.chunk, self._spec.agent.action_dim):
            self._check_policy(client)
        action = self._keys.answer(chunk.actions, asked)
        if not modern:
            return action
        number = int(chunk.versions[0])
        timing = {"wait_ms": (start - request.arrived) * 1000, "infer_ms": (self._clock() - start) * 1000}
        info = {"policy_version": number, "policy_label": self._label(client, number), "timing": timing}
        return [action, info]

    def _check_policy(self, client: RemoteClient) -> None:
        """Raise if the server has another policy than the gateway's."""
        if client.hello().to_dict() != self._spec.to_dict():
            self.outdated = True
            raise InfrastructureError("the policy server has another policy now", "GR00T gateway", "ask again shortly")

    def _label(self, client: RemoteClient, number: int) -> str:
        """Label of a version; its number alone if another one is served by now."""
        if number not in self._labels:
            served, digest = client.version()
            if served != number:
                return str(number)
            self._labels = {number: version_label((served, digest))}
        return self._labels[number]
