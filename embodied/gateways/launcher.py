"""Launcher of a policy server's gateways: starts them, restarts them when they die, and ends them."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from embodied.errors import EmbodiedError, InfrastructureError, UserError
from embodied.supervisor import Backoff, Child, stop_all
from embodied.wire.codecs import error_from_body

Announce = Callable[[str], object]
Main = Callable[[Any, Announce], int | None]
"""Main function of a gateway: announces one line when it listens, runs until SIGTERM, returns its exit status."""

STOP_REQUESTED = 100
"""Exit status of a gateway after an authorized client asked to stop the server."""

SILENT_S = 4.0
"""Silence after which a gateway that has sent heartbeats counts as hanging, seconds."""

_SAY_S = 60.0  # between two announcements about a gateway that keeps dying


@dataclass
class _Gateway:
    main: Main
    options: Any
    name: str
    child: Child | None = None
    backoff: Backoff = field(default_factory=Backoff)
    started: float = 0.0
    due: float = 0.0
    line: str = ""
    ready: bool = False
    listening: bool = False
    beat: float = float("inf")
    error: EmbodiedError | None = None
    why: str = ""
    said: float = -float("inf")
    ended: bool = False


class GatewayLauncher:
    """Launcher of one server's gateways. Call `check` regularly, from one thread other than the serving one.

    Args:
        wanted: Name of each gateway to its main function and options, which are plain values; see `Main`.
        announce: Called with one line when a gateway listens or dies, once a minute for one that keeps dying.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        wanted: Mapping[str, tuple[Main, Any]],
        announce: Announce = print,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._announce, self._clock, self._closed = announce, clock, False
        self._gateways = [_Gateway(main, options, name) for name, (main, options) in wanted.items()]

    def start(self) -> None:
        """Start the gateways; `check` finds out whether they listen."""
        for gateway in self._gateways:
            self._start(gateway)

    def check(self) -> bool:
        """Restart dead gateways that are due; whether an authorized client asked to stop the server.

        Raises:
            UserError: A gateway that never listened cannot, as it is configured.
        """
        asked = False
        for gateway in self._gateways:
            self._read_reports(gateway)
            child = gateway.child
            if child is not None and not child.alive:
                asked |= self._reap(gateway, child)
            if gateway.child is None and not (gateway.ended or self._closed) and self._clock() >= gateway.due:
                self._start(gateway)
        return asked

    def wait_ready(self, timeout_s: float) -> list[str]:
        """Wait until all gateways listen; returns the line that each announced, in order.

        Raises:
            UserError: As `check`.
            InfrastructureError: A gateway does not listen in time, or kept dying before it did.
        """
        limit = time.monotonic() + timeout_s
        while not all(gateway.ready for gateway in self._gateways):
            self.check()
            silent = [gateway.name for gateway in self._gateways if not gateway.ready]
            hopeless = any(g.ended or (g.backoff.spent and not g.ready) for g in self._gateways)
            if silent and (hopeless or time.monotonic() > limit):
                raise InfrastructureError("a gateway does not listen", ", ".join(silent), "see the server's log")
            time.sleep(0.02)
        return [gateway.line for gateway in self._gateways]

    def status(self) -> list[dict[str, Any]]:
        """Status of each gateway in plain values, from any thread.

        The fields are `name`, `state` (`listening`, `starting`, `silent` without heartbeats, `died` before a restart,
        or `ended`), `line` (its last announcement), `deaths`, `error` (reason in one line; empty while it listens) and
        `retry_s` (seconds until it restarts; 0 unless it died).
        """
        now = self._clock()
        return [
            {
                "name": gateway.name,
                "state": (state := _state(gateway, now)),
                "line": gateway.line,
                "deaths": gateway.backoff.deaths,
                "error": _reason(gateway, state, now),
                "retry_s": round(max(gateway.due - now, 0.0), 1) if state == "died" else 0.0,
            }
            for gateway in self._gateways
        ]

    def close(self, timeout_s: float = 5.0) -> None:
        """End the gateways; those that live after `timeout_s` are killed."""
        self._closed = True
        stop_all([gateway.child for gateway in self._gateways if gateway.child is not None], timeout_s)
        for gateway in self._gateways:
            gateway.child, gateway.listening, gateway.ended = None, False, True

    def _start(self, gateway: _Gateway) -> None:
        gateway.child = Child.calling(f"gateway {gateway.name}", gateway.main, gateway.options)
        gateway.started, gateway.error = self._clock(), None

    def _read_reports(self, gateway: _Gateway) -> None:
        """Read the lines and the error that a gateway has sent."""
        for said in gateway.child.said() if gateway.child is not None else ():
            if said is None:
                gateway.beat = self._clock()
            elif isinstance(said, dict):
                gateway.error = error_from_body(said)
            else:
                gateway.line, gateway.ready, gateway.listening = str(said), True, True
                self._announce(gateway.line)

    def _reap(self, gateway: _Gateway, child: Child) -> bool:
        """Schedule the restart of a dead gateway; whether it ended because a client asked the server to stop."""
        self._read_reports(gateway)
        status = child.status
        child.stop()
        gateway.child, gateway.listening, gateway.beat = None, False, float("inf")
        if status == STOP_REQUESTED:
            gateway.ended = True
            return True
        if self._closed:
            return False
        if isinstance(gateway.error, UserError) and not gateway.ready:
            gateway.ended = True
            raise gateway.error
        now, backoff = self._clock(), gateway.backoff
        pause = backoff.died(now - gateway.started)
        gateway.why = gateway.error.line() if gateway.error is not None else f"exit status {status}"
        gateway.due = now + pause
        if not backoff.spent:
            self._announce(f"gateway {gateway.name} died and restarts in {pause:g} s: {gateway.why}")
        elif now - gateway.said >= _SAY_S:
            gateway.said = now
            times = f"{backoff.quick} times in a row"
            self._announce(f"gateway {gateway.name} died {times} and is tried every {pause:g} s: {gateway.why}")
        return False


def _state(gateway: _Gateway, now: float) -> str:
    if gateway.ended:
        return "ended"
    if gateway.child is None:
        return "died" if gateway.backoff.deaths else "starting"
    if not gateway.listening:
        return "starting"
    return "silent" if now - gateway.beat > SILENT_S else "listening"


def _reason(gateway: _Gateway, state: str, now: float) -> str:
    if state == "silent":
        return f"it has answered nothing for {now - gateway.beat:.0f} s"
    return "" if state == "listening" else gateway.why
