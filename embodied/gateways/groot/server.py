"""Gateway for GR00T's clients: a ROUTER socket, and workers with sessions of the policy server, in one process.

It needs no torch and has no policy: the server batches and versions. It serves both generations of clients and
recognises them by their requests. No client delays another: messages are read here and given to workers, each with its
own session. A `TcpProxy` in front bounds the connections and the bytes of all unanswered requests.
"""

import hmac
import logging
import tempfile
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import zmq

from embodied.errors import (
    Busy,
    DeadlineExceeded,
    EmbodiedError,
    InfrastructureError,
    MessageError,
    Unauthorized,
    UserError,
    nearest,
)
from embodied.gateways.gateway import Gateway, failure_line, gateway_of, line_of, serve
from embodied.gateways.groot import messages
from embodied.gateways.groot.key_mapping import GrootKeys
from embodied.gateways.groot.settings import GrootSettings
from embodied.gateways.groot.tcp_proxy import TcpProxy
from embodied.gateways.groot.worker import ActionRequest, GrootWorker
from embodied.gateways.launcher import STOP_REQUESTED
from embodied.gateways.listener import listen
from embodied.spec import PolicySpec
from embodied.supervisor import heartbeat
from embodied.wire import addresses

log = logging.getLogger(__name__)

_SLACK = 1 << 20  # bytes of a message beside what the spec says
_BUDGET = 4  # unanswered requests of the longest size
_FRAMES = 8  # of one message, its envelope included
_ENVELOPE = 256  # bytes of one frame of it
_AT_ONCE = 16  # messages taken in before answers are sent
_LOOK_S = 0.1  # how often a request to stop is looked for
_CLIENTS = 1024  # whose state is kept
_PER_CLIENT = 2  # requests of one client under way: one, and one more after it gave the first up
_WAITING_BYTES = 1 << 28
_QUEUE = 8
_DRAIN_S = 2.0
_BEAT_S = 1.0
_CLOSE_S = 0.5


@dataclass
class _Client:
    """State of one connection: its number, once it has asked for actions, and its episode, step, and count of requests
    under way."""

    generation: messages.Generation
    number: int = -1
    episode: int = 0
    step: int = 0
    pending: int = 0


class GrootGateway(Gateway[GrootSettings, GrootKeys]):
    """Gateway for GR00T's clients; see `Gateway`."""

    protocol, settings_class = "GR00T", GrootSettings

    def __init__(self, settings: GrootSettings, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(settings)
        self._clock = clock
        self._clients: OrderedDict[bytes, _Client] = OrderedDict()
        self._seen = 0
        self._waiting: deque[ActionRequest] = deque()
        self._idle: list[GrootWorker] = []
        self._workers: list[GrootWorker] = []
        self._killed = False

    def mapping(self, spec: PolicySpec) -> GrootKeys:
        return GrootKeys.for_policy(self._settings.embodiment, spec)

    def open(self) -> str:
        self.spec = self._ask_spec()
        self.keys = self.mapping(self.spec)
        settings = self._settings
        self._most = min(self.keys.row_bytes * settings.max_rows + _SLACK, settings.message_mib << 20)
        listener = listen(self._host, self._port, settings.address)
        self._folder = tempfile.TemporaryDirectory(prefix="embodied-groot-")
        backend = f"{self._folder.name}/front"
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        try:
            self._front = self._context.socket(zmq.ROUTER)
            self._front.sndhwm = self._front.rcvhwm = _QUEUE
            self._front.maxmsgsize = self._most
            addresses.bind(self._front, f"ipc://{backend}")
            self._done = self._context.socket(zmq.PULL)
            self._done.bind("inproc://done")
        except BaseException:
            listener.close()
            self._context.destroy(linger=0)
            self._folder.cleanup()
            raise
        self._proxy = TcpProxy(
            listener,
            backend,
            most=self._most,
            budget=_BUDGET * self._most,
            connections=settings.connections + 1,  # one is the gateway's own
            patience_s=2 * settings.timeout_s,
            refusal=lambda size: messages.pack({"error": line_of(self._too_large(size))}),
        )
        self._proxy.start()
        host, port = listener.getsockname()[:2]
        self._pulse = self._context.socket(zmq.DEALER)
        self._pulse.ipv6, self._pulse.linger, self._pulse.sndhwm = ":" in host, 0, 1
        own = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
        self._pulse.connect(f"tcp://[{own}]:{port}" if ":" in own else f"tcp://{own}:{port}")
        return f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}"

    def _too_large(self, size: int) -> MessageError:
        fix = f"at most {self._most}, {self._settings.max_rows} rows: send smaller images, or set message_mib"
        return MessageError(f"a message of {size} bytes", "GR00T gateway", fix)

    def run(self, stop: threading.Event) -> int:
        """Answer until `stop` is set, an authorized `kill`, or a change of the server's policy; returns the status.

        In the last case the launcher restarts the gateway.
        """
        poller = zmq.Poller()
        poller.register(self._front, zmq.POLLIN)
        poller.register(self._done, zmq.POLLIN)
        beat = -float("inf")
        try:
            while not (stop.is_set() or self._killed or self._outdated()):
                poller.poll(round(_LOOK_S * 1000))
                self._receive_all()
                self._dispatch()
                if (now := time.monotonic()) - beat >= _BEAT_S:
                    beat = now
                    self._beat()
            end = time.monotonic() + _DRAIN_S
            while len(self._idle) < len(self._workers) and time.monotonic() < end:
                self._done.poll(round(_LOOK_S * 1000), zmq.POLLIN)
                self._dispatch()
        finally:
            for worker in self._workers:
                worker.stop()
            self._front.close(linger=round(_LOOK_S * 1000))
            self._pulse.close()
            self._done.close(linger=0)
            ended = [worker.ended(_LOOK_S) for worker in self._workers]
            if all(ended):  # else a worker waits for the server, up to its deadline
                self._context.term()
            self._proxy.close(_CLOSE_S)
            self._folder.cleanup()
        return STOP_REQUESTED if self._killed else InfrastructureError.exit_status if self._outdated() else 0

    def _beat(self) -> None:
        """Send the launcher a heartbeat if this gateway has answered its own last ping; ping again."""
        with suppress(zmq.Again):
            while self._pulse.recv_multipart(zmq.NOBLOCK):
                heartbeat()
        with suppress(zmq.Again):
            ping = messages.pack(messages.request("ping", token=self._settings.api_key or ""))
            self._pulse.send_multipart([b"", ping], zmq.NOBLOCK)

    def _outdated(self) -> bool:
        return any(worker.outdated for worker in self._workers)

    def _receive_all(self) -> None:
        for _ in range(_AT_ONCE):
            if not self._front.poll(0, zmq.POLLIN):
                return
            parts = self._front.recv_multipart(zmq.NOBLOCK, copy=False)
            *envelope, payload = parts
            if not 1 <= len(envelope) < _FRAMES or any(len(frame) > _ENVELOPE for frame in envelope):
                continue  # no REQ socket sends this, so no client waits for an answer
            at = [frame.bytes for frame in envelope]
            try:
                answer = self._answer(at, payload.buffer)
            except EmbodiedError as error:
                answer = {"error": line_of(error)}
            except Exception as error:
                log.exception("a GR00T message could not be handled")
                answer = {"error": failure_line(error, self.protocol)}
            if answer is not _LATER:
                self._reply(at, messages.pack(answer, self._client(at[0]).generation))
            if self._killed:
                return

    def _answer(self, envelope: list[bytes], payload: memoryview) -> Any:
        """Answer to a message, or `_LATER` where a worker gives it."""
        asked = messages.read_request(payload)
        token, client = self._settings.api_key, self._client(envelope[0])
        if token is not None and not hmac.compare_digest(asked.token.encode(), token.encode()):
            return {"error": messages.UNAUTHORIZED}
        match asked.endpoint:
            case "ping":
                return messages.PONG
            case "get_action":
                return self._enqueue(envelope, client, asked, payload.nbytes)
            case "reset":
                client.episode, client.step = client.episode + 1, 0
                return {}
            case "get_modality_config":
                return self.keys.modality(self.spec.chunk, client.generation)
            case "kill":
                if token is None:
                    raise Unauthorized(
                        "kill is refused", "GR00T gateway", "start it with an api_key, and send that as api_token"
                    )
                log.warning("stopped by a client's kill")
                self._killed = True
                return None
        raise UserError(
            f"unknown endpoint {asked.endpoint[:40]!r}", "GR00T gateway", nearest(asked.endpoint, messages.ENDPOINTS)
        )

    def _enqueue(self, envelope: list[bytes], client: _Client, asked: messages.Request, size: int) -> Any:
        client.generation = messages.generation_of(asked.data)
        if client.pending >= _PER_CLIENT:
            raise Busy(
                f"busy: {client.pending} of your requests are under way", "GR00T gateway", "wait for the answers"
            )
        size_waiting = size + sum(request.size for request in self._waiting)
        if len(self._waiting) >= self._settings.waiting or (self._waiting and size_waiting > _WAITING_BYTES):
            raise Busy(f"busy: {len(self._waiting)} requests wait already", "GR00T gateway", "ask again later")
        if client.number < 0:
            client.number, self._seen = self._seen, self._seen + 1
        base = client.number * self._settings.max_rows % (1 << 30)
        request = ActionRequest(
            envelope, asked.data, client.generation, base, client.episode, client.step, self._clock(), size
        )
        client.step = (client.step + 1) & 0x7FFFFFFF
        client.pending += 1
        self._waiting.append(request)
        self._dispatch()  # at once, so that only requests for which no worker is free wait
        return _LATER

    def _dispatch(self) -> None:
        """Send the workers' answers and give them waiting requests.

        The worker that answered last comes first, so that a lone client keeps one session, and the server does not
        wait for others.
        """
        while self._done.poll(0, zmq.POLLIN):
            number, *envelope, answer = self._done.recv_multipart(zmq.NOBLOCK, copy=False)
            self._idle.append(self._workers[int.from_bytes(number.bytes, "little")])
            self._finish([frame.bytes for frame in envelope], answer.buffer)
        while self._waiting:
            waited = self._clock() - self._waiting[0].arrived
            if waited >= self._settings.timeout_s:
                late = DeadlineExceeded(
                    f"the request waited {waited:.1f} s", "GR00T gateway", "ask later, or look at the policy server"
                )
                self._finish(self._waiting.popleft().envelope, messages.pack({"error": line_of(late)}))
            elif self._idle or len(self._workers) < self._settings.workers:
                worker = self._idle.pop() if self._idle else self._start_worker()
                worker.give(self._waiting.popleft())
            else:
                return

    def _start_worker(self) -> GrootWorker:
        worker = GrootWorker(
            len(self._workers), self._context, self.connect, self.spec, self.keys, self._settings, self._clock
        )
        self._workers.append(worker)
        return worker

    def _finish(self, envelope: list[bytes], answer: bytes | memoryview) -> None:
        client = self._clients.get(envelope[0])
        if client is not None:
            client.pending = max(client.pending - 1, 0)
        self._reply(envelope, answer)

    def _reply(self, envelope: Sequence[bytes], answer: bytes | memoryview) -> None:
        # A ROUTER drops messages to a client that has gone or does not read, so this never waits.
        self._front.send_multipart([*envelope, answer], zmq.NOBLOCK, copy=False)

    def _client(self, peer: bytes) -> _Client:
        client = self._clients.get(peer)
        if client is None:
            client = self._clients[peer] = _Client(self._settings.generation)
            if len(self._clients) > _CLIENTS:
                self._clients.popitem(last=False)
        self._clients.move_to_end(peer)
        return client


_LATER = object()


def run(
    values: Mapping[str, Any], announce: Callable[[str], object] = print, stop: threading.Event | None = None
) -> int:
    """Answer GR00T's clients, with plain values of `GrootSettings`; see `serve`."""
    return serve(gateway_of(GrootGateway, values), announce, stop)
