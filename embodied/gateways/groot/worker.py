"""One session of the policy server for the GR00T gateway: a thread that turns requests into answers, one at a time."""

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
from embodied.gateways.groot.key_mapping import GrootKeys
from embodied.gateways.groot.messages import Generation, pack
from embodied.gateways.groot.settings import GrootSettings
from embodied.spec import PolicySpec

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Job:
    """A request for actions.

    Attributes:
        envelope: Frames in front of the answer.
        data: What the client sent.
        generation: Its generation.
        body: Number of its first row's body.
        episode, step: Where it is.
        arrived: When it came, seconds.
        size: Bytes of its message.
    """

    envelope: list[bytes]
    data: Any
    generation: Generation
    body: int
    episode: int
    step: int
    arrived: float
    size: int


class Worker:
    """A thread with a session of its own; answers go to `inproc://done` as number, envelope and message.

    Args:
        number: Its place among the workers.
        context: Of the gateway.
        connect: Makes the session, in the thread.
        spec: Of the policy that `keys` were made for.

    Attributes:
        outdated: The server has another policy by now.
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
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._labels: dict[int, str] = {}
        self._thread = threading.Thread(target=self._run, name=f"groot-{number}", daemon=True)
        self._thread.start()

    def give(self, job: Job) -> None:
        """Answer this next."""
        self._jobs.put(job)

    def stop(self) -> None:
        """End after the answer under way."""
        self._jobs.put(None)

    def ended(self, timeout_s: float) -> bool:
        """Whether it has ended after at most `timeout_s` seconds."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        done = self._context.socket(zmq.PUSH)
        done.linger = 0
        done.connect("inproc://done")
        number = self._number.to_bytes(4, "little")
        client: RemoteClient | None = None
        try:
            while (job := self._jobs.get()) is not None:
                try:
                    client = client or self._connect()
                    answer = pack(self._answer(client, job), job.generation)
                except EmbodiedError as error:
                    answer = pack({"error": error.line().encode("utf-8", "replace").decode()[:2000]})
                except Exception as error:
                    log.exception("a GR00T request could not be answered")
                    answer = pack({"error": f"{type(error).__name__} in the GR00T gateway: see its log"})
                done.send_multipart([number, *job.envelope, answer])
        except zmq.ContextTerminated:
            pass
        finally:
            done.close()
            if client is not None:
                client.close()

    def _answer(self, client: RemoteClient, job: Job) -> Any:
        start = self._clock()
        modern = job.generation == "n1.6"
        asked = self._keys.observe(job.data["observation"] if modern else job.data, self._options.max_rows)
        count = asked.rows
        rows = Rows.of_envs(count)
        rows.env += job.body
        rows.episode[:], rows.step[:] = job.episode, job.step
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
        timing = {"wait_ms": (start - job.arrived) * 1000, "infer_ms": (self._clock() - start) * 1000}
        info = {"policy_version": number, "policy_label": self._label(client, number), "timing": timing}
        return [action, info]

    def _check_policy(self, client: RemoteClient) -> None:
        """Raise where the server has another policy than the one that the gateway was made for."""
        if client.hello().to_dict() != self._spec.to_dict():
            self.outdated = True
            raise InfrastructureError("the policy server has another policy now", "GR00T gateway", "ask again shortly")

    def _label(self, client: RemoteClient, number: int) -> str:
        """A version in full; its number alone if another one is served by now."""
        if number not in self._labels:
            served, digest = client.version()
            if served != number:
                return str(number)
            self._labels = {number: version_label((served, digest))}
        return self._labels[number]
