"""Heartbeat of a gateway's policy server: whether it answers, its policy, and the hashes of its versions."""

import asyncio
import threading
import time
from contextlib import suppress

from embodied.client import RemoteClient, Version
from embodied.errors import EmbodiedError
from embodied.spec import PolicySpec

_EVERY_S = 1.0
_JOIN_S = 1.0
_REMEMBERED = 1024


class Heartbeat:
    """Polls a policy server in a thread of its own. Call `start` first.

    Args:
        client: Client of the server, for this thread only.
        server: Address of the server.
        deadline_s: Silence after which it counts as gone; longer than one batch may take.

    Attributes:
        spec: Spec of the policy, known after `start`.
        version: Version that was served last, known after `start`.
    """

    spec: PolicySpec
    version: Version

    def __init__(self, client: RemoteClient, server: str, deadline_s: float) -> None:
        self._client, self._deadline_s = client, deadline_s
        self._heard, self._trouble = -float("inf"), f"policy server at {server} has not answered yet"
        self._hashes: dict[int, str] = {}
        self._stop, self._due = threading.Event(), threading.Event()
        self._waiting: list[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = []
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

    async def refresh(self) -> None:
        """Ask now; `spec` and `version` are then those of a moment that is not past.

        Raises:
            EmbodiedError: There is no answer.
        """
        loop = asyncio.get_running_loop()
        future = loop.create_future()
        self._waiting.append((loop, future))
        self._due.set()
        await future

    def digest(self, number: int) -> str | None:
        """Hash of a version number; None if unknown."""
        return self._hashes.get(number)

    def close(self) -> None:
        """Stop polling; the thread may live on until its request is answered."""
        self._stop.set()
        self._due.set()
        if self._thread.is_alive():
            self._thread.join(_JOIN_S)

    def _run(self) -> None:
        while not self._stop.is_set():
            self._due.wait(_EVERY_S)
            self._due.clear()
            waiting, self._waiting = self._waiting, []
            error: EmbodiedError | None = None
            try:
                self._ask()
            except EmbodiedError as caught:
                self._trouble, error = caught.line(), caught
            except Exception:
                if self._stop.is_set() or not threading.main_thread().is_alive():
                    return  # the process ends, and its sockets are closed already
                raise
            for loop, future in waiting:
                with suppress(RuntimeError):  # the loop has ended
                    loop.call_soon_threadsafe(_settle, future, error)
        self._client.close()

    def _ask(self) -> None:
        self.spec, self.version = self._client.hello(), self._client.version()
        number, digest = self.version
        self._hashes.pop(number, None)
        self._hashes[number] = digest
        while len(self._hashes) > _REMEMBERED:
            self._hashes.pop(next(iter(self._hashes)))
        self._heard, self._trouble = time.monotonic(), ""


def _settle(future: "asyncio.Future[None]", error: EmbodiedError | None) -> None:
    if future.done():  # cancelled
        return
    if error is None:
        future.set_result(None)
    else:
        future.set_exception(error)
