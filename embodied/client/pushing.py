"""The sending side of a push: what the server lacks, chunk by chunk or through shared memory, until it serves it."""

import time
from collections import deque
from collections.abc import Mapping
from typing import Any

from numpy.typing import NDArray

from embodied.errors import DeadlineExceeded, MessageError
from embodied.weights.manifest import Manifest, Version
from embodied.weights.shared import SharedBlock
from embodied.weights.transfer import BeginAgain, Content, chunk_count, chunk_hash
from embodied.wire.endpoint import Requester
from embodied.wire.message import Message

TRIES = 8
"""Beginnings in a row that brought no chunk to the server, or damaged chunks, after which a push fails."""

_STALL_S = 30.0
_MAX_CHUNK = 2**26
_MAX_WINDOW = 16


def push(
    requester: Requester,
    policy: str,
    manifest: Manifest,
    tensors: Mapping[str, NDArray[Any]],
    *,
    back: bool = False,
    signature: str = "",
    shared: SharedBlock | None = None,
    timeout_s: float = 60.0,
) -> Version:
    """Bring a version to a server; returns the version it then serves.

    After a lost connection, or when the server was started again, only what is missing is sent.

    Args:
        requester: Asks the server.
        policy: Name it is served under.
        manifest: Of the tensors.
        tensors: Must not change until this returns.
        back: Let the server go back to a version older than the one it serves.
        signature: Of the manifest, for a server that trusts certain keys only.
        shared: Used where the server is on this machine, and of the same user.
        timeout_s: Seconds for everything, a restart of the server included.

    Raises:
        WeightsRefused: They are partial, stale, altered, unfit or not signed; the version served stays.
        WeightsHeld: A rollback stopped publication.
        DeadlineExceeded: Not served in time; it may be served later all the same.
        InfrastructureError: The server failed, such as by a full disk, or chunks did not arrive `TRIES` times.
    """
    manifest.match(tensors)
    limit, begin = time.monotonic() + timeout_s, {"op": "begin", "manifest": manifest.to_dict(), "back": back}
    begin |= {"signature": signature, "memory": shared.hold(manifest, tensors) if shared is not None else ""}
    sender = _Sender(requester, policy, Content(tensors), limit)
    while True:
        before = sender.arrived
        try:
            granted = sender.ask(begin, _STALL_S)
            if granted.kind == "ack":
                return _version(granted)
            label = sender.send_missing(granted)
            return _version(sender.ask({"op": "commit", "version": label}))
        except (BeginAgain, _Stalled):
            sender.tries = 1 if sender.arrived > before else sender.tries + 1
            if sender.tries >= TRIES:
                raise


class _Stalled(DeadlineExceeded):
    """Nothing has been heard of the server for a while."""


class _Sender:
    """One push's conversation with its server."""

    def __init__(self, requester: Requester, policy: str, content: Content, limit: float) -> None:
        self._requester, self._policy, self._content, self._limit = requester, policy, content, limit
        self.arrived = self.tries = 0

    def ask(self, body: Mapping[str, Any], stall_s: float = float("inf")) -> Message:
        left = self._left()
        try:
            return self._requester.request("push", policy=self._policy, body=body, timeout_s=min(left, stall_s))
        except DeadlineExceeded as error:
            if left <= stall_s:
                raise
            raise _Stalled(error.what, error.where, error.fix) from None

    def send_missing(self, granted: Message) -> Any:
        """Send the chunks that a `credit` says are missing, some at a time; returns the version's label."""
        size, window, missing = _credit(granted, self._content.nbytes)
        label, asked = granted.body.get("version"), dict[int, int]()
        damaged = 0
        try:
            while missing or asked:
                while missing and len(asked) < window:
                    index = _pop(missing)
                    asked[self._submit(label, index, size)] = index
                try:
                    answer = self._requester.collect(asked, min(self._left(), _STALL_S))
                    del asked[answer.id]
                    self.arrived += 1
                except MessageError as error:
                    index = asked.pop(error.request or 0, -1)
                    damaged += 1
                    if index < 0 or damaged >= TRIES:
                        raise
                    missing.append((index, index + 1))
                except DeadlineExceeded as error:
                    self._left()
                    raise _Stalled(error.what, error.where, error.fix) from None
        finally:
            self._requester.cancel(asked)
        return label

    def _submit(self, label: object, index: int, size: int) -> int:
        data = self._content.read(index * size, min((index + 1) * size, self._content.nbytes))
        body = {"op": "chunk", "version": label, "index": index, "hash": chunk_hash(data)}
        arrays = {"data": data}
        return self._requester.submit("push", policy=self._policy, body=body, arrays=arrays, timeout_s=self._left())

    def _left(self) -> float:
        left = self._limit - time.monotonic()
        if left <= 0:
            where = f"{self._requester.server} at {self._requester.address}"
            raise DeadlineExceeded(
                f"the push is not done in time, {self.arrived} chunks arrived", where, "allow more time, push it again"
            )
        return left


def _credit(granted: Message, nbytes: int) -> tuple[int, int, deque[tuple[int, int]]]:
    """Chunk length, window and missing ranges of a `credit`."""
    size, window, missing = (granted.body.get(name) for name in ("chunk_bytes", "window", "missing"))
    if (
        granted.kind == "credit"
        and (isinstance(size, int) and 0 < size <= _MAX_CHUNK)
        and (isinstance(window, int) and window > 0)
        and (isinstance(missing, list) and all(_is_run(run, chunk_count(nbytes, size)) for run in missing))
    ):
        return size, min(window, _MAX_WINDOW), deque((first, end) for first, end in missing)
    raise MessageError(f"an answer that is no credit: {granted.kind}", "push", "run the same version on both sides")


def _is_run(run: object, count: int) -> bool:
    """Whether it is [first, end) within `count` chunks."""
    if not isinstance(run, list) or [type(edge) for edge in run] != [int, int]:
        return False
    return 0 <= run[0] < run[1] <= count


def _pop(ranges: deque[tuple[int, int]]) -> int:
    """Take the first number of the first range."""
    first, end = ranges.popleft()
    if first + 1 < end:
        ranges.appendleft((first + 1, end))
    return first


def _version(answer: Message) -> Version:
    number, digest = answer.body.get("number"), answer.body.get("hash")
    if answer.kind != "ack" or type(number) is not int or type(digest) is not str:
        raise MessageError(f"an answer without a version: {answer.kind}", "push", "run the same version on both sides")
    return Version(number, digest)
