"""Translation of one openpi client's requests to observations, and of action chunks to its answers."""

import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from embodied.client import Version, version_label
from embodied.data import Observation, Rows
from embodied.gateways.embodiment import Embodiment
from embodied.gateways.openpi.heartbeat import Heartbeat
from embodied.gateways.openpi.settings import OpenpiSettings
from embodied.gateways.shared_client import SharedClient
from embodied.gateways.unread_keys import UnreadKeys

_NUMBERS = 1 << 31


class OpenpiConnection:
    """Session of one openpi client at the policy server.

    Args:
        client: Client of the policy server, shared by all connections.
        settings: Settings of the gateway.
        heartbeat: Cache of the hashes of versions.
        number: Number of the connection: its environment in rows and noise keys.
        unread: Log of the keys that are not read.
    """

    def __init__(
        self,
        client: SharedClient,
        settings: OpenpiSettings,
        heartbeat: Heartbeat,
        number: int,
        unread: UnreadKeys,
    ) -> None:
        self._client, self._settings, self._heartbeat, self._number = client, settings, heartbeat, number % _NUMBERS
        self._requests, self._unread = 0, unread
        self._began = self._start = time.monotonic()
        self._total_ms: float | None = None

    async def greet(self) -> dict[str, Any]:
        """Metadata as plain values: the policy, the request that it expects, and its answer."""
        await self._heartbeat.refresh()
        spec = self._heartbeat.spec
        self._embodiment = Embodiment.from_config(self._settings.embodiment, spec)
        number, digest = version = self._heartbeat.version
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

    async def infer(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Answer to one request. All values but actions are plain, since clients slice every array.

        Raises:
            SpecMismatch: See `Embodiment.observe`.
            EmbodiedError: The policy server answers with an error, or does not answer.
        """
        self._start = time.monotonic()
        rows = Rows.of_envs(1)
        rows.env[:] = self._number
        rows.episode[:] = self._requests
        self._requests += 1
        streams = {name: value[None] for name, value in self._embodiment.observe(request).items()}
        if self._requests == 1:
            self._unread.say(self._embodiment.unread(request))
        observation = Observation(rows, streams, np.array([self._start - self._began]))
        chunk = await self._client.act(observation, rows.noise_keys(self._settings.seed), self._settings.mode)
        number, digest = version = await self._version(int(chunk.versions[0]))
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
        """Note that an answer was sent; its total time is part of the next answer."""
        self._total_ms = (time.monotonic() - self._start) * 1000

    async def _version(self, number: int) -> Version:
        """Number and hash of a version; the hash is empty if it is unknown and another version is served."""
        digest = self._heartbeat.digest(number)
        if digest is None:
            await self._heartbeat.refresh()
            digest = self._heartbeat.digest(number)
        return number, digest or ""
