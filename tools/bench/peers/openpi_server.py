"""A server that keeps to openpi's protocol, for `rpc.py`: `python openpi_server.py HOST:PORT`.

One event loop with the inference in it, no compression, no size limit, the codec of openpi-client, in whose environment
it runs. It answers 1.4 KB of actions at once and prints its address when it listens.
"""

import asyncio
import sys
import time

import numpy as np
from openpi_client import msgpack_numpy
from websockets.asyncio.server import ServerConnection, serve

ACTIONS = np.zeros((50, 7), np.float32)


async def answer(connection: ServerConnection) -> None:
    packer = msgpack_numpy.Packer()
    await connection.send(packer.pack({}))
    total: float | None = None
    while True:
        start = time.monotonic()
        msgpack_numpy.unpackb(await connection.recv())
        begun = time.monotonic()
        infer = (time.monotonic() - begun) * 1000
        timing = {"infer_ms": infer} | ({} if total is None else {"prev_total_ms": total})
        await connection.send(
            packer.pack({"actions": ACTIONS, "policy_timing": {"infer_ms": infer}, "server_timing": timing})
        )
        total = (time.monotonic() - start) * 1000


async def main(address: str) -> None:
    host, _, port = address.rpartition(":")
    async with serve(answer, host, int(port), compression=None, max_size=None) as server:
        name, number = server.sockets[0].getsockname()[:2]
        print(f"{name}:{number}", flush=True)
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
