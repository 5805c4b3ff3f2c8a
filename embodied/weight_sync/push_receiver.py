"""Takes versions that learners offer: fetched in ranges or out of shared memory, verified, stored and switched to."""

import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol, Self

from numpy.typing import NDArray

from embodied.errors import CorruptFile, DataError, EmbodiedError, MessageError, WeightsHeld
from embodied.serving.answer import Answer
from embodied.serving.background import Background
from embodied.serving.loader import Loader, Weights
from embodied.serving.versioned_policy import VersionedPolicy
from embodied.weight_sync.fetch import check_shapes
from embodied.weight_sync.pending_uploads import Caller, PendingUploads, Upload
from embodied.weights.manifest import Manifest, Version
from embodied.weights.transfer import RANGE_BYTES, views
from embodied.weights.versions import Trusted
from embodied.wire.message import Message

WINDOW = 8
"""Ranges in flight from one sender."""
DAMAGED = 8
"""Ranges of one version that may arrive damaged before it is refused."""
RETRY_S = 10.0
"""Silence after which the ranges in flight are asked for again."""

_ANSWERED = 8
_FIX = "publish weights of a policy with the same configuration"


class Store(Protocol):
    """Versions on disk; the part of `embodied.weights.registry.Registry` that is needed here."""

    def versions(self, policy: str) -> list[Version]: ...

    def has(self, policy: str, version: Version) -> bool: ...

    def active(self, policy: str) -> Version | None: ...

    def held(self, policy: str) -> object | None: ...

    def read(self, policy: str, number: int | str) -> Weights: ...

    def adopt(self, manifest: Manifest, tensors: Mapping[str, NDArray[Any]], signature: str = "") -> None: ...

    def serve(self, policy: str, version: Version) -> None: ...


class _Offer(NamedTuple):
    """An `offer` message's fields, and its answer."""

    manifest: Manifest
    signature: str
    back: bool
    memory: str
    caller: Caller
    answer: Answer

    @classmethod
    def read(cls, message: Message, answer: Answer) -> Self:
        body = message.body
        manifest = Manifest.from_dict(body.get("manifest"))
        signature, back, memory = body.get("signature", ""), body.get("back", False), body.get("memory", "")
        if not (isinstance(signature, str) and isinstance(back, bool) and isinstance(memory, str)):
            raise MessageError(
                "an offer with a field of a wrong type", "signature, back, memory", "send str, bool, str"
            )
        return cls(manifest, signature, back, memory, (message.session, message.id), answer)


class _Stored(NamedTuple):
    """State of a store for one version.

    Attributes:
        known: Whether it has a version of this number and content.
        whole: Whether that one is not known to be damaged.
        active: Version to be served.
        held: Hold on publication, if there is one.
    """

    known: bool
    whole: bool
    active: Version | None
    held: object | None

    @classmethod
    def of(cls, store: Store, manifest: Manifest) -> Self:
        """Read it from disk."""
        policy, version = manifest.policy, manifest.version
        known = version in store.versions(policy)
        whole = known and store.has(policy, version)
        if known:  # damaged pointers matter only to a version that is there already
            return cls(known, whole, store.active(policy) if whole else None, None)
        return cls(known, whole, None, store.held(policy))


class PushReceiver:
    """The `Part` of a server that answers `offer`. See `embodied.client.pushing` for the other side.

    An `offer` is answered with `ack` once the version is served or stored, or with the error that refuses it. Until
    then the receiver sends `fetch` under the offer's number, and takes the `range` messages that answer it. An offer
    sent again, by the same session or another, is answered too; the ranges still missing are fetched from its sender.

    The memory it allocates is bounded by the policy: a manifest whose names, shapes or dtypes are not the policy's is
    refused first. Weights are verified in the loader's thread, after they are out of the sender's reach.

    Args:
        host: Decides, and says what may be switched to.
        loader: Verifies, loads and switches.
        store: Keeps every version before it is switched to, and says which one is active.
        trusted: Refuses what no trusted key signed, before anything is allocated.
        range_bytes: Length of a range.
        clock: Seconds, monotonic.
    """

    def __init__(
        self,
        host: VersionedPolicy,
        loader: Loader,
        *,
        store: Store | None = None,
        trusted: Trusted | None = None,
        range_bytes: int = RANGE_BYTES,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._host, self._loader, self._store, self._trusted = host, loader, store, trusted
        self._range_bytes, self._layout, self._clock = range_bytes, host.layout(), clock
        self._uploads = PendingUploads(clock)
        self._answered: OrderedDict[Caller, Version | EmbodiedError] = OrderedDict()
        self._background = Background(f"pushed versions of policy {host.spec.name}")

    @property
    def busy(self) -> bool:
        """Whether the store is being asked about an offer."""
        return self._background.busy

    def handle(self, message: Message, answer: Answer) -> None:
        """Take an `offer` or a `range`. A range that was not asked for is ignored.

        Raises:
            WeightsRefused: The version is unfit, stale, altered or not signed; the version served stays.
            WeightsHeld: A rollback stopped publication.
            MessageError: A field is wrong, or ranges keep arriving damaged.
            Busy: Two other versions are arriving, or many wait to be loaded.
        """
        if message.kind == "offer":
            self._take_offer(_Offer.read(message, answer))
        else:
            self._take_range(message, answer)

    def leave(self, session: str) -> None:
        """A sender said goodbye."""
        self._uploads.leave(session)

    def tick(self) -> None:
        """Ask again for ranges that do not come, and drop uploads that have been silent for too long."""
        self._background.tick()
        self._uploads.tick()
        for upload in self._uploads.fetching():
            if self._clock() - max(upload.heard, upload.asked) >= RETRY_S:
                upload.retry_all()
                self._advance(upload)

    def status(self) -> Mapping[str, Any]:
        """`arriving`: label to bytes that have arrived and bytes in all."""
        return {"arriving": self._uploads.status()}

    def _take_offer(self, offer: _Offer) -> None:
        manifest, answer = offer.manifest, offer.answer
        if self._trusted is not None:
            self._trusted.check(manifest, offer.signature)
        if offer.caller in self._answered:  # sent again after a lost connection
            _answer(answer, self._answered[offer.caller])
            return
        fresh = self._host.admit(manifest, offer.back)
        check_shapes(manifest, self._layout, _FIX)
        store = self._store
        if not fresh:
            _answer(answer, self._host.version)
        elif store is None:
            self._fetch(offer)
        else:
            self._background.submit(
                lambda: _Stored.of(store, manifest), lambda found: self._decide(store, offer, found)
            )

    def _fetch(self, offer: _Offer) -> None:
        """Begin or resume the upload of a version."""
        manifest = offer.manifest
        upload = self._uploads.open(manifest, offer.answer, self._host.version.number)
        if not upload.loading:
            upload.manifest, upload.signature, upload.back = manifest, offer.signature, offer.back
            upload.session, upload.sender = offer.answer.session, offer.answer
            upload.block = self._uploads.block(offer.memory, manifest.nbytes)
            upload.retry_all()
            self._advance(upload)
        upload.wait(offer.caller, offer.answer)

    def _decide(self, store: Store, offer: _Offer, found: _Stored | EmbodiedError) -> None:
        """Fetch an offered version, or answer an offer that needs no transfer, since the store has the version."""
        manifest = offer.manifest
        try:
            if isinstance(found, EmbodiedError):
                raise found
            if found.held is not None:
                raise WeightsHeld(
                    f"a rollback holds publication, {found.held}",
                    f"policy {manifest.policy}, push of version {manifest.label}",
                    "restore the paired checkpoint, or lift the hold: embodied weights resume",
                )
            if not found.whole:  # a damaged one is replaced by what is pushed
                self._fetch(offer)
            elif not offer.back and found.active != manifest.version:
                _answer(offer.answer, self._host.version)
            else:
                self._load_stored(store, offer)
        except EmbodiedError as error:
            offer.answer.refuse(error)

    def _load_stored(self, store: Store, offer: _Offer) -> None:
        """Serve an offered version from the store; fetch it if it turns out to be damaged there."""
        damaged = False

        def load() -> Weights | None:
            nonlocal damaged
            try:
                return _read_stored(store, offer.manifest, offer.back)
            except CorruptFile:
                damaged = not store.has(offer.manifest.policy, offer.manifest.version)
                raise

        def done(result: Version | EmbodiedError) -> None:
            if not damaged:
                _answer(offer.answer, result)
                return
            try:
                self._fetch(offer)
            except EmbodiedError as error:
                offer.answer.refuse(error)

        self._loader.submit(load, "push", done, offer.back)

    def _take_range(self, message: Message, answer: Answer) -> None:
        upload, offset = self._uploads.find(message.body.get("version")), message.body.get("offset")
        if upload is None or upload.session != answer.session:
            return
        upload.heard = self._clock()
        if type(offset) is not int or offset not in upload.in_flight:
            return
        try:
            upload.take(offset, message)
        except MessageError as error:
            upload.damaged += 1
            if upload.damaged >= DAMAGED:
                self._end(upload, error)
                return
        self._advance(upload)

    def _advance(self, upload: Upload) -> None:
        """Load a version that is whole, else ask for ranges that are missing."""
        if upload.block is not None or upload.complete:
            self._loader.submit(lambda: self._verify(upload), "push", lambda r: self._loaded(upload, r), upload.back)
            upload.loading = True
            return
        while upload.todo and len(upload.in_flight) < WINDOW:
            upload.sender("fetch", upload.next(self._range_bytes))
            upload.asked = self._clock()

    def _verify(self, upload: Upload) -> Weights | None:
        """A version that arrived, verified and stored. In the loader's thread."""
        manifest, arrays = upload.manifest, upload.arrays
        if upload.block is None:
            verified = manifest.verify(arrays)
        else:
            verified = manifest.verify(views(upload.block, manifest.tensors), into=arrays)
        if self._store is not None:
            self._store.adopt(manifest, verified, upload.signature)
            if upload.back:
                self._store.serve(manifest.policy, manifest.version)
            if self._store.active(manifest.policy) != manifest.version:
                return None
        return manifest, verified

    def _loaded(self, upload: Upload, result: Version | EmbodiedError) -> None:
        upload.loading = False
        # A machine that failed, such as by a full disk, keeps what arrived: another offer tries again.
        self._end(upload, result, keep=not isinstance(result, Version | DataError | WeightsHeld))

    def _end(self, upload: Upload, result: Version | EmbodiedError, keep: bool = False) -> None:
        waiting, upload.waiting = upload.waiting, {}
        if not keep:
            self._uploads.drop(upload.label)
            for caller in waiting:
                self._answered[caller] = result
            while len(self._answered) > _ANSWERED:
                self._answered.popitem(last=False)
        for answer in waiting.values():
            _answer(answer, result)


def _answer(answer: Answer, result: Version | EmbodiedError) -> None:
    if isinstance(result, Version):
        answer("ack", {"number": result.number, "hash": result.hash})
    else:
        answer.refuse(result)


def _read_stored(store: Store, manifest: Manifest, back: bool) -> Weights | None:
    """A version of the store, if it is to be served, as one is that is rolled back to. In the loader's thread."""
    policy = manifest.policy
    if back:
        store.serve(policy, manifest.version)
    return store.read(policy, manifest.label) if store.active(policy) == manifest.version else None
