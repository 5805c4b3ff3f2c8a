"""Who asked a station something, and how it answers: at once or later."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from embodied.errors import EmbodiedError, Unauthorized
from embodied.wire.credentials import ROLES


@dataclass(frozen=True)
class Caller:
    """Who sent a message, as its keys say.

    Attributes:
        name: Name of its certificate; empty on a socket without keys, which only this machine can reach.
        roles: What it may do, of `ROLES`.
    """

    name: str = ""
    roles: frozenset[str] = frozenset(ROLES)

    def require(self, role: str, kind: str) -> None:
        """Raise `Unauthorized` unless the caller has a role."""
        if role not in self.roles:
            roles = [one for one in ROLES if one in self.roles or one == role]  # what is not named is taken away
            raise Unauthorized(
                f"{self.name} may not send {kind}, which needs the role {role}",
                "policy server",
                f"give it the role on the server: embodied keys add FOLDER {self.name} role={','.join(roles)}",
            )


@dataclass(frozen=True)
class Answer:
    """Answers one message; may be kept and used once, later, in the serving thread.

    Attributes:
        session: Who asked.
        send: Takes kind, body and arrays.
        refuse: Takes the error.
    """

    session: str
    send: Callable[[str, Mapping[str, Any], Mapping[str, NDArray[Any]]], None]
    refuse: Callable[[EmbodiedError], None]

    def __call__(
        self, kind: str, body: Mapping[str, Any] | None = None, arrays: Mapping[str, NDArray[Any]] | None = None
    ) -> None:
        self.send(kind, body or {}, arrays or {})
