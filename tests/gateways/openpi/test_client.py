"""The unmodified openpi client, in an environment of its own (`make peer-openpi-client`), against our gateway."""

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from embodied.client import RemoteClient
from embodied.spec import AgentSpec, PolicySpec, Stream
from tests.gateways.toys import SPEC, PolicyProcess, gateway, policy, weights

pytestmark = pytest.mark.peer

ROOT = Path(__file__).parents[3]
PYTHON = ROOT / ".venvs" / "openpi-client" / "bin" / "python"
LIBERO = PolicySpec(
    "toy",
    AgentSpec(
        (Stream("state", (8,)), Stream("image", (32, 32, 3), "uint8"), Stream("wrist_image", (32, 32, 3), "uint8"),
         Stream("instruction", (64,), "uint8")),
        (Stream("move", (7,)),),
    ),
    chunk=10,
)  # fmt: skip


class Peer:
    """openpi's client and broker in their own process."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process
        self.metadata = self._read()

    def chunk(self) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return self._read()

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None and self._process.stderr is not None
        line = self._process.stdout.readline()
        assert line, self._process.stderr.read()
        return json.loads(line)


@contextmanager
def peer(address: tuple[str, int], horizon: int, *key: str) -> Iterator[Peer]:
    assert PYTHON.exists(), "make peer-openpi-client"
    command = [str(PYTHON), str(Path(__file__).with_name("peer_client.py")), str(address[1]), str(horizon), *key]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, cwd="/") as process:
        try:
            yield Peer(process)
        finally:
            process.kill()


@pytest.fixture
def served(tmp_path: Path) -> Iterator[PolicyProcess]:
    with policy(f"ipc://{tmp_path}/policy") as process:
        yield process


def test_its_broker_executes_chunks_whose_version_follows_pushes(served: PolicyProcess) -> None:
    learner = RemoteClient(served.address, timeout_s=30.0)
    learner.hello()
    with gateway(served.address) as address, peer(address, SPEC.chunk) as client:
        assert client.metadata["policy"] == "toy" and client.metadata["chunk"] == SPEC.chunk
        for number in (0, 3, 7):
            label = "0"
            if number:
                manifest, tensors = weights(number)
                version = learner.push(manifest, tensors)
                label = f"{version[0]}-{version[1]}"
            chunk = client.chunk()
            assert chunk["versions"] == [number] * SPEC.chunk and chunk["labels"] == [label] * SPEC.chunk
            assert np.shape(chunk["actions"]) == (SPEC.chunk, 3) and chunk["dtype"] == "float32"
            assert chunk["actions"][0][2] == (number or 1) * ord("p")
            assert "infer_ms" in chunk["timing"][0] and chunk["timing"][1] == ["infer_ms"]
    learner.close()


def test_it_sends_a_key_and_is_refused_without(served: PolicyProcess) -> None:
    with gateway(served.address, api_key="sesame") as address:
        with peer(address, 2, "sesame") as client:
            assert np.shape(client.chunk()["actions"]) == (2, 3)
        with pytest.raises(AssertionError, match="401"), peer(address, 2):
            pass


def test_it_speaks_for_libero(tmp_path: Path) -> None:
    with (
        policy(f"ipc://{tmp_path}/policy", LIBERO) as process,
        gateway(process.address, embodiment="libero") as address,
        peer(address, 5) as client,
    ):
        sent = client.metadata["observation"]
        assert sent["observation/image"]["shape"] == [224, 224, 3] and sent["prompt"]["dtype"] == "str"
        assert np.shape(client.chunk()["actions"]) == (5, 7)
