"""One openpi client as a robot of the policy server: its requests as observations, chunks as its answers."""

import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from embodied.client import RemoteClient, Version, version_label
from embodied.data import Observation, Rows
from embodied.gateways.embodiment import Embodiment
from embodied.gateways.openpi.heartbeat import Heartbeat
from embodied.gateways.openpi.settings import OpenpiSettings

_NUMBERS = 1 << 31


class Robot:
    """Answers the requests of one connection.

    Args:
        client: Its session of the policy server.
        settings: Of the gateway.
        pulse: Knows the hashes of versions.
        number: Of the connection; the body and, with the request's number, the noise.
    """

    def __init__(self, client: RemoteClient, settings: OpenpiSettings, pulse: Heartbeat, number: int) -> None:
        self._client, self._settings, self._pulse, self._number = client, settings, pulse, number % _NUMBERS
        self._requests = 0
        self._began = self._start = time.monotonic()
        self._total_ms: float | None = None

    def greet(self) -> dict[str, Any]:
        """The metadata: which policy, what it is to be sent and what it answers, as plain values."""
        spec = self._client.hello()
        self._embodiment = Embodiment.from_config(self._settings.embodiment, spec)
        number, digest = version = self._client.version()
        self._pulse.note(number, digest)
        return {
            "policy": spec.name,
            "policy_version": number,
            "policy_hash": digest,
            "policy_label": version_label(version),
            "chunk": spec.chunk,
            "action_dim": spec.agent.action_dim,
            "embodiment": self._embodiment.name,
            "observation": self._embodiment.keys,
            "max_request_bytes": self._embodiment.message_bytes,
            "action": {key: [spec.chunk, len(columns)] for key, columns in self._embodiment.outputs.items()},
        }

    def infer(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """The answer to one request; what is no action is a plain value, since clients slice every array.

        Raises:
            SpecMismatch: See `Embodiment.observe`.
            EmbodiedError: As the policy server says, or it does not answer.
        """
        self._start = time.monotonic()
        rows = Rows.of_envs(1)
        rows.env[:] = self._number
        rows.episode[:] = self._requests
        self._requests += 1
        streams = {name: value[None] for name, value in self._embodiment.observe(request).items()}
        observation = Observation(rows, streams, np.array([self._start - self._began]))
        chunk = self._client.act(observation, rows.noise_keys(self._settings.seed), self._settings.mode)
        number, digest = version = self._version(int(chunk.versions[0]))
        infer_ms = (time.monotonic() - self._start) * 1000
        server_timing = {"infer_ms": infer_ms}
        if self._total_ms is not None:
            server_timing["prev_total_ms"] = self._total_ms
        return {
            **self._embodiment.reply(chunk.actions[0]),
            "policy_timing": {"infer_ms": infer_ms},
            "server_timing": server_timing,
            "policy_version": number,
            "policy_hash": digest,
            "policy_label": version_label(version),
        }

    def sent(self) -> None:
        """The answer is on its way: how long it took in all is said with the next one."""
        self._total_ms = (time.monotonic() - self._start) * 1000

    def _version(self, number: int) -> Version:
        """A version in full; without a hash if another one is served by now and nobody saw this one."""
        digest = self._pulse.digest(number)
        if digest is None:
            self._pulse.note(*self._client.version())
            digest = self._pulse.digest(number)
        return number, digest or ""
