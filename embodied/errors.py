"""One hierarchy of errors: what happened, where, and what to do about it.

`EmbodiedError` is caught once, at the front door, and printed as one line. Its subclasses tell who must act:
the user (`UserError`, exit status 2) or the machines (`InfrastructureError`, `DataError`, exit status 3).
"""

import difflib
import itertools
from collections.abc import Iterable

_LISTED = 400  # characters of names in a message


class EmbodiedError(Exception):
    """Base of all errors this project raises on purpose.

    Args:
        what: What happened, in words.
        where: The file, key, stream or peer concerned.
        fix: What the reader can do.

    Attributes:
        request: Number of the request that was answered with it, where several were in flight.
    """

    code = "error"
    exit_status = 3
    request: int | None = None

    def __init__(self, what: str, where: str = "", fix: str = "") -> None:
        self.what, self.where, self.fix = what, where, fix
        super().__init__(self.line())

    def line(self) -> str:
        """The error as one line: `what (where): fix`."""
        text = self.what + (f" ({self.where})" if self.where else "")
        return " ".join((text + (f": {self.fix}" if self.fix else "")).split())

    def to_dict(self) -> dict[str, str]:
        """The fields of an `error` message on the wire."""
        return {"code": self.code, "what": self.what, "where": self.where, "fix": self.fix}


class UserError(EmbodiedError):
    """Something the user wrote or asked for cannot be done as it stands."""

    code = "user"
    exit_status = 2


class ConfigError(UserError):
    """A configuration names something unknown, or a value out of its range."""

    code = "config"


class Unauthorized(UserError):
    """A client asked for what its keys do not allow."""

    code = "unauthorized"


class SpecMismatch(UserError):
    """A policy's needs and an environment's offer differ in a stream or a field."""

    code = "spec_mismatch"


class InfrastructureError(EmbodiedError):
    """A process, connection, disk or device failed; the same request may succeed elsewhere or later."""

    code = "infrastructure"


class DeadlineExceeded(InfrastructureError):
    """Someone did not answer in time; `where` names them, `what` says what they were doing."""

    code = "deadline"


class Busy(InfrastructureError):
    """A bounded queue is full; ask again later."""

    code = "busy"


class NotShared(InfrastructureError):
    """Two processes share no memory; what was left there has to be sent."""

    code = "not_shared"


class WeightsHeld(InfrastructureError):
    """A rollback stopped publication; what is served stays until somebody says to go on."""

    code = "held"


class DataError(EmbodiedError):
    """Bytes that should mean something do not: a corrupt file, a malformed message, numbers that are not finite."""

    code = "data"


class CorruptFile(DataError):
    """A stored file is truncated, altered, or not what its name says."""

    code = "corrupt"


class MessageError(DataError):
    """A message on the wire is malformed or larger than its receiver allows."""

    code = "message"


class WeightsRefused(DataError):
    """A set of weights is partial, stale, altered, or does not fit the policy; the version served stays."""

    code = "weights_refused"


class RolloutMismatch(DataError):
    """Rollouts were not made as the learner thinks: their log-probabilities are not those of the same weights.

    Attributes:
        version: Number of the version that decided.
    """

    code = "mismatch"
    version = 0


def nearest(name: object, known: Iterable[str], count: int = 3) -> str:
    """A sentence that offers the known names nearest to a wrong one, or all where none is near.

    Args:
        name: The wrong one, which may be no text at all.
        known: The known ones.
        count: Most names offered as near.
    """
    names = sorted(set(known))
    words = {known_name.casefold(): known_name for known_name in names}
    wrong = str(name)[:100].casefold()
    begun = [word for word in words if len(wrong) > 2 and word.startswith(wrong)]
    if close := list(dict.fromkeys([*begun, *difflib.get_close_matches(wrong, words, n=count)]))[:count]:
        return f"did you mean {' or '.join(words[word] for word in close)}?"
    if not names:
        return "nothing is known under any name"
    listed = list(
        itertools.takewhile(lambda end: end <= _LISTED, itertools.accumulate(len(each) + 2 for each in names))
    )
    shown = max(len(listed), 1)
    more = f" and {len(names) - shown} more" if shown < len(names) else ""
    return f"known: {', '.join(names[:shown])}{more}"
