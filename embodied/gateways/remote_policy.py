"""Policies that ask another project's server, independent of its protocol."""

import os
from collections.abc import Mapping
from typing import Annotated, Any, Protocol

import numpy as np
from annotated_types import Interval
from numpy.typing import NDArray

from embodied.data import ActionChunk, Observation
from embodied.errors import ConfigError, DataError, WeightsRefused
from embodied.settings import AtLeastOne, Seconds, validated
from embodied.spec import PolicySpec
from policies.base import Mode

MAX_CHUNK = 4096


class InferenceClient(Protocol):
    """Client of one inference server.

    Attributes:
        where: Name and address of the server, for errors.
    """

    where: str

    def infer(self, streams: Mapping[str, NDArray[Any]], rows: int) -> list[NDArray[np.float32]]:
        """Actions [K', D] of each row, in the order of the spec, from streams of [rows, *shape].

        Raises:
            DeadlineExceeded: No answer in time.
            Unauthorized: The key is wrong.
            InfrastructureError: The server answered with an error.
            DataError: The answer has no actions of that form.
        """
        ...

    def close(self) -> None:
        """Close the connection; the next request opens a new one."""
        ...


class RemotePolicy:
    """Chunks of the first K actions of a server's answers, without log-probabilities and values.

    Args:
        spec: Streams sent, actions expected, K.
        client: Client of the server.
    """

    def __init__(self, spec: PolicySpec, client: InferenceClient) -> None:
        self.spec, self._client = spec, client

    def act(self, observation: Observation, noise_keys: NDArray[np.int64], mode: Mode) -> ActionChunk:
        """See `policies.base.Policy`; the server samples its own noise, so `noise_keys` and `mode` have no effect.

        Raises:
            EmbodiedError: As `InferenceClient.infer`, or the server's chunks are too short.
        """
        spec, count = self.spec, len(observation.rows)
        actions = np.zeros((count, spec.chunk, spec.agent.action_dim), np.float32)
        for row, given in enumerate(self._client.infer(observation.streams, count) if count else ()):
            if len(given) < spec.chunk:
                what = f"chunks of {len(given)} actions, and {spec.chunk} are wanted"
                raise DataError(what, self._client.where, f"set chunk={len(given)}")
            actions[row] = given[: spec.chunk]
        return ActionChunk(
            observation.rows,
            actions,
            np.full(actions.shape, np.nan, np.float32),
            np.full(count, np.nan, np.float32),
            np.zeros(count, np.int64),
            spec.name,
        )

    def tensors(self) -> dict[str, NDArray[Any]]:
        """No tensors: the weights are the server's."""
        return {}

    def load(self, tensors: Mapping[str, NDArray[Any]]) -> None:
        if tensors:
            what = f"{len(tensors)} tensors for a policy whose weights are another server's"
            raise WeightsRefused(what, f"policy {self.spec.name}", f"load them into the {self._client.where}")

    def close(self) -> None:
        """Close the connection; the next request opens a new one."""
        self._client.close()


Chunk = Annotated[int, Interval(ge=1, le=MAX_CHUNK)]


@validated("policy", "chunk", "execute", "timeout_s")
def check_sizes(chunk: Chunk, execute: AtLeastOne | None, timeout_s: Seconds) -> None:
    """Raise `ConfigError` unless a remote policy's settings are in range."""
    if execute is not None and execute > chunk:
        raise ConfigError(f"chunk {chunk}, execute {execute}", "policy.execute", f"give 1 to {chunk}")


def secret(value: str | None, field: str) -> str | None:
    """API key; `env:NAME` reads it from the environment, None is no key.

    Raises:
        ConfigError: The environment has no such variable.
    """
    if not value or not value.startswith("env:"):
        return value or None
    name = value.removeprefix("env:")
    if not os.environ.get(name):
        raise ConfigError(f"the environment has no {name}", field, f"export {name}=<key>")
    return os.environ[name]
