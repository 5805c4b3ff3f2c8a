"""Request and reply of the policy server, beside a bare ZeroMQ echo and openpi's protocol.

An observation of 301 KB (two 224 x 224 pictures, nine floats, a sentence) and a reply of 1.4 KB, the same for all, each
client and each server a process of its own. openpi's side is its unmodified client (`make peer-openpi-client`) and a
server that keeps to its protocol: one event loop, inference in it. All scenarios run in turn, round by round; a result
is the median of the rounds' ratios.

`batching_gain_8`: requests per second of eight clients of a real policy (two layers of 1024) computed in batches, over
one by one.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
from results import emit

HERE = Path(__file__).parent / "peers"
OPENPI = Path(__file__).parents[2] / ".venvs/openpi-client/bin/python"
TARGETS = {
    "p50_over_zmq_echo_tcp_1": 1.4,
    "p50_over_zmq_echo_tcp_8": 1.4,
    "throughput_over_openpi_tcp_8": 1.5,
    "throughput_over_openpi_ipc_8": 2.0,
}
AT_MOST = {"p50_over_zmq_echo_tcp_1", "p50_over_zmq_echo_tcp_8"}


class Scenario:
    """A server and its clients, waiting to be let go.

    Args:
        stack: Ends the processes.
        server, client: Kinds, as in `peers/rpc_server.py` and `peers/rpc_client.py`.
        address: Where the server listens.
        count: Clients.
        rows: Most rows of a batch.
    """

    def __init__(self, stack: ExitStack, server: str, client: str, address: str, count: int, rows: int = 1024) -> None:
        command = [sys.executable, str(HERE / "rpc_server.py"), server, address, str(rows)]
        if server == "openpi":
            command = [str(OPENPI), str(HERE / "openpi_server.py"), address]
        serving = stack.enter_context(running(command))
        assert serving.stdout is not None
        bound = serving.stdout.readline().strip()
        python = str(OPENPI) if client == "openpi" else sys.executable
        command = [python, str(HERE / "rpc_client.py"), client, bound]
        self.clients = [stack.enter_context(running(command)) for _ in range(count)]
        for process in self.clients:
            assert process.stdout is not None
            if (said := process.stdout.readline().strip()) != "ready":
                sys.exit(f"a client of {server} said {said!r}")

    def run(self, seconds: float) -> tuple[float, float]:
        """Median seconds of one request, and requests per second of all clients."""
        for process in self.clients:
            assert process.stdin is not None
            process.stdin.write(f"{seconds}\n")
            process.stdin.flush()
        times = [json.loads(process.stdout.readline()) for process in self.clients if process.stdout is not None]
        return float(np.median(np.concatenate(times))), sum(len(t) for t in times) / seconds


@contextmanager
def running(command: list[str]) -> Iterator[subprocess.Popen[str]]:
    """A process with pipes, killed at the end."""
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7, help="rounds of interleaved measurements")
    parser.add_argument("--seconds", type=float, default=1.5, help="seconds of each scenario in a round")
    arguments = parser.parse_args()
    if not OPENPI.exists():
        sys.exit("openpi-client is not installed: make peer-openpi-client")
    tcp = "tcp://127.0.0.1:*"
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        scenarios = {
            "echo_tcp_1": Scenario(stack, "echo", "echo", tcp, 1),
            "ours_tcp_1": Scenario(stack, "embodied", "embodied", "tcp://127.0.0.1:0", 1),
            "echo_tcp_8": Scenario(stack, "echo", "echo", tcp, 8),
            "ours_tcp_8": Scenario(stack, "embodied", "embodied", "tcp://127.0.0.1:0", 8),
            "ours_ipc_8": Scenario(stack, "embodied", "embodied", f"ipc://{folder}/policy", 8),
            "openpi_tcp_8": Scenario(stack, "openpi", "openpi", "127.0.0.1:0", 8),
            "mlp_batched_8": Scenario(stack, "mlp", "embodied", "tcp://127.0.0.1:0", 8),
            "mlp_single_8": Scenario(stack, "mlp", "embodied", "tcp://127.0.0.1:0", 8, rows=1),
        }
        rounds = []
        for _ in range(arguments.rounds):
            rounds.append({name: scenario.run(arguments.seconds) for name, scenario in scenarios.items()})
    for name in scenarios:
        p50, rate = np.median([measured[name] for measured in rounds], axis=0)
        print(f"{name:<14} p50 {p50 * 1000:7.3f} ms   {rate:7.0f} requests/s")

    def ratio(over: str, under: str, column: int) -> float:
        return float(np.median([measured[over][column] / measured[under][column] for measured in rounds]))

    values = {
        "p50_over_zmq_echo_tcp_1": ratio("ours_tcp_1", "echo_tcp_1", 0),
        "p50_over_zmq_echo_tcp_8": ratio("ours_tcp_8", "echo_tcp_8", 0),
        "throughput_over_openpi_tcp_8": ratio("ours_tcp_8", "openpi_tcp_8", 1),
        "throughput_over_openpi_ipc_8": ratio("ours_ipc_8", "openpi_tcp_8", 1),
        "batching_gain_8": ratio("mlp_batched_8", "mlp_single_8", 1),
    }
    emit(values, TARGETS, at_most=AT_MOST)


if __name__ == "__main__":
    main()
