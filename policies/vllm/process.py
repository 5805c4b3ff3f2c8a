"""A worker process: started, asked one thing at a time, ended; its death is an error that tells the cause."""

import os
import shutil
import tempfile
import time
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import zmq
from numpy.typing import NDArray

from embodied.errors import DataError, DeadlineExceeded, InfrastructureError, MessageError
from embodied.supervisor import Child
from embodied.wire import frames
from embodied.wire.codecs import error_from_body
from embodied.wire.limits import Limits
from embodied.wire.message import Message, decode, encode

ROOT = Path(__file__).parents[2]
AGAIN = "ask again: it is started anew"

_LOOK_MS = 100
_GRACE_S = 2.0


class WorkerProcess:
    """One worker, started at construction. Whatever `ask` raises, the worker is then good for `close` alone, unless
    the error is the worker's own answer. Not thread-safe.

    Args:
        name: Of the worker, in the words of an error.
        command: Resets it; `--connect` with an address follows.
        limits: What is sent.
        answers: What is taken.
        start_s: Longest wait until it says `status`, seconds.

    Raises:
        InfrastructureError: It cannot be started, or died at once.
        DeadlineExceeded: It said nothing in time.
    """

    def __init__(self, name: str, command: Sequence[str], limits: Limits, answers: Limits, start_s: float) -> None:
        self._name, self._limits, self._answers, self._id = name, limits, answers, 0
        folder = Path(tempfile.mkdtemp(prefix="embodied-worker-"))
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        sock = self._socket = context.socket(zmq.PAIR)
        sock.linger, sock.maxmsgsize = 0, answers.frame_bytes
        address = f"ipc://{folder / 'socket'}"
        paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        try:
            sock.bind(address)
            environment = {"PYTHONPATH": os.pathsep.join(paths)}
            self._child = Child(name, [*command, "--connect", address], environment=environment)
        except (InfrastructureError, zmq.ZMQError) as error:
            _end(None, sock, context, folder)
            if isinstance(error, InfrastructureError):
                raise
            raise InfrastructureError(f"the {name} cannot be started: {error}", command[0]) from None
        self._end = weakref.finalize(self, _end, self._child, sock, context, folder)
        try:
            greeting = self._receive(time.monotonic() + start_s, start_s, "starting")
            if greeting.kind != "status":
                raise DataError(f"its first word is {greeting.kind}, not status", self.where, "update its environment")
        except BaseException:
            self.close()
            raise
        # They are connected: no file is left behind if this process is killed from now on.
        shutil.rmtree(folder, ignore_errors=True)

    @property
    def pid(self) -> int:
        return self._child.pid

    @property
    def where(self) -> str:
        return f"{self._name}, process {self._child.pid}"

    @property
    def alive(self) -> bool:
        return self._end.alive and self._child.alive

    def ask(self, kind: str, body: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]], timeout_s: float) -> Message:
        """Send, and wait for the answer.

        Raises:
            InfrastructureError: It died; says how, and its last words.
            DeadlineExceeded: No answer in time.
            MessageError, DataError: The answer is malformed, or to something else.
            EmbodiedError: What it answered with.
        """
        self._id += 1
        limit, doing = time.monotonic() + timeout_s, f"answering {kind}"
        parts = encode(Message(kind, self._id, body=dict(body), arrays=dict(arrays)), self._limits)
        self._wait(zmq.POLLOUT, limit, timeout_s, doing)
        frames.send(self._socket, parts)
        answer = self._receive(limit, timeout_s, doing)
        if answer.id != self._id or answer.kind not in (kind, "error"):
            what = f"{kind} {self._id} was answered with {answer.kind} {answer.id}"
            raise DataError(what, self.where, AGAIN)
        if answer.kind == "error":
            raise error_from_body(answer.body)
        return answer

    def close(self) -> None:
        """End it; a second time it does nothing."""
        self._end()

    def _receive(self, limit: float, timeout_s: float, doing: str) -> Message:
        self._wait(zmq.POLLIN, limit, timeout_s, doing)
        try:
            return decode([frame.buffer for frame in frames.receive(self._socket)], self._answers)
        except MessageError as error:
            raise MessageError(f"an answer cannot be read: {error.what}", self.where, AGAIN) from None

    def _wait(self, event: int, limit: float, timeout_s: float, doing: str) -> None:
        while True:
            ended = not self._child.alive  # looked at first: what it said before its end is still taken
            if self._socket.poll(0 if ended else _LOOK_MS, event):
                return
            if ended:
                raise self._died(doing)
            if time.monotonic() >= limit:
                what = f"the {self._name} has not ended {doing} in {timeout_s:g} s"
                raise DeadlineExceeded(what, f"process {self.pid}", "give it longer, or look what keeps it")

    def _died(self, doing: str) -> InfrastructureError:
        words = self._child.last_line() if (self._child.status or 0) > 0 else ""
        what = f"the {self._name} died {self._child.died()} while {doing}{f': {words}' if words else ''}"
        return InfrastructureError(what, f"process {self.pid}", AGAIN)


def _end(
    child: Child | None,
    sock: "zmq.Socket[bytes]",
    context: "zmq.Context[zmq.Socket[bytes]]",
    folder: Path,
) -> None:
    if child is not None:
        child.stop(_GRACE_S)
    sock.close(0)
    context.term()
    shutil.rmtree(folder, ignore_errors=True)
