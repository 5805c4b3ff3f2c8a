"""Workers that a env starts itself, and ends."""

import json
import logging
import subprocess
import tempfile
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from embodied.errors import ConfigError, InfrastructureError

log = logging.getLogger(__name__)

_IDLE_S = 30  # after which a worker ends whose env was killed
_END_S = 5.0
_TAIL = 4000


class Spawner:
    """Keeps `count` workers running. They get a process group of their own: who is interrupted is the env.

    Args:
        python: The interpreter of the environment that has the suite and this package.
        count: How many.
        env, options, pixels, keys: For `embodied sim-worker`.

    Raises:
        ConfigError: There is no such interpreter.
    """

    def __init__(
        self, python: str, count: int, env: str, options: dict[str, Any], pixels: int, keys: Path | None
    ) -> None:
        if not Path(python).is_file():
            fix = "give the path of an environment's bin/python; `make peer-<name>` makes those in peers/"
            raise ConfigError(f"no Python interpreter {python}", "env.spawn", fix)
        self.python, self._count = python, count
        words = [f"{key}={json.dumps(value)}" for key, value in options.items()]
        self._command = [str(Path(python).absolute()), "-m", "embodied.cli.main", "sim-worker", "--env", env]
        self._command += [word for option in words for word in ("--option", option)]
        self._command += ["--pixels", str(pixels), "--idle", str(_IDLE_S)] + (["--keys", str(keys)] if keys else [])
        self._running: list[tuple[subprocess.Popen[bytes], IO[bytes]]] = []
        self.address = ""

    def start(self, address: str) -> None:
        """Start the workers; they call `address`."""
        self.address = address
        while len(self._running) < self._count:
            errors = tempfile.TemporaryFile()  # noqa: SIM115 (it lives as long as the process)
            process = subprocess.Popen(
                [*self._command, "--connect", address],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                start_new_session=True,
            )
            self._running.append((process, errors))

    def tend(self, heard: Collection[int]) -> None:
        """Replace workers that ended, of those whose process ids are in `heard`.

        Raises:
            ConfigError: One ended before it was heard, with a mistake of the user's: its own words.
            InfrastructureError: One ended so for another reason.
        """
        for process, errors in list(self._running):
            if process.poll() is None:
                continue
            self._running.remove((process, errors))
            said = _last_line(errors)
            if process.pid not in heard:
                kind = ConfigError if process.returncode == 2 else InfrastructureError
                what = f"the worker ended with status {process.returncode}: {said or 'it said nothing'}"
                raise kind(what, " ".join(self._command[:4]), "see that it runs by hand")
            log.warning("worker %d ended with status %d and is replaced", process.pid, process.returncode)
        self.start(self.address)

    def kill(self, pid: int) -> None:
        """Kill one of them that hangs."""
        for process, _ in self._running:
            if process.pid == pid:
                process.kill()
                with suppress(subprocess.TimeoutExpired):
                    process.wait(_END_S)

    def close(self) -> None:
        """End them: politely, then not."""
        for process, _ in self._running:
            process.terminate()
        for process, errors in self._running:
            try:
                process.wait(_END_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(_END_S)
            errors.close()
        self._running = []


def _last_line(errors: IO[bytes]) -> str:
    """The last line that a process wrote, or nothing."""
    with errors:
        size = errors.seek(0, 2)
        errors.seek(max(size - _TAIL, 0))
        lines = errors.read(_TAIL).decode("utf-8", "replace").strip().splitlines()
    return lines[-1].removeprefix("embodied: ") if lines else ""
