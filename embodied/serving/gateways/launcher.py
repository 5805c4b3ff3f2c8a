"""Spawns the gateways of a policy server, starts them again when they die, and ends them."""

import logging
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

from embodied.errors import EmbodiedError, InfrastructureError, UserError
from embodied.wire.codecs import error_from_body

log = logging.getLogger(__name__)

Announce = Callable[[str], object]
Main = Callable[[Any, Announce], int | None]
"""A gateway's main function: runs until SIGTERM or SIGINT, says one line when it listens, returns its exit status."""

ASKED_TO_STOP = 100
"""Exit status of a gateway one of whose clients asked, with authority, that the server stop."""

_QUICK_S = 10.0  # a gateway that dies sooner had no life
_QUICK_DEATHS = 5
_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 30.0
_ORPHAN_S = 10.0
_SPAWN = multiprocessing.get_context("spawn")


@dataclass
class _Gateway:
    main: Main
    options: Any
    name: str
    process: BaseProcess | None = None
    pipe: Connection | None = None
    started: float = 0.0
    due: float = 0.0
    quick: int = 0
    deaths: int = 0
    line: str = ""
    ready: bool = False
    error: EmbodiedError | None = None
    given_up: bool = False


class Gateways:
    """The gateways of one server. Call `check` now and then, in one thread, best not the serving one.

    Args:
        wanted: Main function and options of each, which can be pickled; see `Main`.
        announce: Is told one line when a gateway listens, dies, or is given up.
        clock: Seconds, monotonic.
    """

    def __init__(
        self,
        wanted: Sequence[tuple[Main, Any]],
        announce: Announce = print,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._announce, self._clock, self._closed = announce, clock, False
        self._gateways = [_Gateway(main, options, main.__module__.rpartition(".")[2]) for main, options in wanted]

    def start(self) -> None:
        """Spawn them. Whether they listen shows in `check`."""
        for gateway in self._gateways:
            self._spawn(gateway)

    def check(self) -> bool:
        """Start again what died and is due; whether a client asked, with authority, that the server stop.

        Raises:
            UserError: A gateway that never listened cannot, as it is configured.
        """
        asked = False
        for gateway in self._gateways:
            self._listen(gateway)
            process = gateway.process
            if process is not None and not process.is_alive():
                asked |= self._bury(gateway, process)
            if gateway.process is None and not (gateway.given_up or self._closed) and self._clock() >= gateway.due:
                self._spawn(gateway)
        return asked

    def wait_ready(self, timeout_s: float) -> list[str]:
        """The lines that all gateways said when they began to listen, in order.

        Raises:
            UserError: As `check`.
            InfrastructureError: One does not listen in time, or was given up.
        """
        limit = time.monotonic() + timeout_s
        while not all(gateway.ready for gateway in self._gateways):
            self.check()
            silent = [gateway.name for gateway in self._gateways if not gateway.ready]
            if any(gateway.given_up for gateway in self._gateways) or time.monotonic() > limit:
                raise InfrastructureError("a gateway does not listen", ", ".join(silent), "see the server's log")
            time.sleep(0.02)
        return [gateway.line for gateway in self._gateways]

    def status(self) -> list[dict[str, Any]]:
        """Per gateway: `name`, `line` (what it said), `alive`, `deaths`, `given_up`."""
        return [
            {"name": g.name, "line": g.line, "alive": g.process is not None and g.process.is_alive(),
             "deaths": g.deaths, "given_up": g.given_up}
            for g in self._gateways
        ]  # fmt: skip

    def close(self, timeout_s: float = 5.0) -> None:
        """Ask them to end, and end them after `timeout_s`."""
        self._closed = True
        alive = [gateway for gateway in self._gateways if gateway.process is not None]
        for gateway in alive:
            assert gateway.process is not None
            gateway.process.terminate()
        limit = time.monotonic() + timeout_s
        for gateway in alive:
            assert gateway.process is not None and gateway.pipe is not None
            gateway.process.join(max(limit - time.monotonic(), 0.0))
            if gateway.process.is_alive():
                log.warning("gateway %s did not end within %g s", gateway.name, timeout_s)
                gateway.process.kill()
                gateway.process.join(1.0)
            gateway.pipe.close()
            gateway.process = gateway.pipe = None

    def _spawn(self, gateway: _Gateway) -> None:
        ours, theirs = _SPAWN.Pipe()
        process = _SPAWN.Process(
            target=_child, args=(gateway.main, gateway.options, theirs), name=f"gateway-{gateway.name}", daemon=True
        )
        process.start()
        theirs.close()
        gateway.process, gateway.pipe, gateway.started, gateway.error = process, ours, self._clock(), None

    def _listen(self, gateway: _Gateway) -> None:
        """Take in what a gateway has said."""
        try:
            while gateway.pipe is not None and gateway.pipe.poll(0):
                said = gateway.pipe.recv()
                if isinstance(said, dict):
                    gateway.error = error_from_body(said)
                else:
                    gateway.line, gateway.ready = str(said), True
                    self._announce(gateway.line)
        except (EOFError, OSError):
            return  # it died; that shows in the process

    def _bury(self, gateway: _Gateway, process: BaseProcess) -> bool:
        """Whether a dead gateway ended because a client asked; else it is to start again after a pause."""
        self._listen(gateway)
        assert gateway.pipe is not None
        gateway.pipe.close()
        gateway.process = gateway.pipe = None
        if process.exitcode == ASKED_TO_STOP:
            gateway.given_up = True
            return True
        if self._closed:
            return False
        if isinstance(gateway.error, UserError) and not gateway.ready:
            gateway.given_up = True
            raise gateway.error
        gateway.deaths += 1
        gateway.quick = gateway.quick + 1 if self._clock() - gateway.started < _QUICK_S else 0
        why = gateway.error.line() if gateway.error is not None else f"exit status {process.exitcode}"
        if gateway.quick >= _QUICK_DEATHS:
            gateway.given_up = True
            self._announce(f"gateway {gateway.name} died {gateway.quick} times in a row and is given up: {why}")
            return False
        pause = min(_PAUSE_S * 2 ** max(gateway.quick - 1, 0), _LONGEST_PAUSE_S)
        gateway.due = self._clock() + pause
        self._announce(f"gateway {gateway.name} died and starts again in {pause:g} s: {why}")
        return False


def _child(main: Main, options: Any, pipe: Connection) -> None:
    """Runs a gateway; says to its parent what it has to say, and ends when the parent does."""
    threading.Thread(target=_end_with_parent, args=(pipe,), name="parent", daemon=True).start()
    try:
        status = main(options, pipe.send)
    except EmbodiedError as error:
        pipe.send(error.to_dict())
        status = error.exit_status
    except KeyboardInterrupt:
        status = 0
    raise SystemExit(status or 0)


def _end_with_parent(pipe: Connection) -> None:
    try:
        pipe.recv()  # nothing is ever sent; it ends when the parent's half is closed
    except (EOFError, OSError):
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(_ORPHAN_S)
        os._exit(1)
