"""Spawns the gateways of a policy server, starts them again whenever they die, and ends them."""

import json
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
_QUICK_DEATHS = 5  # in a row; then its start has failed, though it is tried again
_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 30.0
_SAY_S = 60.0  # of one that dies again and again
_ORPHAN_S = 10.0
_SAID_BYTES = 2**16
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
    listening: bool = False
    error: EmbodiedError | None = None
    why: str = ""
    said: float = -float("inf")
    ended: bool = False


class Gateways:
    """The gateways of one server. Call `check` now and then, in one thread, best not the serving one.

    Args:
        wanted: Main function and options of each, which can be pickled; see `Main`.
        announce: Is told one line when a gateway listens or dies; of one that dies again and again, one a minute.
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
            if gateway.process is None and not (gateway.ended or self._closed) and self._clock() >= gateway.due:
                self._spawn(gateway)
        return asked

    def wait_ready(self, timeout_s: float) -> list[str]:
        """The lines that all gateways said when they began to listen, in order.

        Raises:
            UserError: As `check`.
            InfrastructureError: One does not listen in time, or died again and again before it did.
        """
        limit = time.monotonic() + timeout_s
        while not all(gateway.ready for gateway in self._gateways):
            self.check()
            silent = [gateway.name for gateway in self._gateways if not gateway.ready]
            hopeless = any(g.ended or (g.quick >= _QUICK_DEATHS and not g.ready) for g in self._gateways)
            if silent and (hopeless or time.monotonic() > limit):
                raise InfrastructureError("a gateway does not listen", ", ".join(silent), "see the server's log")
            time.sleep(0.02)
        return [gateway.line for gateway in self._gateways]

    def status(self) -> list[dict[str, Any]]:
        """Per gateway plain values, from any thread: `name`, `state` (`listening`; `starting`; `died`, and it starts
        again; `ended`), `line` (what it said when it last listened), `deaths`, `error` (why it last died, in one line;
        empty while it listens), `retry_s` (seconds until it starts again; 0 unless it died).
        """
        now = self._clock()
        return [
            {
                "name": gateway.name,
                "state": (state := _state(gateway)),
                "line": gateway.line,
                "deaths": gateway.deaths,
                "error": "" if state == "listening" else gateway.why,
                "retry_s": round(max(gateway.due - now, 0.0), 1) if state == "died" else 0.0,
            }
            for gateway in self._gateways
        ]

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
            gateway.listening, gateway.ended = False, True

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
                # No pickle: a gateway reads what strangers send.
                said = json.loads(gateway.pipe.recv_bytes(_SAID_BYTES))
                if isinstance(said, dict):
                    gateway.error = error_from_body(said)
                else:
                    gateway.line, gateway.ready, gateway.listening = str(said), True, True
                    self._announce(gateway.line)
        except (EOFError, OSError):
            return  # it died; that shows in the process
        except ValueError:
            log.warning("gateway %s said something that is no JSON", gateway.name)

    def _bury(self, gateway: _Gateway, process: BaseProcess) -> bool:
        """Whether a dead gateway ended because a client asked; else it is to start again after a pause."""
        self._listen(gateway)
        assert gateway.pipe is not None
        gateway.pipe.close()
        gateway.process = gateway.pipe = None
        gateway.listening = False
        if process.exitcode == ASKED_TO_STOP:
            gateway.ended = True
            return True
        if self._closed:
            return False
        if isinstance(gateway.error, UserError) and not gateway.ready:
            gateway.ended = True
            raise gateway.error
        now = self._clock()
        gateway.deaths += 1
        gateway.quick = gateway.quick + 1 if now - gateway.started < _QUICK_S else 0
        gateway.why = gateway.error.line() if gateway.error is not None else f"exit status {process.exitcode}"
        often = gateway.quick >= _QUICK_DEATHS
        doublings = min(max(gateway.quick - 1, 0), 16)
        pause = _LONGEST_PAUSE_S if often else min(_PAUSE_S * 2**doublings, _LONGEST_PAUSE_S)
        gateway.due = now + pause
        if not often:
            self._announce(f"gateway {gateway.name} died and starts again in {pause:g} s: {gateway.why}")
        elif now - gateway.said >= _SAY_S:
            gateway.said = now
            times = f"{gateway.quick} times in a row"
            self._announce(f"gateway {gateway.name} died {times} and is tried every {pause:g} s: {gateway.why}")
        return False


def _state(gateway: _Gateway) -> str:
    if gateway.ended:
        return "ended"
    if gateway.process is None:
        return "died" if gateway.deaths else "starting"
    return "listening" if gateway.listening else "starting"


def _child(main: Main, options: Any, pipe: Connection) -> None:
    """Runs a gateway; says to its parent what it has to say, and ends when the parent does."""
    threading.Thread(target=_end_with_parent, args=(pipe,), name="parent", daemon=True).start()
    try:
        status = main(options, lambda line: _say(pipe, line))
    except EmbodiedError as error:
        _say(pipe, error.to_dict())
        status = error.exit_status
    except KeyboardInterrupt:
        status = 0
    raise SystemExit(status or 0)


def _say(pipe: Connection, said: object) -> None:
    pipe.send_bytes(json.dumps(said).encode()[:_SAID_BYTES])


def _end_with_parent(pipe: Connection) -> None:
    try:
        pipe.recv_bytes(_SAID_BYTES)  # nothing is ever sent; it ends when the parent's half is closed
    except (EOFError, OSError):
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(_ORPHAN_S)
        os._exit(1)
