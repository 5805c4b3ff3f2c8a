"""GR00T gateways in processes of their own."""

from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from typing import Any

from embodied.gateways.groot.server import run
from tests.serving.tiny import SPAWN


def _main(settings: dict[str, Any], pipe: Any) -> None:
    raise SystemExit(run(settings, pipe.send))


def start_gateway(server: str, **settings: Any) -> tuple[BaseProcess, str]:
    ours, theirs = SPAWN.Pipe()
    options = {"server": server, "address": "127.0.0.1:0", "timeout_s": 20, **settings}
    process = SPAWN.Process(target=_main, args=(options, theirs), daemon=True)
    process.start()
    theirs.close()
    assert ours.poll(60), "the gateway did not start"
    return process, ours.recv().rpartition(" at ")[2]


@contextmanager
def gateway(server: str, **settings: Any) -> Iterator[str]:
    process, address = start_gateway(server, **settings)
    try:
        yield address
        assert process.is_alive()
    finally:
        process.kill()
        process.join(10)
