"""Abuse a policy server on this machine, and print what a robot beside the abuse notices.

`python tools/abuse.py [scenario ...] [--seconds S]` starts real servers, gateways and clients, all on loopback and
bounded in number and time. A robot asks 20 times a second, before, during and after the abuse. The table holds the
median and the 99th percentile of its latency, in milliseconds, and the requests that failed; below it stand the facts
that a scenario found. Exits with 1 if a fact is bad. The last line is JSON as in `tools/bench`.
"""

import argparse
import os
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.request import urlopen

sys.path.insert(0, str(Path(__file__).parent / "bench"))
from abuse_actors import Actor, Latencies, silent_connections
from results import emit

DESCRIPTORS = 1024
START_S = 60.0
WIDE = "policy.hidden=[1500,1500,1500]"  # 18 MB of weights, so that fetching a version takes a while


@dataclass
class Server:
    """A running `embodied serve`, with the lines that it printed.

    Attributes:
        process: The server.
        lines: Its output so far.
    """

    process: subprocess.Popen[str]
    lines: list[str] = field(default_factory=list)

    def announced(self, words: str, seconds: float = START_S) -> str:
        """Last word of the first line that holds `words`, such as the address that it listens on.

        Raises:
            TimeoutError: It has not said so in time.
        """
        limit = time.monotonic() + seconds
        while time.monotonic() < limit and self.process.poll() is None:
            for line in list(self.lines):
                if words in line:
                    return line.split()[-1].removesuffix("/")
            time.sleep(0.05)
        said = self.lines[-1] if self.lines else "nothing"
        raise TimeoutError(f"the server did not say {words!r} within {seconds:.0f} s; last it said {said!r}")

    def children(self) -> list[int]:
        """Process ids of the gateways."""
        lists = Path(f"/proc/{self.process.pid}/task").glob("*/children")
        return [int(word) for path in lists for word in path.read_text().split()]


@dataclass
class Ground:
    """Folder, length of a phase, and findings of one scenario.

    Attributes:
        folder: Empty at the start.
        seconds: Length of each phase.
        phases: Name of a phase to the robot's latencies.
        facts: Sentence to whether it is good.
    """

    folder: Path
    seconds: float
    phases: dict[str, Latencies] = field(default_factory=dict)
    facts: dict[str, bool] = field(default_factory=dict)

    @contextmanager
    def server(self, *words: str, slow: bool = False) -> Iterator[Server]:
        """An untrained policy, served with a thousand descriptors; `slow` adds 300 ms to every look at its versions."""
        launch = (
            [str(Path(__file__).with_name("abuse_actors.py")), "slow", str(self.folder)]
            if slow
            else ["-m", "embodied.cli.main"]
        )
        command = [
            sys.executable,
            *launch,
            "serve",
            "run=null",
            "task=reach",
            f"weights={self.folder / 'weights'}",
            *words,
        ]
        with started(command) as process:
            server = Server(process)
            threading.Thread(target=_collect, args=(process, server.lines), daemon=True).start()
            server.announced("serving policy")
            yield server

    def measure(self, phase: str, robot: Actor) -> None:
        """Let the robot ask for one phase."""
        self.phases[phase] = robot.ask(self.seconds)

    def fact(self, sentence: str, good: bool) -> None:
        """Keep a finding."""
        self.facts[sentence] = good


@contextmanager
def started(command: Sequence[str]) -> Iterator[subprocess.Popen[str]]:
    """A process whose descriptors are limited, killed with its children at the end."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (DESCRIPTORS, DESCRIPTORS))

    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True, preexec_fn=limit
    )
    try:
        yield process
    finally:
        with_group(process, signal.SIGCONT)
        with_group(process, signal.SIGKILL)
        process.wait()


def with_group(process: subprocess.Popen[str], number: int) -> None:
    """Signal a process and its children."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, number)


def _collect(process: subprocess.Popen[str], lines: list[str]) -> None:
    assert process.stdout is not None
    lines.extend(line.rstrip() for line in process.stdout)


def health(address: str) -> tuple[int, str]:
    """Status and text of a health page; 0 where nothing answers within five seconds."""
    try:
        with urlopen(address, timeout=5) as answer:
            return answer.status, answer.read().decode().strip()
    except HTTPError as error:
        return error.code, error.read().decode().strip()
    except (URLError, OSError) as error:
        return 0, str(error)


def becomes(check: Callable[[], bool], seconds: float = 10.0) -> bool:
    """Whether something is true within so many seconds."""
    limit = time.monotonic() + seconds
    while not (true := check()) and time.monotonic() < limit:
        time.sleep(0.2)
    return true


def silent_gateway(ground: Ground) -> None:
    """1,500 silent connections to openpi's gateway."""
    with ground.server(f"address=ipc://{ground.folder}/policy", "openpi=127.0.0.1:0") as server, ExitStack() as stack:
        gateway = server.announced("answering openpi").removeprefix("ws://")
        robot = stack.enter_context(Actor("openpi", gateway, "1"))
        ground.measure("before", robot)
        with silent_connections(gateway, 1500):
            ground.measure("during", robot)
        ground.measure("after", robot)
        newcomer = stack.enter_context(Actor("openpi", gateway, "1"))
        ground.fact("a new openpi client is answered afterwards", newcomer.ask(1.0).failed == 0)
        ground.fact("the gateway's /healthz says 200", becomes(lambda: health(f"http://{gateway}/healthz")[0] == 200))


def many_openpi_clients(ground: Ground) -> None:
    """64 openpi clients and 60 silent connections."""
    with ground.server(f"address=ipc://{ground.folder}/policy", "openpi=127.0.0.1:0") as server, ExitStack() as stack:
        gateway = server.announced("answering openpi").removeprefix("ws://")
        robot = stack.enter_context(Actor("robot", f"ipc://{ground.folder}/policy"))
        ground.measure("before", robot)
        with Actor("openpi", gateway, "64") as crowd, silent_connections(gateway, 60):
            (pid,) = server.children()
            descriptors, threads = (len(list(Path(f"/proc/{pid}/{kind}").iterdir())) for kind in ("fd", "task"))
            asking = threading.Thread(
                target=lambda: ground.fact("64 clients are answered", crowd.ask(ground.seconds).failed == 0)
            )
            asking.start()
            ground.measure("during", robot)
            asking.join()
        ground.measure("after", robot)
        ground.fact(f"the gateway holds {descriptors} descriptors, fewer than 200", descriptors < 200)
        ground.fact(f"it has {threads} threads, fewer than 64", threads < 64)


def idle_strangers(ground: Ground) -> None:
    """1,051 idle connections to a server with an allow list, and one without."""
    folder = ground.folder / "credentials"
    for words in (["create", str(folder)], ["add", str(folder), "arm", "permission=act"]):
        subprocess.run(
            [sys.executable, "-m", "embodied.cli.main", "credentials", *words], check=True, capture_output=True
        )
    common = ["http=127.0.0.1:0", "address=tcp://127.0.0.1:0"]
    with ground.server(*common, f"credentials={folder}") as server, ExitStack() as stack:
        address = server.announced("serving policy")
        robot = stack.enter_context(Actor("robot", address, str(folder / "clients" / "arm")))
        ground.measure("before", robot)
        with silent_connections(address.removeprefix("tcp://"), 1051):
            ground.measure("during", robot)
        ground.measure("after", robot)
    with ground.server(*common) as server, ExitStack() as stack:
        address, page = server.announced("serving policy"), server.announced("health, metrics")
        with silent_connections(address.removeprefix("tcp://"), 1051):
            newcomer = stack.enter_context(Actor("robot", address))
            ground.fact("a new client is answered beside 1,051 idle connections", newcomer.ask(1.0).failed == 0)
            ground.fact("/healthz says 200 beside them", health(f"{page}/healthz")[0] == 200)


def slow_disk(ground: Ground) -> None:
    """300 ms for every look at a file of the registry."""
    with ground.server(f"address=ipc://{ground.folder}/policy", slow=True), ExitStack() as stack:
        robot = stack.enter_context(Actor("robot", f"ipc://{ground.folder}/policy"))
        stack.enter_context(Actor("push", f"ipc://{ground.folder}/policy", "1"))
        ground.measure("before", robot)
        (ground.folder / "slow").touch()
        ground.measure("during", robot)
        (ground.folder / "slow").unlink()
        ground.measure("after", robot)
    before, during = ground.phases["before"].p99, ground.phases["during"].p99
    ground.fact(f"p99 with slow files {during / before:.1f} times that without, at most 1.5", during <= 1.5 * before)


def files_that_hang(ground: Ground) -> None:
    """FIFOs in place of the active pointer and of the newest manifest, while a server runs and as it starts."""
    address, weights = f"ipc://{ground.folder}/policy", ground.folder / "weights"
    with ground.server(f"address={address}"), ExitStack() as stack:
        robot = stack.enter_context(Actor("robot", address))
        stack.enter_context(Actor("push", address, "1"))
        stack.enter_context(Actor("push", address, "2"))
        pin = [sys.executable, "-m", "embodied.cli.main", "weights", "pin", "2", f"address={address}"]
        subprocess.run(pin, check=True, capture_output=True, timeout=START_S)
        ground.measure("before", robot)
        newest = max(weights.glob("*/2-*/manifest.json"))
        for path in (weights / "active.json", newest):
            path.unlink()
            os.mkfifo(path)
        ground.measure("during", robot)
    with ground.server(f"address={address}"), Actor("robot", address) as robot:
        ground.measure("after", robot)
        ground.fact(f"it starts with an older version: {robot.version!r}", robot.version.partition("-")[0] == "1")


def edges(ground: Ground) -> None:
    """Ten edges that fetch a version of 18 MB again and again."""
    with ground.server("address=tcp://127.0.0.1:0", WIDE) as server, ExitStack() as stack:
        address = server.announced("serving policy")
        robot = stack.enter_context(Actor("robot", address))
        stack.enter_context(Actor("push", address, "1"))
        neighbours(ground, robot, stack.enter_context(Actor("edges", address, "10")))


def flood(ground: Ground) -> None:
    """A simulator whose observations have 50 MB; also beside a server of its own, for what the machine alone costs."""
    with ground.server("address=tcp://127.0.0.1:0") as server, ExitStack() as stack:
        address = server.announced("serving policy")
        robot = stack.enter_context(Actor("robot", address))
        with ground.server("address=tcp://127.0.0.1:0") as other:
            elsewhere = stack.enter_context(Actor("flood", other.announced("serving policy"), "50"))
            ground.measure("without", robot)
            asking = threading.Thread(target=elsewhere.ask, args=(ground.seconds,))
            asking.start()
            ground.measure("elsewhere", robot)
            asking.join()
        without, beside = ground.phases.pop("without").p99, ground.phases.pop("elsewhere").p99
        ground.fact(f"p99 {beside / without:.1f} times that without where the flood is another server's", True)
        neighbours(ground, robot, stack.enter_context(Actor("flood", address, "50")))


def neighbours(ground: Ground, robot: Actor, heavy: Actor) -> None:
    """Measure a robot before, beside and after a heavy neighbour."""
    ground.measure("before", robot)
    asking = threading.Thread(target=heavy.ask, args=(ground.seconds,))
    asking.start()
    ground.measure("during", robot)
    asking.join()
    ground.measure("after", robot)
    before, during = ground.phases["before"].p99, ground.phases["during"].p99
    ground.fact(f"p99 beside them {during / before:.1f} times that without, at most 2", during <= 2 * before)


def stopped_gateway(ground: Ground) -> None:
    """Gateways that are stopped for fifteen seconds."""
    words = (f"address=ipc://{ground.folder}/policy", "openpi=127.0.0.1:0", "groot=127.0.0.1:0", "http=127.0.0.1:0")
    with ground.server(*words) as server, ExitStack() as stack:
        page = f"{server.announced('health, metrics')}/healthz"
        server.announced("answering openpi"), server.announced("answering GR00T")
        robot = stack.enter_context(Actor("robot", f"ipc://{ground.folder}/policy"))
        ground.measure("before", robot)
        ground.fact("/healthz says 200 before", becomes(lambda: health(page)[0] == 200))
        for pid in server.children():
            os.kill(pid, signal.SIGSTOP)
        begin = time.monotonic()
        ground.measure("during", robot)
        named = becomes(lambda: health(page)[0] == 503, 15 - (time.monotonic() - begin))
        ground.fact(f"/healthz says 503 and names them: {health(page)[1]!r}", named and "gateway" in health(page)[1])
        for pid in server.children():
            os.kill(pid, signal.SIGCONT)
        ground.measure("after", robot)
        ground.fact("/healthz says 200 again", becomes(lambda: health(page)[0] == 200, 15))


SCENARIOS: dict[str, Callable[[Ground], None]] = {
    "1-silent-gateway": silent_gateway,
    "1-openpi-clients": many_openpi_clients,
    "1-idle-strangers": idle_strangers,
    "2-slow-disk": slow_disk,
    "2-fifo": files_that_hang,
    "3-edges": edges,
    "3-flood": flood,
    "4-stopped-gateway": stopped_gateway,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scenarios", nargs="*", help=f"of {', '.join(SCENARIOS)}, or how they begin; all if none")
    parser.add_argument("--seconds", type=float, default=5.0, help="length of a phase")
    arguments = parser.parse_args()
    chosen = [name for name in SCENARIOS if not arguments.scenarios or name.startswith(tuple(arguments.scenarios))]
    if not chosen:
        parser.error(f"no scenario begins so; there are {', '.join(SCENARIOS)}")
    values: dict[str, float] = {}
    bad = 0
    print(f"{'p50 / p99 ms, failed':<20}{'before':>24}{'during':>24}{'after':>24}")
    for name in chosen:
        with tempfile.TemporaryDirectory() as folder:
            ground = Ground(Path(folder), arguments.seconds)
            try:
                SCENARIOS[name](ground)
            except TimeoutError as error:
                ground.fact(str(error), False)
        failed = sum(phase.failed for phase in ground.phases.values())
        ground.fact(f"{failed} requests of the robot failed, at most 0", failed == 0)
        cells = (ground.phases.get(phase, Latencies([], 0)).cell for phase in ("before", "during", "after"))
        print(f"{name:<20}" + "".join(f"{cell:>24}" for cell in cells))
        for sentence, good in ground.facts.items():
            print(f"    {'ok ' if good else 'BAD'} {sentence}", flush=True)
            bad += not good
        for phase, seen in ground.phases.items():
            values[f"{name}_{phase}_p99_ms"] = seen.p99
    units = dict.fromkeys(values, "ms") | {"bad": "facts"}
    emit({**values, "bad": float(bad)}, {"bad": 0.0}, units, at_most={"bad"})
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
