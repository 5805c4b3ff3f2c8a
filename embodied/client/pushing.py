"""The sending side of a push: offer a version, answer the server's fetches, until it is served or stored."""

import time
from collections.abc import Mapping
from typing import Any

from numpy.typing import NDArray

from embodied.errors import DeadlineExceeded, MessageError
from embodied.weights.manifest import Manifest, Version
from embodied.weights.shared import SharedBlock
from embodied.weights.transfer import Content, read_range
from embodied.wire.endpoint import Requester
from embodied.wire.message import Message

TRIES = 8
"""Connections in a row over which nothing was fetched, after which a push fails."""

_STALL_S = 30.0


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
    """Offer a version to a server, which fetches it; returns the version the server then serves.

    After a lost connection, or when the server was started again, the server fetches only what it lacks.

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
        InfrastructureError: The server failed, such as by a full disk.
        MessageError: Ranges kept arriving damaged, or the server asked for what is no range.
    """
    manifest.match(tensors)
    content = Content(tensors)
    body = {"manifest": manifest.to_dict(), "back": back, "signature": signature}
    body["memory"] = shared.hold(manifest, tensors) if shared is not None else ""
    sent = 0

    def serve(fetch: Message) -> Message:
        nonlocal sent
        said, arrays = read_range(content, manifest, fetch.body)
        sent += arrays["data"].nbytes
        return Message("range", policy=policy, body=said, arrays=arrays)

    offer = requester.submit("offer", policy=policy, body=body, timeout_s=timeout_s, serve=serve)
    limit, tries = time.monotonic() + timeout_s, 0
    try:
        while True:
            before = sent
            try:
                return _version(requester.collect((offer,), max(min(_STALL_S, limit - time.monotonic()), 0.0)))
            except DeadlineExceeded as error:
                if error.request is not None:
                    raise _late(error, sent) from None
                # Once all was fetched, or where memory is shared, the server may load for as long as it takes.
                if sent == before and sent < content.nbytes and (sent or not body["memory"]):
                    tries += 1
                    if tries >= TRIES:
                        raise
                    requester.reconnect()
    finally:
        requester.cancel((offer,))


def _late(error: DeadlineExceeded, sent: int) -> DeadlineExceeded:
    what = f"{error.what}, {sent} bytes were fetched" if sent else error.what
    return DeadlineExceeded(what, error.where, error.fix)


def _version(answer: Message) -> Version:
    number, digest = answer.body.get("number"), answer.body.get("hash")
    if answer.kind != "ack" or type(number) is not int or type(digest) is not str:
        raise MessageError(f"an answer without a version: {answer.kind}", "push", "run the same version on both sides")
    return Version(number, digest)
