"""Workers at one address: the only socket of this process there, shared by all its environments."""

import logging
import math
import time
import uuid
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import zmq

from embodied.errors import DeadlineExceeded, EmbodiedError, InfrastructureError, MessageError, SpecMismatch
from embodied.spec import EnvSpec
from embodied.wire import addresses
from embodied.wire.authenticator import AllowList, Authenticator, authenticator
from embodied.wire.codecs import error_from_body
from embodied.wire.message import LIMITS, Buffer, Message, decode, encode
from simulators.remote.spawn import Spawner
from simulators.worker.process import ALIVE_MS, DEAD_MS

log = logging.getLogger(__name__)

_LOOK_S = 0.1
_PROBE_S = 0.25  # period of connection checks while an answer is awaited
_GRACE_S = 1.0  # seconds without a connection after which a worker counts as lost
_QUEUE = 1000
_MAX_WORKERS = 1024
_MAX_AGENTS = 64


@dataclass
class Worker:
    """One worker that has called.

    Attributes:
        peer: Its socket's name.
        label: Its name in errors, after its hello.
        spec: Spec of its environments; None before its hello, or where it does not fit.
        refused: Error for which it is not used.
        pid: Process id on its machine.
        heard: Time of its last message, monotonic seconds.
        claims: Sessions with environments there.
        lost: Whether it failed to answer, and has not been heard since.
    """

    peer: bytes
    label: str = "a worker"
    spec: EnvSpec | None = None
    refused: SpecMismatch | None = None
    pid: int = 0
    heard: float = 0.0
    claims: set[str] = field(default_factory=set)
    lost: bool = False


@dataclass
class Wanted:
    """Environment that all workers of a pool must run: `env` with its options and pixels."""

    env: str
    options: dict[str, Any]
    pixels: int


@dataclass
class _Ask:
    message: Message
    frames: list[Buffer]
    gone_since: float | None = None


class WorkerPool:
    """Workers at one address. Not thread-safe.

    Args:
        address: Address to listen at.
        wanted: Environment that workers must run.
        credentials: Folder of CURVE credentials, see `embodied.wire.addresses`; needed beyond this machine.
        spawner: Starts workers, or None where others do.

    Raises:
        UserError: The address is malformed, in use, or open to others without credentials.
    """

    def __init__(
        self, address: str, wanted: Wanted, credentials: Path | None = None, spawner: Spawner | None = None
    ) -> None:
        self.name, self.wanted, self.spawner = uuid.uuid4().hex, wanted, spawner
        self.spec: EnvSpec | None = None
        self._workers: dict[bytes, Worker] = {}
        self._pids: set[int] = set()
        self._count = 0
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._authenticator: Authenticator | None = None
        try:
            if credentials is not None:
                self._authenticator = authenticator(self._context, AllowList(credentials))
            self._socket = self._context.socket(zmq.ROUTER)
            self._socket.sndhwm = self._socket.rcvhwm = _QUEUE
            self._socket.maxmsgsize = max(LIMITS.frame_bytes, LIMITS.header_bytes)
            self._socket.router_mandatory = True  # so that sending to a worker that is gone fails
            self._socket.router_handover = True  # a worker that calls again takes the place of its broken connection
            self._socket.heartbeat_ivl, self._socket.heartbeat_timeout = ALIVE_MS, DEAD_MS
            self.address = addresses.bind(self._socket, address, credentials)
        except BaseException:
            self._shut()
            raise

    def acquire(self, session: str, count: int, taken: Collection[bytes], limit: float) -> list[Worker]:
        """Wait for `count` workers, none in `taken`, the least busy ones; they are claimed for `session`.

        Raises:
            SpecMismatch: A worker came, and runs something else.
            InfrastructureError: They did not come until `limit` (monotonic), or a started one ended.
        """
        start, told = time.monotonic(), self.spawner is not None
        wait = limit - start
        while True:
            if self.spawner is not None:
                self.spawner.tend(self._pids)
            free = [w for w in self._workers.values() if w.spec and not w.lost and w.peer not in taken]
            free = [w for w in free if self._reachable(w)]
            if len(free) >= count:
                chosen = sorted(free, key=lambda worker: len(worker.claims))[:count]
                for worker in chosen:
                    worker.claims.add(session)
                return chosen
            refusals = [w.refused for w in self._workers.values() if w.refused and self._reachable(w)]
            # A worker that runs something else ends a wait at once only where no fitting worker ever came.
            if refusals and (self.spec is None or time.monotonic() >= limit):
                raise refusals[0]
            if time.monotonic() >= limit:
                raise self._too_few(count, len(free), max(wait, 0.0))
            if not told and time.monotonic() > start + 1.0:
                start_one = f"`embodied sim-worker --env ... --connect {self.address}`"
                log.warning("waiting up to %.0f s for %d workers: start %s", wait, count, start_one)
                told = True
            self._receive(_LOOK_S)

    def release(self, session: str, peer: bytes, error: EmbodiedError | None = None) -> None:
        """Give a worker back, which drops the session's environments; after an `error` it must first be heard again."""
        worker = self._workers.get(peer)
        if worker is None:
            return
        worker.claims.discard(session)
        self._send(peer, encode(Message("bye", session=session)))
        if error is not None:
            worker.lost = True
            if self.spawner is not None and isinstance(error, DeadlineExceeded):
                self.spawner.kill(worker.pid)  # it hangs, and a new one is started in its place

    def exchange(self, asks: Mapping[bytes, Message], timeout_s: float) -> dict[bytes, Message | EmbodiedError]:
        """Ask workers, each its own question, all at once.

        Returns:
            The answer of each, or an error in its place: the worker was gone, silent for `timeout_s`, sent a malformed
            message, or answered with an error.
        """
        for _ in range(2 * _QUEUE * (1 + len(self._workers))):
            if self._receive(0.0)[1] is None:  # an old heartbeat would look like one that followed the question
                break
        begun = time.monotonic()
        waiting: dict[bytes, _Ask] = {}
        for peer, message in asks.items():
            self._count += 1
            message.id, message.deadline_ms = self._count, max(int(timeout_s * 1000), 1)
            waiting[peer] = _Ask(message, encode(message))
            self._send(peer, waiting[peer].frames)
        answers: dict[bytes, Message | EmbodiedError] = {}
        probed = begun
        while waiting:
            peer, said = self._receive(min(_LOOK_S, timeout_s))
            ask = waiting.get(peer)
            if ask is not None and said is not None:
                answer = self._judge(peer, ask, said)
                if answer is not None:
                    answers[peer] = answer
                    del waiting[peer]
                continue
            now = time.monotonic()
            if now - probed >= _PROBE_S:
                probed = now
                answers |= self._gone(waiting, now)
            if now - begun >= timeout_s:
                answers |= {peer: self._late(peer, ask, timeout_s) for peer, ask in waiting.items()}
                break
            for peer in answers:
                waiting.pop(peer, None)
        return answers

    def close(self) -> None:
        """Tell the workers goodbye, stop listening, and end the workers that were started here."""
        if not self._context.closed:
            for peer in self._workers:
                self._send(peer, encode(Message("bye")))
        self._shut()
        if self.spawner is not None:
            self.spawner.close()

    def _shut(self) -> None:
        if self._authenticator is not None:
            self._authenticator.stop()
        if not self._context.closed:
            if getattr(self, "address", "").startswith("ipc://"):
                Path(self.address.removeprefix("ipc://")).unlink(missing_ok=True)  # before a successor makes its own
            self._context.destroy()

    def _judge(self, peer: bytes, ask: _Ask, said: Message | MessageError) -> Message | EmbodiedError | None:
        """Match a message to an open question: its answer, an error in its place, or None."""
        if isinstance(said, MessageError):
            return said
        if said.kind == "bye":
            return InfrastructureError(f"it left during {ask.message.kind}", self._label(peer), "start another worker")
        if said.kind == "heartbeat":
            self._send(peer, ask.frames)  # it idles, so question or answer were lost; a second one is answered once
        if said.id != ask.message.id or said.kind == "heartbeat":
            return None
        if said.kind == "error":
            return error_from_body(said.body)
        if said.kind != ask.message.kind:
            what = f"answered {ask.message.kind} with {said.kind}"
            return MessageError(what, self._label(peer), "run the same version on both sides")
        return said

    def _gone(self, waiting: Mapping[bytes, _Ask], now: float) -> dict[bytes, Message | EmbodiedError]:
        """Errors for the workers that have been gone too long."""
        found: dict[bytes, Message | EmbodiedError] = {}
        for peer, ask in waiting.items():
            if self._send(peer, encode(Message("heartbeat"))):
                ask.gone_since = None
                continue
            ask.gone_since = ask.gone_since or now
            if now - ask.gone_since >= _GRACE_S:
                what = f"it is gone: its connection broke during {ask.message.kind}"
                found[peer] = InfrastructureError(what, self._label(peer), "look at its log")
        return found

    def _late(self, peer: bytes, ask: _Ask, timeout_s: float) -> DeadlineExceeded:
        worker = self._workers.get(peer)
        heard = f"last heard {time.monotonic() - worker.heard:.1f} s ago" if worker else "never heard"
        what = f"no answer to {ask.message.kind} within {timeout_s:g} s, {heard}"
        return DeadlineExceeded(what, self._label(peer), "look at its log, or allow more time with env.timeout_s")

    def _too_few(self, count: int, free: int, wait: float) -> InfrastructureError:
        lost = [w for w in self._workers.values() if w.lost]
        told = f"; {lost[0].label} is lost" if lost else ""
        python = "" if self.spawner is None else f" with {self.spawner.python}"
        what = f"{count - free} of {count} workers did not come within {wait:.0f} s{told}"
        command = f"embodied sim-worker --env {self.wanted.env} --connect {self.address}"
        return InfrastructureError(what, self.address, f"start{python}: {command}")

    def _label(self, peer: bytes) -> str:
        worker = self._workers.get(peer)
        return f"{worker.label if worker else 'a worker'} at {self.address}"

    def _reachable(self, worker: Worker) -> bool:
        return self._send(worker.peer, encode(Message("heartbeat")))

    def _send(self, peer: bytes, frames: Iterable[Buffer]) -> bool:
        """Whether there is a connection to send on; a full queue is one too."""
        try:
            self._socket.send_multipart([peer, *frames], zmq.NOBLOCK, copy=False)
        except zmq.Again:
            return True
        except zmq.ZMQError as error:
            if error.errno != zmq.EHOSTUNREACH:
                raise
            return False
        return True

    def _receive(self, wait_s: float) -> tuple[bytes, Message | MessageError | None]:
        """Receive one message, or None after `wait_s`; new senders are asked for their hello."""
        if not self._socket.poll(math.ceil(wait_s * 1000), zmq.POLLIN):
            return b"", None
        peer, *frames = self._socket.recv_multipart(zmq.NOBLOCK)
        try:
            message = decode(frames)
        except MessageError as error:
            log.warning("%s sent what is no message: %s", self._label(peer), error.line())
            return peer, MessageError(error.what, self._label(peer), error.fix)
        worker = self._workers.get(peer)
        if message.kind == "bye":
            self._workers.pop(peer, None)
        elif worker is None:
            self._meet(peer)
        else:
            worker.heard, worker.lost = time.monotonic(), False
            if message.kind == "hello":
                self._greet(worker, message)
        return peer, message

    def _meet(self, peer: bytes) -> None:
        """Ask a new sender for its hello."""
        for known in [w for w in self._workers.values() if not self._reachable(w)]:
            del self._workers[known.peer]
        if len(self._workers) < _MAX_WORKERS and self._send(peer, encode(Message("hello", body={"pool": self.name}))):
            self._workers[peer] = Worker(peer, heard=time.monotonic())

    def _greet(self, worker: Worker, message: Message) -> None:
        body = message.body
        try:
            spec = _sound(EnvSpec.from_dict(body.get("spec") or {}))
        except EmbodiedError as error:
            log.warning("a worker whose hello is malformed: %s", error.line())
            return
        pid = body.get("pid")
        worker.pid = pid if type(pid) is int else 0
        self._pids.add(worker.pid)
        worker.label = f"worker {worker.pid} on {str(body.get('host'))[:100]}"
        given = (str(body.get("env")), body.get("options"), body.get("pixels"))
        asked = (self.wanted.env, self.wanted.options, self.wanted.pixels)
        for name, have, want in zip(("env", "options", "pixels"), given, asked, strict=True):
            if have != want:
                self._refuse(worker, f"it runs {name} {repr(have)[:200]}, the run wants {want!r}")
                return
        if self.spec is not None and spec != self.spec:
            self._refuse(worker, f"its {worker_difference(spec, self.spec)} differs from that of the worker before")
            return
        self.spec, worker.spec, worker.refused = spec, spec, None

    def _refuse(self, worker: Worker, what: str) -> None:
        fix = "end that worker, and start one with what the run wants and the same versions"
        worker.refused, worker.spec = SpecMismatch(what, self._label(worker.peer), fix), None
        log.warning("%s", worker.refused.line())
        self._send(worker.peer, encode(Message("error", body=dict(worker.refused.to_dict()))))


def worker_difference(spec: EnvSpec, other: EnvSpec) -> str:
    """The first field in which two specs differ."""
    return next(name for name in spec.__dataclass_fields__ if getattr(spec, name) != getattr(other, name))


def _sound(spec: EnvSpec) -> EnvSpec:
    """Raise `MessageError` unless a spec is one that environments can be made of."""
    numbers = (spec.episode_steps, spec.control_size, spec.state_size)
    whole = all(type(n) is int for n in numbers) and type(spec.task) is str
    if not whole or not 1 <= spec.episode_steps <= 1 << 24 or not _named(spec):
        raise MessageError("a worker's spec has no named agents, or no time limit", "spec", "mend its suite")
    if type(spec.control_hz) not in (int, float) or not 0 < spec.control_hz < 1e6:
        raise MessageError("a worker's control_hz is no rate", "spec", "mend its suite")
    try:
        limits = [agent.action_limits for agent in spec.agents.values()]
    except (TypeError, ValueError):
        raise MessageError("a worker's actions have limits that are no numbers", "spec", "mend its suite") from None
    if not all((limit > 0).all() for limit in limits):
        raise MessageError("a worker's actions have limits below 0", "spec", "mend its suite")
    if spec.control_size != sum(agent.action_dim for agent in spec.agents.values()):
        raise MessageError("a worker's control_size is not the number of its actions", "spec", "mend its suite")
    return spec


def _named(spec: EnvSpec) -> bool:
    """Whether a spec has agents whose names can be parts of the names of arrays."""
    return 1 <= len(spec.agents) <= _MAX_AGENTS and all(name and "/" not in name for name in spec.agents)
