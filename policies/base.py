"""The contract every policy fulfils."""

from collections.abc import Mapping
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from embodied.data import ActionChunk, Observation
from embodied.spec import PolicySpec

Mode = Literal["sample", "mean"]


class Policy(Protocol):
    """Observation rows in, action chunk out.

    A policy holds everything that turns physical streams into physical actions (normaliser, resize, tokens), frozen
    per version, so that a version means the same numbers wherever it runs.
    """

    spec: PolicySpec

    def act(self, observation: Observation, noise_keys: NDArray[np.int64], mode: Mode) -> ActionChunk:
        """Decide for B rows.

        Args:
            observation: B rows of the streams in `spec.agent.observations`; other streams are ignored.
            noise_keys: [B, 5] keys of `embodied.noise`; the only source of randomness.
            mode: `sample` draws from the distribution, `mean` takes its mode.

        Returns:
            A chunk whose `versions` are zero; the host stamps them. The same row gives the same numbers in any batch.
        """
        ...

    def tensors(self) -> dict[str, NDArray[Any]]:
        """Everything a version consists of, parameters and normaliser, as named arrays (copies)."""
        ...

    def load(self, tensors: Mapping[str, NDArray[Any]]) -> None:
        """Take over all tensors at once, as copies: the arrays are the caller's, who fills them anew.

        Raises:
            WeightsRefused: A name is missing or unknown, or a shape or dtype differs; nothing has changed then.
        """
        ...


@runtime_checkable
class Checking(Protocol):
    """A policy that cannot decide on every observation of the right form; not every policy is one."""

    def check(self, observation: Observation) -> None:
        """Look at one client's rows, before they are computed together with others'.

        Raises:
            DataError: A row means nothing to it, such as an empty instruction; names stream and row.
        """
        ...


@runtime_checkable
class Probing(Protocol):
    """A policy that shows how it decides, so that two copies of it can be compared; not every policy does."""

    def probe(self, observation: Observation) -> dict[str, NDArray[Any]]:
        """Named intermediate results for a few rows, in the order in which they are computed.

        Preprocessing first, such as `pictures/<camera>`, `words` and `state`; names as in `policies.probing`. Arrays
        are float32, float64, uint8, int32, int64 or bool.
        """
        ...
