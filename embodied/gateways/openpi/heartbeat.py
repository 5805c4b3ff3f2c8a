"""Heartbeat of a gateway's policy server: whether it answers, and the hashes of its versions."""

import threading
import time

from embodied.client import RemoteClient
from embodied.errors import EmbodiedError

_EVERY_S = 1.0
_JOIN_S = 1.0
_REMEMBERED = 1024


class Heartbeat:
    """Polls a policy server in a thread of its own. Call `start` first.

    Args:
        client: Client of the server, for this thread only.
        server: Address of the server.
        deadline_s: Silence after which it counts as gone; longer than one batch may take.
    """

    def __init__(self, client: RemoteClient, server: str, deadline_s: float) -> None:
        self._client, self._deadline_s = client, deadline_s
        self._heard, self._trouble = -float("inf"), f"policy server at {server} has not answered yet"
        self._hashes: dict[int, str] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)

    def start(self) -> None:
        """Ask once, then start polling.

        Raises:
            InfrastructureError: There is no answer.
        """
        self._ask()
        self._thread.start()

    @property
    def trouble(self) -> str:
        """Reason that the server counts as gone, in one line; empty while it answers."""
        silent = time.monotonic() - self._heard > self._deadline_s + 2 * _EVERY_S
        return self._trouble or (f"the policy server is silent for {self._deadline_s:g} s" if silent else "")

    def note(self, number: int, digest: str) -> None:
        """Cache the hash of a version number."""
        self._hashes.pop(number, None)
        self._hashes[number] = digest
        while len(self._hashes) > _REMEMBERED:
            self._hashes.pop(next(iter(self._hashes)))

    def digest(self, number: int) -> str | None:
        """Hash of a version number; None if unknown."""
        return self._hashes.get(number)

    def close(self) -> None:
        """Stop polling; the thread may live on until its request is answered."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(_JOIN_S)

    def _run(self) -> None:
        while not self._stop.wait(_EVERY_S):
            try:
                self._ask()
            except EmbodiedError as error:
                self._trouble = error.line()
            except Exception:
                if self._stop.is_set() or not threading.main_thread().is_alive():
                    return  # the process ends, and its sockets are closed already
                raise
        self._client.close()

    def _ask(self) -> None:
        self.note(*self._client.version())
        self._heard, self._trouble = time.monotonic(), ""
