"""One server of `rpc.py`: `python rpc_server.py KIND ADDRESS [ROWS]`, KIND one of echo, embodied, mlp.

Prints the address when it listens. `echo` and `embodied` answer 1.4 KB at once: a header and a frame, or an action
chunk with its log-probabilities. `mlp` computes a real policy in batches of at most ROWS.
"""

import sys
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embodied.data import ActionChunk, Observation
from embodied.runtime.slots import push_slots
from embodied.spec import AgentSpec, PolicySpec, Stream

AGENT = AgentSpec(
    (
        Stream("image", (224, 224, 3), "uint8"),
        Stream("wrist_image", (224, 224, 3), "uint8"),
        Stream("state", (9,)),
        Stream("instruction", (48,), "uint8"),
    ),
    (Stream("action", (7,)),),
)
CHUNK = 25  # of 7 actions and as many log-probabilities: 1,400 bytes


class Dummy:
    """Answers zeros."""

    spec = PolicySpec("dummy", AGENT, chunk=CHUNK, execute=CHUNK)

    def act(self, observation: Observation, noise_keys: NDArray[np.int64], mode: str) -> ActionChunk:
        count = len(observation.rows)
        actions = np.zeros((count, CHUNK, 7), np.float32)
        nothing = np.zeros(count, np.float32)
        return ActionChunk(observation.rows, actions, actions.copy(), nothing, np.zeros(count, np.int64), "")

    def tensors(self) -> dict[str, NDArray[Any]]:
        return {}

    def load(self, tensors: Mapping[str, NDArray[Any]]) -> None:
        pass


def echo(address: str) -> None:
    """A ROUTER that answers each message with a header and 1.4 KB."""
    import zmq

    sock = zmq.Context().socket(zmq.ROUTER)
    sock.bind(address)
    print(sock.getsockopt_string(zmq.LAST_ENDPOINT), flush=True)
    header, reply = bytes(100), bytes(1300)
    while True:
        peer, *_ = sock.recv_multipart(copy=False)
        sock.send_multipart([peer, header, reply], copy=False)


def embodied(address: str, policy: Any, rows: int) -> None:
    """Our server."""
    from embodied.serving.server import serve
    from embodied.serving.versioned_policy import VersionedPolicy

    def announce(line: str) -> None:
        print(line.rpartition(" at ")[2], flush=True)

    serve(push_slots(VersionedPolicy(policy)), address, announce=announce, max_rows=rows)


def mlp(address: str, rows: int) -> None:
    """Our server with two tanh layers of 1024 over the observation's state."""
    import torch

    from policies.mlp import MLPPolicy

    torch.set_num_threads(1)
    embodied(address, MLPPolicy("mlp", AGENT, hidden=(1024, 1024)), rows)


def main(kind: str, address: str, rows: str = "1024") -> None:
    match kind:
        case "echo":
            echo(address)
        case "mlp":
            mlp(address, int(rows))
        case _:
            embodied(address, Dummy(), int(rows))


if __name__ == "__main__":
    main(*sys.argv[1:])
