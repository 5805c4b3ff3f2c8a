"""The client of a policy server behind a socket."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from embodied.client.base import Manifest, Mode, Version
from embodied.data import ActionChunk, Observation, Rows
from embodied.errors import MessageError
from embodied.spec import BodySpec, PolicySpec
from embodied.wire.codecs import chunk_from_message, observation_to_arrays, rows_to_arrays
from embodied.wire.endpoint import Requester
from embodied.wire.message import Message


class RemoteClient:
    """`PolicyClient` over ZeroMQ. Every method raises `DeadlineExceeded` after `timeout_s`.

    Args:
        address: `tcp://host:port` or `ipc://path`.
        timeout_s: Seconds to wait for an answer, a restart of the server included.
        keys: Folder of CURVE keys, see `embodied.wire.addresses`.

    Raises:
        UserError: The address is malformed, without its folder, or beyond this machine without keys.
    """

    def __init__(self, address: str, timeout_s: float = 10.0, keys: str | Path | None = None) -> None:
        self._requester = Requester(address, "policy server", timeout_s=timeout_s, keys=keys)
        self._policy = ""
        self._streams: frozenset[str] | None = None

    def hello(self, body: BodySpec | None = None, agent: str = "robot") -> PolicySpec:
        answer = self._requester.request("hello", body={"body": body.to_dict() if body else None, "agent": agent})
        spec = PolicySpec.from_dict(_field(answer, "spec", dict))
        self._policy, self._streams = spec.name, frozenset(stream.name for stream in spec.agent.observations)
        return spec

    def act(self, observation: Observation, noise_keys: NDArray[Any], mode: Mode) -> ActionChunk:
        if self._streams is not None:
            wanted = {name: array for name, array in observation.streams.items() if name in self._streams}
            observation = Observation(observation.rows, wanted, observation.time)
        arrays = {**observation_to_arrays(observation), "noise_keys": noise_keys}
        answer = self._requester.request("act", policy=self._policy, body={"mode": mode}, arrays=arrays)
        return chunk_from_message(answer.body, answer.arrays)

    def push(self, manifest: Manifest, tensors: Mapping[str, NDArray[Any]]) -> Version:
        body = {"manifest": manifest.to_dict()}
        return _version(self._requester.request("push", policy=self._policy, body=body, arrays=tensors))

    def outcome(self, rows: Rows, outcomes: ArrayLike, versions: ArrayLike | None = None) -> None:
        arrays = {**rows_to_arrays(rows), "outcomes": np.asarray(outcomes, np.uint8)}
        if versions is not None:
            arrays["versions"] = np.asarray(versions, np.int64)
        self._requester.request("outcome", policy=self._policy, arrays=arrays)

    def version(self) -> Version:
        return _version(self._requester.request("status", policy=self._policy))

    def status(self) -> dict[str, Any]:
        """What the server says of itself: version, sessions, queue, counts, outcomes per version."""
        return self._requester.request("status", policy=self._policy).body

    def tick(self) -> None:
        self._requester.tick()

    def close(self) -> None:
        self._requester.close()


def _version(answer: Message) -> Version:
    return _field(answer, "number", int), _field(answer, "hash", str)


def _field(answer: Message, name: str, kind: type) -> Any:
    value = answer.body.get(name)
    if type(value) is not kind:
        raise MessageError(f"an answer without {name}", f"{answer.kind} of the policy server", "run the same version")
    return value
