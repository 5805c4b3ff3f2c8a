"""Keys that clients send and no stream reads, each logged once."""

import logging
from collections.abc import Iterable

log = logging.getLogger(__name__)

_MOST = 64


class UnreadKeys:
    """Log of unread keys; beyond 64 distinct ones it stays silent, since clients may make up any number.

    Args:
        reader: Mapping that reads the others, for the message.
    """

    def __init__(self, reader: str) -> None:
        self._reader, self._said = reader, set[str]()

    def say(self, keys: Iterable[object]) -> None:
        """Log those of the keys that were not logged before."""
        fresh = sorted({str(key)[:100] for key in keys} - self._said)[: _MOST - len(self._said)]
        if fresh:
            self._said.update(fresh)
            log.warning("clients send keys that %s does not read: %s", self._reader, ", ".join(fresh))
