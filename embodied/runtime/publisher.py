"""From a learner's tensors to the version every policy server answers with."""

import time
from dataclasses import dataclass

from embodied.client import PolicyClient
from embodied.learning.learner import EpisodeLearner, Learner
from embodied.spec import PolicySpec
from embodied.weights.manifest import Manifest
from embodied.weights.registry import Registry

BLOCK = 16  # numbers reserved at once; a resumed run skips what is left of them


@dataclass
class Published:
    """One publication: what, how many bytes, how many seconds until the server answers with it."""

    manifest: Manifest
    bytes: int
    seconds: float


class Publisher:
    """Gives a learner's weights a number, keeps them, and sends them to the policy server.

    Args:
        registry: Where versions are kept.
        client: The server's client.
        spec: The policy's.
    """

    def __init__(self, registry: Registry, client: PolicyClient, spec: PolicySpec) -> None:
        self._registry, self._client, self._spec = registry, client, spec
        self.number = 0
        self._reserved = range(0)

    def publish(self, learner: Learner | EpisodeLearner) -> Published:
        """Publish what the learner holds under the next number.

        Raises:
            WeightsRefused: The receiver found them partial, stale or unfit; it goes on with the version it has.
        """
        start = time.perf_counter()
        tensors = learner.tensors()
        if not self._reserved:
            first = self._registry.reserve(self._spec.name, BLOCK)
            self._reserved = range(first, first + BLOCK)
        number, self._reserved = self._reserved[0], self._reserved[1:]
        manifest = self._registry.publish(self._spec.name, number, tensors, self._spec.to_dict())
        self._client.push(manifest, tensors)
        self.number = number
        size = sum(array.nbytes for array in tensors.values())
        return Published(manifest, size, time.perf_counter() - start)
