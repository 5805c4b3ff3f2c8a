"""Client of a versioned policy in this process."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from numpy.typing import ArrayLike, NDArray

from embodied.client.base import Manifest, Mode, Version, asked_agents
from embodied.data import ActionChunk, Observation, Rows
from embodied.spec import EnvSpec, PolicySpec
from embodied.wire.probe import ProbeResult


class LocalPolicy(Protocol):
    """Methods of `embodied.serving.versioned_policy.VersionedPolicy` that the client calls."""

    @property
    def spec(self) -> PolicySpec: ...

    @property
    def version(self) -> Version: ...

    def act(self, observation: Observation, noise_keys: NDArray[Any], mode: Mode) -> ActionChunk: ...

    def switch(self, manifest: Any, tensors: Mapping[str, NDArray[Any]], back: bool = False) -> Version: ...

    def outcome(self, rows: Rows, outcomes: ArrayLike, versions: ArrayLike | None = None) -> None: ...

    def probe(self, observation: Observation) -> ProbeResult: ...


class LocalClient:
    """`PolicyClient` by direct calls."""

    def __init__(self, policy: LocalPolicy) -> None:
        self._policy = policy

    def hello(self, env: EnvSpec | None = None, agent: str | Sequence[str] | None = None) -> PolicySpec:
        if env is not None:
            for name in asked_agents(env, agent):
                self._policy.spec.check_env(env, name)
        return self._policy.spec

    def act(self, observation: Observation, noise_keys: NDArray[Any], mode: Mode) -> ActionChunk:
        return self._policy.act(observation, noise_keys, mode)

    def push(
        self, manifest: Manifest, tensors: Mapping[str, NDArray[Any]], back: bool = False, signature: str = ""
    ) -> Version:
        return self._policy.switch(manifest, tensors, back)

    def outcome(self, rows: Rows, outcomes: ArrayLike, versions: ArrayLike | None = None) -> None:
        self._policy.outcome(rows, outcomes, versions)

    def version(self) -> Version:
        return self._policy.version

    def probe(self, observation: Observation) -> ProbeResult:
        return self._policy.probe(observation)

    def tick(self) -> None:
        """Nothing to do: the policy is in this process."""

    def close(self) -> None:
        """Nothing to do: the policy stays."""
