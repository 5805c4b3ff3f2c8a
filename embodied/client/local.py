"""The client of a policy host in this process."""

from collections.abc import Mapping
from typing import Any, Protocol

from numpy.typing import ArrayLike, NDArray

from embodied.client.base import Manifest, Mode, Version
from embodied.data import ActionChunk, Observation, Rows
from embodied.spec import EnvSpec, PolicySpec
from embodied.wire.probe import Probed


class Host(Protocol):
    """What the client needs of `embodied.serving.versioned_policy.VersionedPolicy`."""

    @property
    def spec(self) -> PolicySpec: ...

    @property
    def version(self) -> Version: ...

    def act(self, observation: Observation, noise_keys: NDArray[Any], mode: Mode) -> ActionChunk: ...

    def switch(self, manifest: Any, tensors: Mapping[str, NDArray[Any]], back: bool = False) -> Version: ...

    def outcome(self, rows: Rows, outcomes: ArrayLike, versions: ArrayLike | None = None) -> None: ...

    def probe(self, observation: Observation) -> Probed: ...


class LocalClient:
    """`PolicyClient` by direct calls."""

    def __init__(self, host: Host) -> None:
        self._host = host

    def hello(self, body: EnvSpec | None = None, agent: str = "robot") -> PolicySpec:
        if body is not None:
            self._host.spec.check_env(body, agent)
        return self._host.spec

    def act(self, observation: Observation, noise_keys: NDArray[Any], mode: Mode) -> ActionChunk:
        return self._host.act(observation, noise_keys, mode)

    def push(
        self, manifest: Manifest, tensors: Mapping[str, NDArray[Any]], back: bool = False, signature: str = ""
    ) -> Version:
        return self._host.switch(manifest, tensors, back)

    def outcome(self, rows: Rows, outcomes: ArrayLike, versions: ArrayLike | None = None) -> None:
        self._host.outcome(rows, outcomes, versions)

    def version(self) -> Version:
        return self._host.version

    def probe(self, observation: Observation) -> Probed:
        return self._host.probe(observation)

    def tick(self) -> None:
        """Nothing to do: the host shares this process."""

    def close(self) -> None:
        """Nothing to do: the host stays."""
