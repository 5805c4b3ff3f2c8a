"""The versions of one policy that are on their way to a server, and the memory they take."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from numpy.typing import NDArray

from embodied.errors import Busy
from embodied.serving.answer import Answer
from embodied.weights.manifest import Manifest
from embodied.weights.shared import open_block
from embodied.weights.transfer import BeginAgain, Inbox, empty

TRANSFERS = 2
"""Versions that may arrive at a time, and so the memory they take in multiples of the policy's."""
SILENT_S = 600.0
"""A transfer not heard of for so long is dropped, and so is memory kept for the next."""
_YIELDS_S = 10.0  # silence after which a transfer makes room for any other


@dataclass
class Transfer:
    """One version on its way.

    Attributes:
        manifest, signature, back, session: As its latest `begin` said.
        heard: When anything was last heard of it, seconds.
        inbox: Where its chunks go.
        block: The sender's shared memory, if the content is to be taken from there.
        working: From its commit until the loader has answered.
        waiting: Those who want to know the end.
    """

    manifest: Manifest
    session: str
    heard: float
    inbox: Inbox
    signature: str = ""
    back: bool = False
    block: NDArray[Any] | None = None
    working: bool = False
    waiting: list[Answer] = field(default_factory=list)


class PendingUploads:
    """At most `TRANSFERS` transfers, whose memory is used again for the next, so that its pages are warm.

    Args:
        chunk_bytes: Length of a chunk.
        clock: Seconds, monotonic.
    """

    def __init__(self, chunk_bytes: int, clock: Callable[[], float]) -> None:
        self._chunk_bytes, self._clock = chunk_bytes, clock
        self._transfers: dict[str, Transfer] = {}
        self._spare: list[dict[str, NDArray[Any]]] = []
        self._block: tuple[str, NDArray[Any]] | None = None
        self._used = clock()

    def __contains__(self, label: object) -> bool:
        return label in self._transfers

    def find(self, label: object) -> Transfer:
        """The transfer of a version; raises `BeginAgain` where there is none."""
        transfer = self._transfers.get(label) if isinstance(label, str) else None
        if transfer is None:
            raise BeginAgain(
                f"no push of version {str(label)[:40]} is under way here", "policy server", "begin the push again"
            )
        transfer.heard = self._used = self._clock()
        return transfer

    def open(self, manifest: Manifest, session: str, served: int) -> Transfer:
        """The transfer of a version, a new one where there is none.

        What it supersedes is dropped: transfers of its sender, of versions older than that served, and if need be the
        one silent for longest of the older ones and of those silent for 10 s, whose sender may be gone.

        Args:
            manifest: Its tensors are laid out as the policy's.
            session: Who sends it.
            served: Number of the version served.

        Raises:
            Busy: `TRANSFERS` others are arriving.
        """
        found = self._transfers.get(manifest.label)
        if found is not None and (found.manifest.hash == manifest.hash or found.working):
            found.heard = self._used = self._clock()
            return found
        for label, transfer in list(self._transfers.items()):
            superseded = transfer.session == session or (transfer.manifest.number <= served and not transfer.back)
            if not transfer.working and (superseded or label == manifest.label):
                self.drop(label)
        silent = self._clock() - _YIELDS_S
        idle = [
            transfer
            for transfer in self._transfers.values()
            if not transfer.working and (transfer.manifest.number < manifest.number or transfer.heard <= silent)
        ]
        if len(self._transfers) >= TRANSFERS and idle:
            self.drop(min(idle, key=lambda transfer: transfer.heard).manifest.label)
        if len(self._transfers) >= TRANSFERS:
            raise Busy(
                f"versions {', '.join(self._transfers)} are arriving", f"policy {manifest.policy}", "push again later"
            )
        arrays = self._spare.pop() if self._spare else empty(manifest.tensors)
        self._used = self._clock()
        transfer = Transfer(manifest, session, self._used, Inbox(arrays, self._chunk_bytes))
        self._transfers[manifest.label] = transfer
        return transfer

    def block(self, name: str, nbytes: int) -> NDArray[Any] | None:
        """The sender's shared memory; None where it has none, or it cannot be opened here."""
        if not name:
            return None
        if self._block is None or self._block[0] != name or self._block[1].size != nbytes:
            content = open_block(name, nbytes)
            self._block = None if content is None else (name, content)
        return None if self._block is None else self._block[1]

    def drop(self, label: str) -> None:
        """Forget a transfer; nobody works on its memory any more."""
        self._spare.append(dict(self._transfers.pop(label).inbox.arrays))

    def leave(self, session: str) -> None:
        """A sender is gone: what it began makes room for any other, but may still be gone on with."""
        for transfer in self._transfers.values():
            if transfer.session == session:
                transfer.heard = min(transfer.heard, self._clock() - _YIELDS_S)

    def tick(self) -> None:
        """Drop what has been silent for too long."""
        now = self._clock()
        for label, transfer in list(self._transfers.items()):
            if not transfer.working and now - transfer.heard >= SILENT_S:
                self.drop(label)
        if not self._transfers and now - self._used >= SILENT_S:
            self._spare.clear()
            self._block = None

    def status(self) -> Mapping[str, list[int]]:
        """Label to chunks that have arrived and chunks in all."""
        return {label: [t.inbox.received, t.inbox.chunks] for label, t in self._transfers.items()}

    @property
    def memory(self) -> int:
        """How many versions it has memory for, used or not."""
        return len(self._transfers) + len(self._spare)
