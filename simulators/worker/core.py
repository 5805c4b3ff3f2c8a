"""A worker as a state machine: messages in, answers out, no sockets; testable with a fake clock.

It speaks with one pool at a time (`simulators.remote.worker_pool`), the process that bound the address. Each client of
the pool is a session with environments of its own.
"""

import logging
import os
import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

from embodied.errors import Busy, EmbodiedError, InfrastructureError, MessageError
from embodied.wire.codecs import take_array
from embodied.wire.message import LIMITS, Buffer, Limits, Message, decode, encode
from simulators.worker.rows import EnvRows, as_ints
from simulators.worker.suite import Suite

log = logging.getLogger(__name__)

MAX_SESSIONS = 16
MAX_ENVS = 4096
_TEXT = 2000
_WORDS = 8  # most faults in the answer to one step
_EAGER = 0.2  # factor of the heartbeat's period of an idle worker: a new pool knows it by its heartbeats only


@dataclass
class Session:
    """A client's environments, and the answer to its last request, which is given again if the request comes again."""

    rows: EnvRows
    last_id: int = 0
    answer: list[Buffer] = field(default_factory=list)


class WorkerCore:
    """Answers one pool.

    Args:
        suite: Maker of environments.
        env, options, pixels: Arguments that the suite was loaded with; told to the pool.
        heartbeat_s: Silence after which the pool is sent a heartbeat; shorter while there is no session, and up to ten
            times as long while the pool is silent, since a busy pool does not read heartbeats.
        expire_s: Seconds without a pool after which its sessions are dropped.
        limits: Sizes accepted from the wire.
        clock: Seconds, monotonic.

    Attributes:
        alone_s: Seconds since a pool was last connected, or since the start.
    """

    def __init__(
        self,
        suite: Suite,
        env: str,
        options: dict[str, Any],
        pixels: int = 0,
        *,
        heartbeat_s: float = 1.0,
        expire_s: float = 10.0,
        limits: Limits = LIMITS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._suite, self._limits, self._clock = suite, limits, clock
        self._heartbeat_s, self._expire_s = heartbeat_s, expire_s
        self._greeting = {
            "spec": suite.spec.to_dict(),
            "env": env,
            "options": options,
            "pixels": pixels,
            "pid": os.getpid(),
            "host": platform.node()[:200],
        }
        self._pool = ""
        self._sessions: dict[str, Session] = {}
        self._replies: list[list[Buffer]] = []
        self._seen = self._heard = clock()
        self._said = -float("inf")
        self._connected = False

    @property
    def envs(self) -> int:
        """Environments of all sessions."""
        return sum(len(session.rows) for session in self._sessions.values())

    @property
    def alone_s(self) -> float:
        return 0.0 if self._connected else self._clock() - self._seen

    def handle(self, frames: Sequence[Buffer]) -> None:
        """Handle one message. A mistake in it is answered with an `error`, never raised."""
        id = 0
        self._heard = self._clock()
        try:
            message = decode(frames, self._limits)
            id = message.id
            self._dispatch(message)
        except EmbodiedError as error:
            self._refuse(id, error)
        except Exception as error:
            log.exception("a message could not be handled")
            what = f"{type(error).__name__}: {error}"
            self._refuse(id, InfrastructureError(what, "sim-worker", "see the worker's log"))

    def tick(self, connected: bool) -> list[list[Buffer]]:
        """Messages to send now; `connected` is whether a pool is there to receive them."""
        now = self._clock()
        if connected:
            least = self._heartbeat_s * (1.0 if self._sessions else _EAGER)
            pause = min(max((now - self._heard) / 30, least), 10 * self._heartbeat_s)
            if not self._connected or now - self._said >= pause:
                self._reply(Message("heartbeat"))
            self._seen = now
        elif self._sessions and now - self._seen >= self._expire_s:
            log.warning("the pool is gone: %d environments are dropped", self.envs)
            self.drop_all()
        self._connected = connected
        replies, self._replies = self._replies, []
        if replies:
            self._said = now
        return replies

    def drop_all(self) -> None:
        """Close every environment."""
        for name in list(self._sessions):
            self._drop(name)

    def farewell(self) -> list[Buffer]:
        """Goodbye, as frames."""
        return encode(Message("bye"), self._limits)

    def _dispatch(self, message: Message) -> None:
        match message.kind:
            case "error":
                log.warning("the pool refuses this worker: %s", str(message.body.get("what"))[:_TEXT])
            case "hello":
                self._greet(message)
            case "reset" | "step":
                self._answer(message)
            case "heartbeat":
                pass
            case "bye":
                if message.session:
                    self._drop(message.session)
                else:
                    self.drop_all()
            case _:
                raise MessageError(f"a worker takes no {message.kind}", "sim-worker", "ask a policy server")

    def _greet(self, message: Message) -> None:
        pool = message.body.get("pool")
        if type(pool) is not str or not pool:
            raise MessageError("a hello without a pool", "sim-worker", "run the same version on both sides")
        if pool != self._pool:
            self.drop_all()  # the old pool's process has ended, since another listens at its address
        self._pool = pool
        self._reply(Message("hello", message.id, body=self._greeting))

    def _answer(self, message: Message) -> None:
        session = self._sessions.get(message.session)
        if session is not None and message.id <= session.last_id:
            if message.id == session.last_id:
                self._replies.append(session.answer)  # the request or its answer was lost with a connection
            return
        if message.kind == "reset":
            session = self._opened(message, session)
            answer = self._reset(session.rows, message)
        elif session is not None:
            answer = self._step(session.rows, message)
        else:
            what, fix = "the worker holds no such session, or no longer", "start its episodes anew"
            raise InfrastructureError(what, f"session {message.session[:40]}", fix)
        session.last_id, session.answer = message.id, encode(answer, self._limits)
        self._replies.append(session.answer)

    def _opened(self, message: Message, session: Session | None) -> Session:
        size, success_ends = message.body.get("size"), message.body.get("success_ends")
        if type(size) is not int or not 1 <= size <= MAX_ENVS or type(success_ends) is not bool:
            fix = f"ask for 1 to {MAX_ENVS}, or for more workers"
            raise MessageError(f"a session of {str(size)[:20]} environments", "sim-worker", fix)
        if session is not None and len(session.rows) == size:
            session.rows.success_ends = success_ends
            return session
        self._drop(message.session)
        if len(self._sessions) >= MAX_SESSIONS or self.envs + size > MAX_ENVS:
            what = f"{len(self._sessions)} sessions with {self.envs} environments are open here"
            raise Busy(what, "sim-worker", f"{MAX_SESSIONS} and {MAX_ENVS} is the most: close some, or add workers")
        session = self._sessions[message.session] = Session(EnvRows(self._suite, size, success_ends))
        return session

    def _reset(self, rows: EnvRows, message: Message) -> Message:
        ids = self._ids(rows, message)
        seeds = self._seeds(message, len(ids))
        faults: list[str] = []
        streams = rows.reset(ids, seeds, faults)
        if "actions" in message.arrays:
            lengths = as_ints(take_array(message.arrays, "lengths", "int32", (len(ids),)))
            size = self._suite.spec.control_size
            actions = take_array(message.arrays, "actions", "float32", (len(ids), None, size))
            streams = rows.replay(ids, lengths, actions)
        arrays = _named(streams, "stream") | {"seeds": rows.seeds(ids)}
        return Message("reset", message.id, message.session, body={"faults": faults[:_WORDS]}, arrays=arrays)

    def _step(self, rows: EnvRows, message: Message) -> Message:
        ids = self._ids(rows, message)
        size = self._suite.spec.control_size
        actions = take_array(message.arrays, "actions", "float32", (len(ids), size))
        seeds = self._seeds(message, len(ids)) if "seeds" in message.arrays else None
        unrepeated = message.arrays.get("unrepeated", np.zeros(0, np.int32))
        begin = time.perf_counter()
        result = rows.step(ids, actions, seeds, as_ints(unrepeated.ravel()))
        body = {"physics_s": time.perf_counter() - begin, "faults": result.faults[:_WORDS]}
        arrays: dict[str, np.ndarray] = {"rewards": result.rewards, "outcomes": result.outcomes}
        arrays["seeds"] = rows.seeds(ids)
        arrays |= _named(result.streams, "stream") | _named(result.final, "final")
        return Message("step", message.id, message.session, body=body, arrays=arrays)

    def _ids(self, rows: EnvRows, message: Message) -> list[int]:
        ids = as_ints(take_array(message.arrays, "ids", "int32", (None,)))
        if any(b <= a for a, b in pairwise(ids)) or (ids and not 0 <= ids[0] <= ids[-1] < len(rows)):
            raise MessageError("ids are not ascending numbers of environments", message.kind, f"{len(rows)} are here")
        return ids

    def _seeds(self, message: Message, count: int) -> list[int]:
        seeds = as_ints(take_array(message.arrays, "seeds", "int64", (count,)))
        if any(seed < 0 for seed in seeds):
            raise MessageError("a negative seed", message.kind, "give 0 or more")
        return seeds

    def _drop(self, name: str) -> None:
        session = self._sessions.pop(name, None)
        if session is not None:
            session.rows.close()

    def _reply(self, message: Message) -> None:
        self._replies.append(encode(message, self._limits))

    def _refuse(self, id: int, error: EmbodiedError) -> None:
        log.warning("refused: %s", error.line())
        body = {name: text[:_TEXT].encode("utf-8", "replace").decode() for name, text in error.to_dict().items()}
        self._reply(Message("error", id, body=body))


def _named(streams: dict[str, Any], prefix: str) -> dict[str, np.ndarray]:
    return {f"{prefix}/{name}": values for name, values in streams.items()}
