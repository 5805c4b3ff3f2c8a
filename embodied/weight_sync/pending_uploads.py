"""Versions on their way from learners to a server, and the memory that they take."""

from collections.abc import Callable, Mapping
from typing import Any

from numpy.typing import NDArray

from embodied.errors import Busy, EmbodiedError
from embodied.serving.answer import Answer
from embodied.weight_sync.fetch import MemoryFetch
from embodied.weights.manifest import Manifest
from embodied.weights.shared import open_block

TRANSFERS = 2
"""Versions that may arrive at a time, and so the memory they take in multiples of the policy's."""
SILENT_S = 600.0
"""Silence after which a transfer is dropped, and so is memory kept for the next."""
_EVICTABLE_S = 10.0  # silence after which a transfer makes room for any other
_WAITING = 16

Caller = tuple[str, int]
"""Session and number of an offer."""


class Upload(MemoryFetch):
    """One version on its way from a learner.

    Attributes:
        session: Session of the latest offer.
        sender: Sends `fetch` to it.
        back: Whether it may be older than the version served.
        heard: Time of the latest message about it, seconds.
        asked: Time of the latest `fetch`, seconds.
        block: Shared memory of the sender, where the content is taken from there.
        loading: From the submission to the loader until its answer.
        waiting: Offers to answer at the end.
        damaged: Ranges that arrived damaged.
    """

    def __init__(self, manifest: Manifest, answer: Answer, now: float, arrays: dict[str, NDArray[Any]] | None) -> None:
        super().__init__(manifest, "", now, arrays)
        self.session, self.sender, self.heard, self.asked = answer.session, answer, now, now
        self.back = self.loading = False
        self.block: NDArray[Any] | None = None
        self.waiting: dict[Caller, Answer] = {}
        self.damaged = 0

    def wait(self, caller: Caller, answer: Answer) -> None:
        """Answer an offer at the end; the same offer sent again replaces the first."""
        self.waiting.pop(caller, None)
        self.waiting[caller] = answer
        while len(self.waiting) > _WAITING:
            self.refuse_one(next(iter(self.waiting)), Busy("many senders offer this version", self.label, "retry"))

    def refuse_one(self, caller: Caller, error: EmbodiedError) -> None:
        """Answer one offer with an error."""
        self.waiting.pop(caller).refuse(error)


class PendingUploads:
    """At most `TRANSFERS` uploads. Their memory is used again for the next, so that its pages are warm.

    Args:
        clock: Seconds, monotonic.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._uploads: dict[str, Upload] = {}
        self._spare: list[dict[str, NDArray[Any]]] = []
        self._block: tuple[str, NDArray[Any]] | None = None
        self._used = clock()

    def find(self, label: object) -> Upload | None:
        """The upload of a version, if there is one."""
        return self._uploads.get(label) if isinstance(label, str) else None

    def open(self, manifest: Manifest, answer: Answer, served: int) -> Upload:
        """The upload of a version, a new one where there is none.

        Superseded uploads are dropped: those of the same session, those of versions older than that served, and if
        need be the one silent for longest of the older ones and of those silent for 10 s, whose sender may be gone.

        Args:
            manifest: Its tensors are laid out as the policy's.
            answer: To the offer.
            served: Number of the version served.

        Raises:
            Busy: `TRANSFERS` others are arriving.
        """
        self._used = self._clock()
        found = self.find(manifest.label)
        if found is not None and (found.manifest.hash == manifest.hash or found.loading):
            found.heard = self._used
            return found
        for label, upload in list(self._uploads.items()):
            superseded = upload.session == answer.session or (upload.manifest.number <= served and not upload.back)
            if not upload.loading and (superseded or label == manifest.label):
                self.drop(label, f"gave way to version {manifest.label}")
        silent = self._used - _EVICTABLE_S
        idle = [
            upload
            for upload in self._uploads.values()
            if not upload.loading and (upload.manifest.number < manifest.number or upload.heard <= silent)
        ]
        if len(self._uploads) >= TRANSFERS and idle:
            longest = min(idle, key=lambda upload: upload.heard)
            self.drop(longest.label, f"gave way to version {manifest.label}")
        if len(self._uploads) >= TRANSFERS:
            raise Busy(
                f"versions {', '.join(self._uploads)} are arriving", f"policy {manifest.policy}", "push again later"
            )
        upload = Upload(manifest, answer, self._used, self._spare.pop() if self._spare else None)
        self._uploads[manifest.label] = upload
        return upload

    def block(self, name: str, nbytes: int) -> NDArray[Any] | None:
        """The sender's shared memory; None where it has none, or it cannot be opened here."""
        if not name:
            return None
        if self._block is None or self._block[0] != name or self._block[1].size != nbytes:
            content = open_block(name, nbytes)
            self._block = None if content is None else (name, content)
        return None if self._block is None else self._block[1]

    def drop(self, label: str, why: str = "is dropped") -> None:
        """Forget an upload and keep its memory, which no thread uses any more. Offers that wait are told to retry."""
        upload = self._uploads.pop(label)
        self._spare.append(upload.arrays)
        for caller in tuple(upload.waiting):
            upload.refuse_one(caller, Busy(f"version {label} {why}", "policy server", "push it again"))

    def leave(self, session: str) -> None:
        """Mark a departed sender's uploads as evictable; they stay resumable."""
        for upload in self._uploads.values():
            if upload.session == session:
                upload.heard = min(upload.heard, self._clock() - _EVICTABLE_S)

    def tick(self) -> None:
        """Drop uploads that have been silent for too long, and memory that has not been used for as long."""
        now = self._clock()
        self._used = max([self._used, *(upload.heard for upload in self._uploads.values())])
        for label, upload in list(self._uploads.items()):
            if not upload.loading and now - upload.heard >= SILENT_S:
                self.drop(label, f"was silent for {SILENT_S:g} s")
        if not self._uploads and now - self._used >= SILENT_S:
            self._spare.clear()
            self._block = None

    def fetching(self) -> list[Upload]:
        """Uploads whose ranges are being fetched."""
        return [upload for upload in self._uploads.values() if upload.in_flight]

    def status(self) -> Mapping[str, list[int]]:
        """Label to bytes that have arrived and bytes in all."""
        return {label: [upload.received, upload.manifest.nbytes] for label, upload in self._uploads.items()}

    @property
    def memory(self) -> int:
        """Number of versions for which it has memory, used or not."""
        return len(self._uploads) + len(self._spare)
