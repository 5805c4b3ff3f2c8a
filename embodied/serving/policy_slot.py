"""Everything a server does with one policy's weights: takes them, hands them out, follows a registry's pointers."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, Self

from embodied.errors import MessageError, UserError
from embodied.serving.answer import Answer
from embodied.serving.loader import Loader
from embodied.serving.probing import Prober
from embodied.serving.versioned_policy import VersionedPolicy
from embodied.weight_sync.push_receiver import PushReceiver
from embodied.wire.message import Message


class Part(Protocol):
    """What answers one kind of message about weights.

    `handle` answers through `answer`, now or at a later `tick`, or raises the `EmbodiedError` that refuses.
    """

    def handle(self, message: Message, answer: Answer) -> None: ...

    def tick(self) -> None: ...

    def status(self) -> Mapping[str, Any]:
        """Plain values for the server's status."""
        ...


@dataclass
class PolicySlot:
    """One policy of a server.

    Attributes:
        host: Decides, and holds the version served.
        loader: Switches it.
        receiver: Takes `push`; `embodied.weight_sync.push_receiver`. None where weights come from elsewhere only.
        offer: Answers `credit`, a follower's request for a range of a version; `embodied.weight_sync.version_server`.
        follower: Follows a registry and answers `point`, which moves its pointers;
            `embodied.weight_sync.registry_watcher`. None where the server keeps no versions.
        build: What a follower makes the same policy from, the `policy` config group in plain values.
    """

    host: VersionedPolicy
    loader: Loader
    receiver: Part | None
    offer: Part | None = None
    follower: Part | None = None
    build: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._prober = Prober(self.host)

    @classmethod
    def of(cls, host: VersionedPolicy, build: Mapping[str, Any] | None = None) -> Self:
        """A desk that takes pushes and keeps no versions."""
        loader = Loader(host)
        return cls(host, loader, PushReceiver(host, loader), build=build or {})

    def handle(self, message: Message, answer: Answer) -> None:
        """Take a `push`, `credit`, `point` or `probe`; raises what refuses it."""
        parts = {"push": self.receiver, "credit": self.offer, "point": self.follower, "probe": self._prober}
        if message.kind not in parts:
            raise MessageError(f"no desk takes {message.kind}", "policy server", "ask the right station")
        part = parts[message.kind]
        if part is None:
            raise UserError(
                "this server takes no pushes" if message.kind == "push" else "this server keeps no versions",
                f"{message.kind}, policy {self.host.spec.name}",
                "start it with weights=FOLDER",
            )
        part.handle(message, answer)

    def tick(self) -> None:
        """Switch to what has been prepared, answer what is due. Between batches."""
        self.loader.tick()
        for part in self._parts():
            part.tick()

    def status(self) -> dict[str, Any]:
        """The parts' statuses in one dictionary."""
        return {key: value for part in self._parts() for key, value in part.status().items()}

    def leave(self, session: str) -> None:
        """A client said goodbye."""
        if isinstance(self.receiver, PushReceiver):
            self.receiver.leave(session)

    def close(self, timeout_s: float = 3.0) -> None:
        """As `Loader.close`; a second time it does nothing."""
        self.loader.close(timeout_s)

    def _parts(self) -> list[Part]:
        return [part for part in (self.receiver, self.offer, self.follower, self._prober) if part is not None]
