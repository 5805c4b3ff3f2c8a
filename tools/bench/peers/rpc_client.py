"""One client of `rpc.py`: `python rpc_client.py KIND ADDRESS`, KIND one of echo, embodied, openpi.

Prints `ready` after twenty warm-up requests; then each line `SECONDS` on its input makes it ask for so long, one
request after the other, and print the seconds that each took as a line of JSON. openpi's runs in its own environment.
"""

import json
import sys
import time
from collections.abc import Callable

import numpy as np

OBSERVATION = {
    "image": np.random.default_rng(0).integers(0, 255, (224, 224, 3), np.uint8),
    "wrist_image": np.random.default_rng(1).integers(0, 255, (224, 224, 3), np.uint8),
    "state": np.zeros(9, np.float32),
    "instruction": np.full(48, 97, np.uint8),
}


def echo(address: str) -> Callable[[], object]:
    """A DEALER that sends a header and the arrays' frames and waits for two frames."""
    import zmq

    sock = zmq.Context().socket(zmq.DEALER)
    sock.connect(address)
    header = bytes(300)

    def ask() -> object:
        sock.send_multipart(
            [header, *(array.reshape(-1).view(np.uint8).data for array in OBSERVATION.values())], copy=False
        )
        return sock.recv_multipart(copy=False)

    return ask


def embodied(address: str) -> Callable[[], object]:
    """Our client with one row."""
    from embodied.client import RemoteClient
    from embodied.data import Observation, Rows

    client = RemoteClient(address, timeout_s=60)
    client.hello()
    rows = Rows.of_envs(1)
    seen = Observation(rows, {name: array[None] for name, array in OBSERVATION.items()}, np.zeros(1))

    def ask() -> object:
        rows.step += 1
        return client.act(seen, rows.noise_keys(0), "mean")

    return ask


def openpi(address: str) -> Callable[[], object]:
    """openpi's own client."""
    from openpi_client.websocket_client_policy import WebsocketClientPolicy

    host, _, port = address.rpartition(":")
    policy = WebsocketClientPolicy(host, int(port))
    text = bytes(OBSERVATION["instruction"]).decode()
    observation = {**{name: array for name, array in OBSERVATION.items() if name != "instruction"}, "prompt": text}
    return lambda: policy.infer(observation)


def main(kind: str, address: str) -> None:
    ask = {"echo": echo, "embodied": embodied, "openpi": openpi}[kind](address)
    for _ in range(20):
        ask()
    print("ready", flush=True)
    for line in sys.stdin:
        times = []
        end = time.monotonic() + float(line)
        while (start := time.monotonic()) < end:
            ask()
            times.append(time.monotonic() - start)
        print(json.dumps(times), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
