"""Replies of a server, encoded and waiting to be sent."""

from collections.abc import Mapping
from typing import Any

from numpy.typing import NDArray

from embodied.errors import Busy, EmbodiedError
from embodied.wire.message import Buffer, Limits, Message, encode

_TEXT = 2000

Reply = tuple[bytes, list[Buffer]]


class Replies:
    """Encoded messages with the peer each goes to, in order, until `take`.

    Args:
        limits: Limits on the size of messages.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._replies: list[Reply] = []

    def say(
        self,
        peer: bytes,
        kind: str,
        id: int = 0,
        body: Mapping[str, Any] | None = None,
        arrays: Mapping[str, NDArray[Any]] | None = None,
        session: str = "",
    ) -> None:
        """Add a message; the arrays must not change until it is sent. Raises `MessageError` outside the limits."""
        message = Message(kind, id, session, body=dict(body or {}), arrays=dict(arrays or {}))
        self._replies.append((peer, encode(message, self._limits)))

    def refuse(self, peer: bytes, id: int, error: EmbodiedError, retry_s: float = 0.0) -> None:
        """Add an error; of a busy server with the time after which to retry."""
        body: dict[str, Any] = {key: _plain(text) for key, text in error.to_dict().items()}
        if isinstance(error, Busy):
            body["retry_ms"] = min(max(int(retry_s * 1000), 5), 1000)
        self.say(peer, "error", id, body)

    def take(self) -> list[Reply]:
        replies, self._replies = self._replies, []
        return replies


def _plain(text: str) -> str:
    """Text that can always be packed."""
    return text[:_TEXT].encode("utf-8", "replace").decode()
