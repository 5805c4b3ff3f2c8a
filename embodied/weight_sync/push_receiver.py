"""Takes versions that are pushed: chunk by chunk or out of shared memory, verified and switched to when whole."""

import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from numpy.typing import NDArray

from embodied.errors import CorruptFile, DataError, EmbodiedError, MessageError, WeightsHeld, WeightsRefused
from embodied.serving.answer import Answer
from embodied.serving.loader import Loader, Weights
from embodied.serving.versioned_policy import VersionedPolicy
from embodied.weight_sync.pending_uploads import PendingUploads, Transfer
from embodied.weights.manifest import Manifest, Version
from embodied.weights.transfer import CHUNK_BYTES, BeginAgain, views
from embodied.weights.versions import Trusted
from embodied.wire.codecs import take_array
from embodied.wire.message import Message

WINDOW = 8
"""Chunks a sender may have under way."""
_WAITING = 16
_REMEMBERED = 8


class Store(Protocol):
    """What is needed of `embodied.weights.registry.Registry`."""

    def versions(self, policy: str) -> list[Version]: ...

    def has(self, policy: str, version: Version) -> bool: ...

    def wanted(self, policy: str) -> Version | None: ...

    def held(self, policy: str) -> object | None: ...

    def read(self, policy: str, number: int | str) -> Weights: ...

    def adopt(self, manifest: Manifest, tensors: Mapping[str, NDArray[Any]], signature: str = "") -> None: ...

    def serve(self, policy: str, version: Version) -> None: ...


class PushReceiver:
    """The `Part` of a server that answers `push`. See `embodied.client.pushing` for the other side.

    What it allocates is bounded by the policy: a manifest whose names, shapes or dtypes are not the policy's is refused
    first. Weights are verified in the loader's thread, after they are out of the sender's reach.

    Args:
        host: Decides, and says what may be switched to.
        loader: Verifies, loads and switches.
        store: Keeps every version before it is switched to, and says which one is wanted.
        trusted: Refuses what no trusted key signed, before anything is allocated.
        chunk_bytes: Length of a chunk.
        clock: Seconds, monotonic.
    """

    def __init__(
        self,
        host: VersionedPolicy,
        loader: Loader,
        *,
        store: Store | None = None,
        trusted: Trusted | None = None,
        chunk_bytes: int = CHUNK_BYTES,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._host, self._loader, self._store, self._trusted = host, loader, store, trusted
        self._chunk_bytes, self._layout = chunk_bytes, host.layout()
        self._arriving = PendingUploads(chunk_bytes, clock)
        self._ended: OrderedDict[str, EmbodiedError | None] = OrderedDict()

    def handle(self, message: Message, answer: Answer) -> None:
        """Answer `begin`, `chunk` or `commit`.

        Raises:
            WeightsRefused: The version is unfit, stale, altered or not signed; what is served stays.
            WeightsHeld: A rollback stopped publication.
            BeginAgain: The transfer is not known here, or chunks are missing.
            MessageError: A field is wrong, or a chunk arrived damaged.
            Busy: Two other versions are arriving.
        """
        op = message.body.get("op")
        match op:
            case "begin":
                self._begin(message.body, answer)
            case "chunk":
                self._chunk(message, answer)
            case "commit":
                self._commit(message.body, answer)
            case _:
                raise MessageError(f"push does not know {str(op)[:20]!r}", "push", "send begin, chunk or commit")

    def leave(self, session: str) -> None:
        """A sender said goodbye."""
        self._arriving.leave(session)

    def tick(self) -> None:
        """Drop what has been silent for too long."""
        self._arriving.tick()

    def status(self) -> Mapping[str, Any]:
        """`arriving`: label to chunks that have arrived and chunks in all."""
        return {"arriving": self._arriving.status()}

    def _begin(self, body: Mapping[str, Any], answer: Answer) -> None:
        manifest = Manifest.from_dict(body.get("manifest"))
        signature, back, memory = body.get("signature", ""), body.get("back", False), body.get("memory", "")
        if not (isinstance(signature, str) and isinstance(back, bool) and isinstance(memory, str)):
            raise MessageError("begin with a signature, back or memory of a wrong type", "push", "send str, bool, str")
        if self._trusted is not None:
            self._trusted.check(manifest, signature)
        fresh = self._host.admit(manifest, back)
        self._check_layout(manifest)
        if not fresh:
            self._ack(answer)
            return
        self._ended.pop(manifest.label, None)
        if self._store is not None and self._is_stored(self._store, manifest, back, answer):
            return
        transfer = self._arriving.open(manifest, answer.session, self._host.version.number)
        if not transfer.working:
            transfer.manifest, transfer.signature, transfer.back = manifest, signature, back
            transfer.session = answer.session
            transfer.block = self._arriving.block(memory, manifest.nbytes)
        whole = transfer.working or transfer.block is not None
        answer(
            "credit",
            {
                "version": manifest.label,
                "chunk_bytes": self._chunk_bytes,
                "missing": [] if whole else [list(run) for run in transfer.inbox.missing()],
                "window": WINDOW,
            },
        )

    def _is_stored(self, store: Store, manifest: Manifest, back: bool, answer: Answer) -> bool:
        """Answer what needs no transfer, since the store has the version."""
        policy = manifest.policy
        if manifest.version in store.versions(policy):
            if not store.has(policy, manifest.version):  # it is damaged: what is pushed replaces it
                return False
            if back or store.wanted(policy) == manifest.version:
                self._loader.submit(
                    lambda: _stored(store, manifest, back), "push", lambda result: self._tell(answer, result), back
                )
            else:
                self._ack(answer)
            return True
        held = store.held(policy)
        if held is not None:
            raise WeightsHeld(
                f"a rollback holds publication, {held}",
                f"policy {policy}, push of version {manifest.label}",
                "restore the paired checkpoint, or say that it goes on: embodied weights resume",
            )
        return False

    def _chunk(self, message: Message, answer: Answer) -> None:
        label = message.body.get("version")
        transfer = self._arriving.find(label)
        if not transfer.working:
            data = take_array(message.arrays, "data", "uint8", (None,))
            transfer.inbox.put(message.body.get("index"), message.body.get("hash"), data)
        answer("credit", {"version": label, "index": message.body.get("index")})

    def _commit(self, body: Mapping[str, Any], answer: Answer) -> None:
        label = body.get("version")
        if isinstance(label, str) and label not in self._arriving:
            if label == self._host.version.label:
                self._ack(answer)
                return
            if label in self._ended:
                self._tell(answer, self._ended[label] or self._host.version)
                return
        transfer = self._arriving.find(label)
        if not transfer.working:
            if transfer.block is None and not transfer.inbox.complete:
                missing = transfer.inbox.missing()
                raise BeginAgain(
                    f"{transfer.inbox.chunks - transfer.inbox.received} of {transfer.inbox.chunks} chunks are missing, "
                    f"first {missing[0][0]} to {missing[0][1] - 1}",
                    f"push of version {label}",
                    "begin again to be told all of them",
                )
            self._loader.submit(
                lambda: self._assemble(transfer),
                "push",
                lambda result: self._done(transfer, result),
                transfer.back,
            )
            transfer.working = True
        transfer.waiting = [*transfer.waiting, answer][-_WAITING:]

    def _assemble(self, transfer: Transfer) -> Weights | None:
        """What arrived, verified and stored. In the loader's thread."""
        manifest, arrays = transfer.manifest, transfer.inbox.arrays
        if transfer.block is None:
            verified = manifest.verify(arrays)
        else:
            verified = manifest.verify(views(transfer.block, manifest.tensors), into=arrays)
        if self._store is not None:
            self._store.adopt(manifest, verified, transfer.signature)
            if transfer.back:
                self._store.serve(manifest.policy, manifest.version)
            if self._store.wanted(manifest.policy) != manifest.version:
                return None
        return manifest, verified

    def _done(self, transfer: Transfer, result: Version | EmbodiedError) -> None:
        label, transfer.working = transfer.manifest.label, False
        waiting, transfer.waiting = transfer.waiting, []
        if isinstance(result, Version | DataError | WeightsHeld):
            self._arriving.drop(label)
            self._ended[label] = None if isinstance(result, Version) else result
            while len(self._ended) > _REMEMBERED:
                self._ended.popitem(last=False)
        # Else a machine failed, such as a full disk: what arrived is kept, and another commit tries again.
        for answer in waiting:
            self._tell(answer, result)

    def _check_layout(self, manifest: Manifest) -> None:
        where = f"policy {manifest.policy}, push of version {manifest.label}"
        fix = "publish weights of a policy with the same configuration"
        for name in sorted(self._layout.keys() | manifest.tensors.keys()):
            if name not in manifest.tensors or name not in self._layout:
                what = "is missing" if name in self._layout else "is unknown to the policy"
                raise WeightsRefused(f"tensor {name} {what}", where, fix)
            given, (shape, dtype) = manifest.tensors[name], self._layout[name]
            if (given.shape, given.dtype) != (shape, dtype):
                raise WeightsRefused(
                    f"tensor {name} is {given.dtype} {list(given.shape)}, the policy has {dtype} {list(shape)}",
                    where,
                    fix,
                )

    def _ack(self, answer: Answer) -> None:
        self._tell(answer, self._host.version)

    def _tell(self, answer: Answer, result: Version | EmbodiedError) -> None:
        if isinstance(result, Version):
            answer("ack", {"number": result.number, "hash": result.hash})
        else:
            answer.refuse(result)


def _stored(store: Store, manifest: Manifest, back: bool) -> Weights | None:
    """A version the store has, if it is to be served, as one that is gone back to is. In the loader's thread.

    Raises:
        BeginAgain: It is damaged there, which is known now: another `begin` has it sent.
    """
    policy = manifest.policy
    try:
        if back:
            store.serve(policy, manifest.version)
        return store.read(policy, manifest.label) if store.wanted(policy) == manifest.version else None
    except CorruptFile as error:
        if store.has(policy, manifest.version):  # another file is damaged
            raise
        raise BeginAgain(error.what, error.where, "begin again to send the version anew") from None
