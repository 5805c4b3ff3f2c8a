"""From a learner's tensors to the version every policy server answers with, unless a rollback holds publication."""

import math
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from embodied.client import LocalClient, PolicyClient
from embodied.errors import CorruptFile, DataError, InfrastructureError, UserError, WeightsHeld
from embodied.learning.learner import EpisodeLearner, Learner
from embodied.spec import PolicySpec
from embodied.weights.manifest import Manifest, Version
from embodied.weights.pointers import BY_SERVER, Held
from embodied.weights.registry import Registry

BLOCK = 16  # numbers reserved at once; a resumed run skips what is left of them
POLL_S = 0.5


@dataclass
class Published:
    """One publication: what, how many bytes, how many seconds until the server answers with it."""

    manifest: Manifest
    bytes: int
    seconds: float


class RestoreAsked(WeightsHeld):
    """Publication is held until the learner has restored the checkpoint of what was rolled back to."""


@dataclass
class Patience:
    """How a learner waits while publication is held.

    Attributes:
        run: How commands name the run, such as `run=runs/reach`.
        limit_s: Seconds after which it gives up.
        say: Shows one line.
        clock, sleep: Seconds, monotonic.
    """

    run: str = "run=latest"
    limit_s: float = math.inf
    say: Callable[[str], None] = print
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep


class Publisher:
    """Gives a learner's weights a number, keeps them, and sends them to the policy server.

    After a rollback, in the registry or on the server, it sees to it that the version rolled back to is served, says
    so, and waits until somebody says to go on.

    Args:
        registry: Where versions are kept.
        client: The server's client.
        spec: The policy's.
        patience: How it waits.

    Attributes:
        number: Of the version last published.
        waited_s: Seconds spent on waiting.
    """

    def __init__(
        self, registry: Registry, client: PolicyClient, spec: PolicySpec, patience: Patience | None = None
    ) -> None:
        self._registry, self._client, self._spec = registry, client, spec
        self._patience = patience or Patience()
        self.number, self.waited_s = 0, 0.0
        self._parent = ""
        self._reserved = range(0)

    def publish(
        self, learner: Learner | EpisodeLearner, restored: Held | None = None, parent: int | None = None
    ) -> Published:
        """Publish what the learner holds under the next number. Its parent is the version last published here.

        Args:
            restored: The hold that asked for the checkpoint the learner has been restored from.
            parent: Number of the version that the learner was restored from, instead of the one last published.

        Raises:
            RestoreAsked: A rollback holds publication, and the run is to go back to a checkpoint.
            WeightsRefused: The receiver found them partial, stale or unfit; it goes on with the version it has.
            InfrastructureError: Nobody said to go on in time, or the server cannot be reached.
        """
        start, waited = time.perf_counter(), self.waited_s
        tensors = learner.tensors()
        if not self._reserved:
            first = self._registry.reserve(self._spec.name, BLOCK)
            self._reserved = range(first, first + BLOCK)
        if parent is not None:
            origin = self._registry.stored(self._spec.name, parent)
            self._parent = origin.label if origin else ""
        number = self._reserved[0]
        manifest = self._keep(number, tensors, restored)
        self._reserved = self._reserved[1:]
        self._send(manifest, tensors)
        self.number, self._parent = number, manifest.label
        learner.published(manifest.version)
        size = sum(array.nbytes for array in tensors.values())
        return Published(manifest, size, time.perf_counter() - start - (self.waited_s - waited))

    def pair(self, step: int, steps: Collection[int]) -> None:
        """Note that checkpoint `step` has the weights last published; `steps` are the checkpoints there are."""
        name = self._spec.name
        try:
            before = self._registry.pointers(name).paired
            # A later one's checkpoint is of a continuation that was left.
            paired = {version.number: old for version, old in before.items() if old < step and old in steps}
            self._registry.pair(name, {**paired, self.number: step})
        except CorruptFile as error:
            self._patience.say(f"versions are not paired with checkpoints: {error.line()}")

    def _keep(self, number: int, tensors: Mapping[str, NDArray[Any]], restored: Held | None) -> Manifest:
        """Write the version into the registry, once that is not held any more."""
        name, since = self._spec.name, self._patience.clock()
        served: Version | None = None
        said = False
        while True:
            try:
                return self._registry.publish(name, number, tensors, self._spec.to_dict(), self._parent, restored)
            except WeightsHeld as error:
                wanted = self._registry.wanted(name)
                if wanted is not None and wanted != served:
                    self._serve(wanted)
                    served = wanted
                if not said:
                    self._say(error)
                    said = True
                self._pause(since)

    def _send(self, manifest: Manifest, tensors: Mapping[str, NDArray[Any]]) -> None:
        """Push the version to the server, once that is not held any more."""
        since, refused = self._patience.clock(), False
        while True:
            try:
                self._client.push(manifest, tensors, signature=self._signature(manifest))
                break
            except WeightsHeld as error:
                if not refused:
                    self._hold_too(error)
                    self._say(error)
                    refused = True
                self._pause(since)
        if refused:
            self._check_restore()
            self._registry.resume(manifest.policy, by=BY_SERVER)

    def _serve(self, version: Version) -> None:
        """Have the server answer with a version of the registry, older than the one it has."""
        name, before = self._spec.name, Version(*self._client.version())
        if before == version:
            return
        try:
            manifest, tensors = self._registry.read(name, version.label)
            now = Version(*self._client.push(manifest, tensors, back=True, signature=self._signature(manifest)))
        except WeightsHeld:
            return  # what it rolled back to itself stays
        except DataError as error:
            self._patience.say(f"version {before.label} goes on being served: {error.line()}")
            return
        if isinstance(self._client, LocalClient):  # a server writes its own line
            self._registry.record("switch", name, now, **{"from": before.label, "why": "rollback", "server": "inline"})

    def _hold_too(self, error: WeightsHeld) -> None:
        """The server is held: so is the registry from now on, where `embodied weights resume run=...` finds it."""
        name, served = self._spec.name, Version(*self._client.version())
        versions = self._registry.versions(name)
        older = [version for version in versions if version.number <= served.number] or versions[:1]
        try:
            if self._registry.held(name) is None:
                self._registry.rollback(name, older[-1].label, by=BY_SERVER, note=error.where)
        except UserError as refusal:
            self._patience.say(f"the run's registry is not held, though its server is: {refusal.line()}")

    def _say(self, error: WeightsHeld) -> None:
        name, run = self._spec.name, self._patience.run
        number, digest = self._client.version()
        held = self._registry.held(name)
        restorable = self._registry.restorable(name)
        line = f"training waits: version {number}-{digest} of {name} is served again, held {held or error.where}; "
        line += f"`embodied weights resume {run}` goes on with what was learned since"
        if restorable:
            line += f", `embodied weights resume {run} restore=true` from the checkpoint of step {restorable[0][1]}"
        self._patience.say(line)

    def _pause(self, since: float) -> None:
        patience = self._patience
        self._check_restore()
        run = patience.run.partition("=")[2]
        if patience.clock() - since >= patience.limit_s:
            raise InfrastructureError(
                f"a rollback held publication for {patience.limit_s:g} s and nobody said to go on",
                run,
                f"`embodied weights resume {patience.run}`, then `embodied train resume={run}`",
            )
        self._client.tick()
        before = patience.clock()
        patience.sleep(POLL_S)
        self.waited_s += patience.clock() - before

    def _check_restore(self) -> None:
        held = self._registry.held(self._spec.name)
        if held is not None and held.restore:
            run = self._patience.run.partition("=")[2]
            what = "the run is to go back to the checkpoint of what was rolled back to"
            raise RestoreAsked(what, run, f"`embodied train resume={run}` does so")

    def _signature(self, manifest: Manifest) -> str:
        return self._registry.signature(manifest.policy, manifest.label) if self._registry.signer else ""
