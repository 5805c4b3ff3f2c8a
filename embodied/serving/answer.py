"""Callers of a server, with their permissions, and answers that may be given later."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from embodied.errors import EmbodiedError, Unauthorized
from embodied.wire.credentials import PERMISSIONS


@dataclass(frozen=True)
class Caller:
    """Sender of a message, by its credentials.

    Attributes:
        name: Name of its certificate; empty on a socket without credentials, which only this machine can reach.
        permissions: Some of `PERMISSIONS`.
    """

    name: str = ""
    permissions: frozenset[str] = frozenset(PERMISSIONS)

    def require(self, permission: str, kind: str) -> None:
        """Raise `Unauthorized` unless the caller has a permission for messages of a kind."""
        if permission not in self.permissions:
            # `add` takes away permissions that it does not name.
            wanted = ",".join(one for one in PERMISSIONS if one in self.permissions or one == permission)
            raise Unauthorized(
                f"{self.name} may not send {kind}, which needs the permission {permission}",
                "policy server",
                f"give it the permission there: embodied credentials add FOLDER {self.name} permission={wanted}",
            )


@dataclass(frozen=True)
class Answer:
    """Answer to one message; may be kept and sent once, later, in the serving thread.

    Attributes:
        session: Label of the session that asked.
        send: Sends kind, body and arrays.
        refuse: Sends an error.
    """

    session: str
    send: Callable[[str, Mapping[str, Any], Mapping[str, NDArray[Any]]], None]
    refuse: Callable[[EmbodiedError], None]

    def __call__(
        self, kind: str, body: Mapping[str, Any] | None = None, arrays: Mapping[str, NDArray[Any]] | None = None
    ) -> None:
        self.send(kind, body or {}, arrays or {})
