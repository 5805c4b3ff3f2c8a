"""A client of GR00T's protocol, built from its description: a plain REQ socket, msgpack, and `numpy.save`.

NVIDIA puts no client of GR00T on PyPI, so none of theirs can be tested against. This one shares no code with the
gateway, and unlike theirs it has deadlines.
"""

import io
import json
from typing import Any, Self

import msgpack
import numpy as np
import zmq
from numpy.typing import NDArray


def encode(item: Any) -> Any:
    if isinstance(item, np.ndarray):
        file = io.BytesIO()
        np.save(file, item, allow_pickle=False)
        return {"__ndarray_class__": True, "as_npy": file.getvalue()}
    return item


def decode(item: dict[str, Any]) -> Any:
    if "__ndarray_class__" in item:
        return np.load(io.BytesIO(item["as_npy"]), allow_pickle=False)
    if "__ModalityConfig_class__" in item:
        fields = item["as_json"]
        return json.loads(fields) if isinstance(fields, str) else fields
    return item


class ServerError(RuntimeError):
    """The server answered with an error."""


class GrootClient:
    """Asks one server. A socket whose answer did not come in time is thrown away."""

    def __init__(self, address: str, token: str = "", timeout_s: float = 30.0) -> None:
        self.address, self.token, self.timeout_s = address, token, timeout_s
        self.context = zmq.Context()
        self.socket = self.connect()

    def connect(self) -> zmq.Socket[bytes]:
        socket = self.context.socket(zmq.REQ)
        socket.linger = 0
        socket.connect(self.address)
        return socket

    def raw(self, message: bytes) -> Any:
        self.socket.send(message)
        if not self.socket.poll(round(self.timeout_s * 1000)):
            self.socket.close()
            self.socket = self.connect()
            raise TimeoutError(f"no answer within {self.timeout_s} s")
        answer = msgpack.unpackb(self.socket.recv(), object_hook=decode)
        if isinstance(answer, dict) and "error" in answer:
            raise ServerError(answer["error"])
        return answer

    def call(self, endpoint: str | None, **data: Any) -> Any:
        request = {"endpoint": endpoint} if endpoint else {}
        request |= {"api_token": self.token} if self.token else {}
        return self.raw(msgpack.packb({**request, **data}, default=encode))

    def ping(self) -> Any:
        return self.call("ping")

    def old(self, observation: dict[str, Any]) -> dict[str, NDArray[Any]]:
        """As N1.5 asks: the observation itself, the actions themselves."""
        answer: dict[str, NDArray[Any]] = self.call("get_action", data=observation)
        return answer

    def new(self, observation: dict[str, Any]) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
        """As N1.6 asks: actions and what is said about them."""
        action, info = self.call("get_action", data={"observation": observation, "options": None})
        return action, info

    def close(self) -> None:
        self.context.destroy(linger=0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
