"""Start, end, hanging and admission of a policy server."""

import signal
import threading
import time
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import pytest

from embodied.client import RemoteClient
from embodied.data import ActionChunk, Observation
from embodied.errors import (
    DeadlineExceeded,
    InfrastructureError,
    Unauthorized,
)
from embodied.runtime.slots import push_slots
from embodied.serving.server import PolicyServer, serve
from embodied.serving.versioned_policy import VersionedPolicy
from embodied.wire.addresses import create_credentials
from embodied.wire.credentials import add_client, create_server, remove_client
from embodied.wire.message import Message, encode
from tests.serving.tiny import (
    BODY,
    SPAWN,
    SPEC,
    TinyPolicy,
    act_arrays,
    kill,
    manifest,
    observation,
    raw,
    start_server,
    tensors,
)


class Stuck(TinyPolicy):
    """Takes a minute for an observation of large numbers."""

    def act(self, observation: Observation, noise_keys: np.ndarray, mode: str) -> ActionChunk:
        if observation.streams["joint_pos"].max() > 100:
            time.sleep(60)
        return super().act(observation, noise_keys, mode)


def _serve_stuck(address: str, pipe: Connection) -> None:
    serve(push_slots(VersionedPolicy(Stuck())), address, announce=lambda line: pipe.send(line.rpartition(" at ")[2]))


def test_a_second_signal_ends_a_server_that_hangs(tmp_path: Path) -> None:
    process, _, address = start_server(f"ipc://{tmp_path}/policy", _serve_stuck)
    peer = raw(address)
    seen = observation(1)
    seen.streams["joint_pos"][:] = 1000
    peer.send_multipart(encode(Message("act", 1, "s", body={"mode": "mean"}, arrays=act_arrays(seen))))
    peer.send_multipart(encode(Message("status", 2, "s")))
    time.sleep(0.3)
    process.terminate()
    process.join(1)
    assert process.is_alive()
    process.terminate()
    process.join(20)
    assert process.exitcode == -signal.SIGTERM
    peer.close()
    replaced, _, _ = start_server(address)
    kill(replaced)


class Counting(TinyPolicy):
    def __init__(self) -> None:
        super().__init__()
        self.rows: list[int] = []

    def act(self, observation: Observation, noise_keys: np.ndarray, mode: str) -> ActionChunk:
        self.rows.append(len(noise_keys))
        return super().act(observation, noise_keys, mode)


def test_the_policy_is_warm_before_anybody_can_call(tmp_path: Path) -> None:
    policy, stop = Counting(), threading.Event()
    server = PolicyServer(push_slots(VersionedPolicy(policy)), f"ipc://{tmp_path}/policy")
    opened = server.open

    def listen() -> str:
        assert policy.rows == [1, 8] and not (tmp_path / "policy").exists()
        return opened()

    server.open = listen  # type: ignore[method-assign]
    said: list[str] = []
    stop.set()
    server.serve(said.append, stop)
    assert said == [f"serving policy tiny, its initial weights, at ipc://{tmp_path}/policy"]


def test_a_policy_that_fails_at_the_start_is_named_in_one_line(tmp_path: Path) -> None:
    class Broken(TinyPolicy):
        def act(self, observation: Observation, noise_keys: np.ndarray, mode: str) -> ActionChunk:
            raise RuntimeError("CUDA out of memory")

    with pytest.raises(InfrastructureError, match="CUDA out of memory") as caught:
        serve(push_slots(VersionedPolicy(Broken())), f"ipc://{tmp_path}/policy")
    assert "policy tiny" in caught.value.where and not (tmp_path / "policy").exists()


def test_another_thread_sees_a_hang(tmp_path: Path) -> None:
    class Waits(TinyPolicy):
        def act(self, observation: Observation, noise_keys: np.ndarray, mode: str) -> ActionChunk:
            assert go.wait(30)
            return super().act(observation, noise_keys, mode)

    go, stop = threading.Event(), threading.Event()
    server = PolicyServer(push_slots(VersionedPolicy(Waits())), f"ipc://{tmp_path}/policy")
    assert not server.snapshot["ready"] and server.snapshot["computing_since"] is None
    address = server.open()
    thread = threading.Thread(target=server.run, args=(stop,))
    thread.start()
    peer = raw(address)
    before = time.monotonic()
    peer.send_multipart(encode(Message("act", 1, "s", body={"mode": "mean"}, arrays=act_arrays(observation(1)))))
    while server.snapshot["computing_since"] is None:
        assert time.monotonic() < before + 30
        time.sleep(0.001)
    assert server.snapshot["computing_since"] >= before
    go.set()
    assert peer.poll(30_000) and b"act" in peer.recv_multipart()[0]
    stop.set()
    thread.join(30)
    assert server.snapshot["policies"]["tiny"]["latency"]["count"] == 1
    peer.close()


def test_permissions_follow_the_credentials_and_end_with_their_removal(tmp_path: Path) -> None:
    folder = tmp_path / "keys"
    create_server(folder)
    robot, learner = add_client(folder, "robot", {"act"}), add_client(folder, "learner", {"act", "push"})
    assert robot is not None and learner is not None
    stop = threading.Event()
    server = PolicyServer(push_slots(VersionedPolicy(TinyPolicy())), "tcp://127.0.0.1:0", credentials=folder)
    address = server.open()
    thread = threading.Thread(target=server.run, args=(stop,))
    thread.start()
    one, two = (RemoteClient(address, timeout_s=20, credentials=keys) for keys in (robot, learner))
    assert one.hello(BODY) == SPEC
    with pytest.raises(Unauthorized, match="robot may not send offer"):
        one.push(manifest(3), tensors(3))
    assert two.push(manifest(3), tensors(3)) == one.version() == manifest(3).version
    with pytest.raises(Unauthorized, match="permission administer"):
        two.set_active("pinned", 3)
    remove_client(folder, "robot")
    limit = time.monotonic() + 30
    with pytest.raises(Unauthorized, match="not let in any more"):
        while time.monotonic() < limit:
            one.version()
            time.sleep(0.02)
    assert two.version() == manifest(3).version
    one.close()
    two.close()
    stop.set()
    thread.join(30)
    assert not thread.is_alive()


def _serve_with_keys(address: str, keys: str, pipe) -> None:  # type: ignore[no-untyped-def]
    serve(
        push_slots(VersionedPolicy(TinyPolicy())),
        address,
        credentials=keys,
        announce=lambda line: pipe.send(line.rpartition(" at ")[2]),
    )


def test_credentials_admit_known_clients_alone(tmp_path: Path) -> None:
    create_credentials(tmp_path / "keys")
    create_credentials(tmp_path / "strangers")
    ours, theirs = SPAWN.Pipe()
    process = SPAWN.Process(
        target=_serve_with_keys, args=("tcp://127.0.0.1:0", str(tmp_path / "keys"), theirs), daemon=True
    )
    process.start()
    assert ours.poll(60)
    address = ours.recv()
    friend = RemoteClient(address, timeout_s=20, credentials=tmp_path / "keys")
    assert friend.hello(BODY) == SPEC
    friend.close()
    (tmp_path / "strangers" / "server.key").write_bytes((tmp_path / "keys" / "server.key").read_bytes())
    for stranger in (None, tmp_path / "strangers"):
        client = RemoteClient(address, timeout_s=1.0, credentials=stranger)
        with pytest.raises(DeadlineExceeded, match="credentials differ"):
            client.hello(BODY)
        client.close()
    kill(process)
