"""Workers that an environment starts and ends."""

import json
import logging
import time
from collections.abc import Collection
from pathlib import Path
from typing import Any

from embodied.errors import ConfigError, InfrastructureError
from embodied.supervisor import Backoff, Child, stop_all

log = logging.getLogger(__name__)

_IDLE_S = 30  # after which a worker ends whose environment was killed


class Spawner:
    """Keeper of `count` running workers, in process groups of their own: an interrupt reaches the environment only.

    Args:
        python: The interpreter of the environment that has the suite and this package.
        count: How many.
        env, options, pixels, credentials: For `embodied sim-worker`.

    Raises:
        ConfigError: There is no such interpreter.
    """

    def __init__(
        self, python: str, count: int, env: str, options: dict[str, Any], pixels: int, credentials: Path | None
    ) -> None:
        if not Path(python).is_file():
            fix = "give the path of an environment's bin/python; `make peer-<name>` makes those in peers/"
            raise ConfigError(f"no Python interpreter {python}", "env.spawn", fix)
        self.python, self._count = python, count
        words = [f"{key}={json.dumps(value)}" for key, value in options.items()]
        self._command = [str(Path(python).absolute()), "-m", "embodied.cli.main", "sim-worker", "--env", env]
        self._command += [word for option in words for word in ("--option", option)]
        self._command += ["--pixels", str(pixels), "--idle", str(_IDLE_S)] + (
            ["--credentials", str(credentials)] if credentials else []
        )
        self._running: list[Child] = []
        self._backoff = Backoff(first_s=0.0, longest_s=10.0)
        self._due = 0.0
        self.address = ""

    def start(self, address: str) -> None:
        """Start the workers; they call `address`."""
        self.address = address
        while len(self._running) < self._count:
            self._running.append(Child("sim-worker", [*self._command, "--connect", address]))
        self._started = time.monotonic()

    def tend(self, heard: Collection[int]) -> None:
        """Replace workers that ended, after a pause where several ended soon. `heard` are process ids that called.

        Raises:
            ConfigError: A worker ended before it was heard, by a mistake of the user's; gives its last line.
            InfrastructureError: A worker ended before it was heard, for another reason.
        """
        now = time.monotonic()
        for child in list(self._running):
            if child.alive:
                continue
            self._running.remove(child)
            status, said = child.status, child.last_line().removeprefix("embodied: ")
            child.stop()
            if child.pid not in heard:
                kind = ConfigError if status == 2 else InfrastructureError
                what = f"the worker ended with status {status}: {said or 'it said nothing'}"
                raise kind(what, " ".join(self._command[:4]), "see that it runs by hand")
            self._due = now + self._backoff.died(now - self._started)
            log.warning("worker %d ended with status %d and is replaced", child.pid, status)
        if len(self._running) < self._count and now >= self._due:
            self.start(self.address)

    def kill(self, pid: int) -> None:
        """Kill the worker of this process id, which hangs."""
        for child in self._running:
            if child.pid == pid:
                child.kill()

    def close(self) -> None:
        """End the workers: SIGTERM, then SIGKILL."""
        stop_all(self._running)
        self._running = []
