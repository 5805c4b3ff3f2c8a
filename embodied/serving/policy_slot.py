"""Slot of one policy in a server: the policy, and the parts that receive, serve and switch its versions."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from embodied.errors import MessageError, UserError
from embodied.serving.answer import Answer
from embodied.serving.loader import Loader
from embodied.serving.probing import Prober
from embodied.serving.versioned_policy import VersionedPolicy
from embodied.wire.message import Message


class Part(Protocol):
    """Part of a slot that answers messages about weights.

    `handle` answers through `answer`, now or at a later `tick`, or raises the `EmbodiedError` that refuses. Work
    that may wait for a disk is done in the background.
    """

    @property
    def busy(self) -> bool:
        """Whether `tick` will soon have an answer."""
        ...

    def handle(self, message: Message, answer: Answer) -> None: ...

    def tick(self) -> None: ...

    def status(self) -> Mapping[str, Any]:
        """Plain values for the server's status."""
        ...


class Receiver(Part, Protocol):
    """Part that receives pushed versions."""

    def leave(self, session: str) -> None:
        """Handle the goodbye of a client."""
        ...


@dataclass
class PolicySlot:
    """One policy of a server.

    Attributes:
        policy: Policy, with the version served.
        loader: Prepares versions and switches to them.
        receiver: Takes `offer` and `range`, pushed versions. None where weights come from elsewhere only.
        versions: Answers `fetch`, an edge's request for a version or a range of it.
        watcher: Follows a registry and answers `set_active`, which moves its pointers. None where the server keeps
            no versions.
        build: `policy` config group that the policy was made from, in plain values; an edge makes the same policy.
    """

    policy: VersionedPolicy
    loader: Loader
    receiver: Receiver | None
    versions: Part | None = None
    watcher: Part | None = None
    build: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._prober = Prober(self.policy)

    def handle(self, message: Message, answer: Answer) -> None:
        """Take a message about weights: `offer`, `range`, `fetch`, `set_active` or `probe`; raises its refusal."""
        parts = {
            "offer": self.receiver, "range": self.receiver, "fetch": self.versions, "set_active": self.watcher,
            "probe": self._prober,
        }  # fmt: skip
        if message.kind not in parts:
            raise MessageError(f"no slot takes {message.kind}", "policy server", "send it to the right server")
        part = parts[message.kind]
        if part is None:
            raise UserError(
                "this server takes no pushes"
                if message.kind in ("offer", "range")
                else "this server keeps no versions",
                f"{message.kind}, policy {self.policy.spec.name}",
                "start it with weights=FOLDER",
            )
        part.handle(message, answer)

    @property
    def busy(self) -> bool:
        """Whether a version is being loaded, or a part will soon have an answer."""
        return self.loader.busy or any(part.busy for part in self._parts())

    def tick(self) -> None:
        """Switch to a prepared version and send due answers, between batches."""
        self.loader.tick()
        for part in self._parts():
            part.tick()

    def status(self) -> dict[str, Any]:
        """The parts' statuses in one dictionary."""
        return {key: value for part in self._parts() for key, value in part.status().items()}

    def leave(self, session: str) -> None:
        """Handle the goodbye of a client."""
        if self.receiver is not None:
            self.receiver.leave(session)

    def close(self, timeout_s: float = 3.0) -> None:
        """As `Loader.close`; a second time it does nothing."""
        self.loader.close(timeout_s)

    def _parts(self) -> list[Part]:
        return [part for part in (self.receiver, self.versions, self.watcher, self._prober) if part is not None]
