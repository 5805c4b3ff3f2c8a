"""Publisher stage: gives the learner's weights a number, keeps them, and has the policy server answer with them."""

import math
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from embodied.client import LocalClient, PolicyClient
from embodied.errors import CorruptFile, DataError, InfrastructureError, Unauthorized, UserError, WeightsHeld
from embodied.monitor.timing import Stopwatch
from embodied.spec import PolicySpec
from embodied.train.mailbox import Inbox, Outbox, Stage
from embodied.train.messages import EVALUATOR, KEEPER, METRICS, PUBLISHER, TRAINER, Published, Update, address
from embodied.weights.manifest import Manifest, Version
from embodied.weights.pointers import BY_SERVER
from embodied.weights.registry import Registry

BLOCK = 16  # numbers reserved at once; a resumed run skips what is left of them
RETRY_S = 0.5


class RestoreAsked(WeightsHeld):
    """Publication is held until the learner has restored the checkpoint of the version rolled back to."""


@dataclass
class HoldWait:
    """Bounds and words of a wait for a hold to end.

    Attributes:
        run: Name of the run in commands, such as `run=runs/reach`.
        limit_s: Seconds after which the publisher gives up.
        say: Shows one line.
    """

    run: str = "run=latest"
    limit_s: float = math.inf
    say: Callable[[str], None] = print


@dataclass
class _Pending:
    """An update that is not served yet.

    Attributes:
        number: Of its version.
        manifest: Of its version once the registry has it.
        since: Time at which the registry, or the server after it, was first asked.
        retry: Time of the next attempt.
        said: Whether the hold of the registry, or of the server after it, was said.
        rolled_back: Version that was served instead, for a hold of the registry.
        seconds: Spent on attempts.
    """

    update: Update
    number: int
    since: float
    retry: float
    manifest: Manifest | None = None
    said: bool = False
    rolled_back: Version | None = None
    seconds: float = 0.0


class Publisher(Stage):
    """Publishes updates one after the other.

    While a rollback, in the registry or on the server, holds publication, the version rolled back to is served, and the
    update is tried again every `RETRY_S` until an operator ends the hold.

    Args:
        registry: Keeps versions.
        client: Of the policy server.
        spec: The policy's.
        attempt: Start of the run.
        hold_wait: Bounds of the wait.
        watch: Gets the seconds of `weights`.
        clock: Seconds, for the duration of a publication.
        policy: As of `Trainer`.

    Attributes:
        number: Of the version last published; 0 before the first.
        waited_s: Seconds of holds.
    """

    def __init__(
        self,
        registry: Registry,
        client: PolicyClient,
        spec: PolicySpec,
        attempt: int = 0,
        hold_wait: HoldWait | None = None,
        watch: Stopwatch | None = None,
        clock: Callable[[], float] = time.perf_counter,
        policy: str = "",
    ) -> None:
        self.name, self._trainer = address(PUBLISHER, policy), address(TRAINER, policy)
        self._registry, self._client, self._spec, self._clock = registry, client, spec, clock
        self._hold_wait, self._watch = hold_wait or HoldWait(), watch or Stopwatch()
        self.inbox, self.outbox = Inbox(), Outbox(self.name, attempt)
        self.number, self.waited_s = 0, 0.0
        self._parent = ""
        self._reserved = range(0)
        self._pending: _Pending | None = None

    def tick(self, now: float) -> bool:
        """Publish one update, or try again one that is held.

        Raises:
            RestoreAsked: A rollback holds publication, and the run is to go back to a checkpoint.
            WeightsRefused: The receiver found them partial, stale or unfit, and keeps the version it has.
            InfrastructureError: The hold outlasted its limit, or the server cannot be reached.
        """
        if self._pending is None:
            if self.outbox.room < 4 or (message := self.inbox.take()) is None:
                return False
            self._pending = self._begin(message.body, now)
        elif now < self._pending.retry:
            return False
        with self._watch("weights"):
            start = self._clock()
            served = self._attempt(self._pending, now)
            self._pending.seconds += self._clock() - start
            if served:
                self._finish(self._pending)
        return True

    def doing(self) -> str:
        return "" if self._pending is None else f"waiting with version {self._pending.number}: publication is held"

    def state(self) -> dict[str, Any]:
        return {"number": self.number}

    def load(self, state: Mapping[str, Any]) -> None:
        self.number = int(state["number"])

    def pair(self, step: int, steps: Collection[int]) -> None:
        """Note that checkpoint `step` has the weights last published; `steps` are those of all checkpoints."""
        name = self._spec.name
        try:
            before = self._registry.pointers(name).paired
            # Later checkpoints belong to a continuation that was abandoned.
            paired = {version.number: old for version, old in before.items() if old < step and old in steps}
            self._registry.pair(name, {**paired, self.number: step})
        except CorruptFile as error:
            self._hold_wait.say(f"versions are not paired with checkpoints: {error.line()}")

    def _begin(self, update: Update, now: float) -> _Pending:
        if update.parent is not None and (kept := self._unchanged(update)) is not None:
            return _Pending(update, kept.number, since=now, retry=now)
        if not self._reserved:
            first = self._registry.reserve(self._spec.name, BLOCK)
            self._reserved = range(first, first + BLOCK)
        if update.parent is not None:
            parent = self._registry.stored(self._spec.name, update.parent)
            self._parent = parent.label if parent else ""
        return _Pending(update, self._reserved[0], since=now, retry=now)

    def _unchanged(self, update: Update) -> Version | None:
        """The newest version, where a resumed run has its weights and nothing is held: it is not published again."""
        name = self._spec.name
        newest = max(self._registry.versions(name), default=None)
        if newest is None or newest.number != update.parent or self._registry.held(name) is not None:
            return None
        same = Manifest.of(name, newest.number, update.tensors, self._spec.to_dict()).version == newest
        return newest if same and self._client.version()[0] <= newest.number else None

    def _attempt(self, pending: _Pending, now: float) -> bool:
        """One attempt to store and serve; False where a hold is in the way."""
        update, name = pending.update, self._spec.name
        if pending.manifest is None:
            spec, parent = self._spec.to_dict(), self._parent
            try:
                pending.manifest = self._registry.publish(
                    name, pending.number, update.tensors, spec, parent, update.restored
                )
            except WeightsHeld as error:
                active = self._registry.active(name)
                if active is not None and active != pending.rolled_back:
                    self._serve(active)
                    pending.rolled_back = active
                self._wait(pending, error, now)
                return False
            self._end_wait(pending, now)
        try:
            self._client.push(pending.manifest, update.tensors, signature=self._signature(pending.manifest))
        except WeightsHeld as error:
            if not pending.said:
                self._hold_too(error)
            self._wait(pending, error, now)
            return False
        if pending.said:
            self._end_wait(pending, now)
            self._check_restore()
            self._registry.resume(name, by=BY_SERVER)
        return True

    def _finish(self, pending: _Pending) -> None:
        update, manifest = pending.update, pending.manifest
        assert manifest is not None
        self._pending = None
        if pending.number in self._reserved:
            self._reserved = self._reserved[1:]
        self.number, self._parent = pending.number, manifest.label
        size = sum(array.nbytes for array in update.tensors.values())
        published = Published(
            update.step, update.env_steps, update.segments, update.fresh, manifest.version, size, pending.seconds
        )
        for stage in (self._trainer, KEEPER, EVALUATOR, METRICS):
            self.outbox.put(stage, published)

    def _serve(self, version: Version) -> None:
        """Have the server answer with a version of the registry that is older than its own."""
        name, before = self._spec.name, Version(*self._client.version())
        if before == version:
            return
        try:
            manifest, tensors = self._registry.read(name, version.label)
            now = Version(*self._client.push(manifest, tensors, back=True, signature=self._signature(manifest)))
        except WeightsHeld:
            return  # what it rolled back to itself stays
        except (DataError, Unauthorized) as error:
            self._hold_wait.say(f"version {before.label} stays served: {error.line()}")
            return
        if isinstance(self._client, LocalClient):  # a server writes its own line
            self._registry.record("switch", name, now, **{"from": before.label, "why": "rollback", "server": "inline"})

    def _hold_too(self, error: WeightsHeld) -> None:
        """Hold the registry like its server, so that `embodied weights resume run=...` finds the hold."""
        name, served = self._spec.name, Version(*self._client.version())
        versions = self._registry.versions(name)
        older = [version for version in versions if version.number <= served.number] or versions[:1]
        try:
            if self._registry.held(name) is None:
                self._registry.rollback(name, older[-1].label, by=BY_SERVER, note=error.where)
        except UserError as refusal:
            self._hold_wait.say(f"the run's registry is not held, though its server is: {refusal.line()}")

    def _wait(self, pending: _Pending, error: WeightsHeld, now: float) -> None:
        """Say that publication is held, and put the next attempt off.

        Raises:
            RestoreAsked, InfrastructureError: As `tick`.
        """
        hold_wait = self._hold_wait
        if not pending.said:
            pending.said = True
            self._say(error)
        self._check_restore()
        run = hold_wait.run.partition("=")[2]
        if now - pending.since >= hold_wait.limit_s:
            raise InfrastructureError(
                f"a rollback held publication for {hold_wait.limit_s:g} s, and no operator ended the hold",
                run,
                f"`embodied weights resume {hold_wait.run}`, then `embodied train resume={run}`",
            )
        self._client.tick()
        pending.retry = now + RETRY_S

    def _end_wait(self, pending: _Pending, now: float) -> None:
        """Count the wait that ends now; another begins with the next hold."""
        if pending.said:
            self.waited_s += now - pending.since
        pending.since, pending.said = now, False

    def _say(self, error: WeightsHeld) -> None:
        name, run = self._spec.name, self._hold_wait.run
        number, digest = self._client.version()
        held = self._registry.held(name)
        restorable = self._registry.restorable(name)
        line = f"training waits: version {number}-{digest} of {name} is served again, held {held or error.where}; "
        line += f"`embodied weights resume {run}` goes on with what was learned since"
        if restorable:
            line += f", `embodied weights resume {run} restore=true` from the checkpoint of step {restorable[0][1]}"
        self._hold_wait.say(line)

    def _check_restore(self) -> None:
        held = self._registry.held(self._spec.name)
        if held is not None and held.restore:
            run = self._hold_wait.run.partition("=")[2]
            what = "the run is to go back to the checkpoint of the version rolled back to"
            raise RestoreAsked(what, run, f"`embodied train resume={run}` does so")

    def _signature(self, manifest: Manifest) -> str:
        return self._registry.signature(manifest.policy, manifest.label) if self._registry.signer else ""
