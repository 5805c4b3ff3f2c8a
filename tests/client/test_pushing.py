"""Pushes over real sockets to a server in a process of its own, cut and broken wherever they can be."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from embodied.client import RemoteClient
from embodied.client.pushing import push
from embodied.data import Observation, Rows
from embodied.errors import DeadlineExceeded, EmbodiedError, MessageError, WeightsRefused
from embodied.serving.loader import Loader
from embodied.serving.policy_slot import PolicySlot
from embodied.serving.server import serve
from embodied.serving.versioned_policy import VersionedPolicy
from embodied.spec import AgentSpec, Stream
from embodied.weight_sync.push_receiver import DAMAGED, PushReceiver
from embodied.weights.examine import fingerprints
from embodied.weights.manifest import Manifest, Version
from embodied.weights.shared import SharedBlock
from embodied.wire.endpoint import Requester, Serve
from embodied.wire.message import Message
from policies.mlp import MLPPolicy
from tests.serving.tiny import SPEC, TinyPolicy, kill, manifest, observation, start_server, tensors

RANGES = 7  # of 16 bytes


def serve_ranges(address: str, pipe: Connection) -> None:
    host = VersionedPolicy(TinyPolicy(), TinyPolicy())
    loader = Loader(host)
    slot = PolicySlot(host, loader, PushReceiver(host, loader, range_bytes=16))
    serve({SPEC.name: slot}, address, announce=lambda line: pipe.send(line.rpartition(" at ")[2]))


@contextmanager
def range_server(address: str) -> Iterator[str]:
    process, _, bound = start_server(address, serve_ranges)
    try:
        yield bound
    finally:
        kill(process)


class Meddler(Requester):
    """Calls `meddle(count, range message)` before a range is sent, with its count from 0."""

    def __init__(self, address: str, meddle: Callable[[int, Message], None] = lambda count, message: None) -> None:
        super().__init__(address, "policy server", timeout_s=30)
        self.meddle, self.ranges = meddle, 0

    def submit(self, kind: str, *, serve: Serve | None = None, **more: Any) -> int:
        def meddling(fetch: Message) -> Message:
            assert serve is not None
            message = serve(fetch)
            self.ranges += 1
            self.meddle(self.ranges - 1, message)
            return message

        return super().submit(kind, serve=meddling if serve else None, **more)


def send(requester: Requester, number: int, **more: Any) -> Version:
    return push(requester, SPEC.name, manifest(number), tensors(number), **{"timeout_s": 60, **more})


def served(address: str) -> tuple[int, float]:
    """Number, and the tag of the weights that really answer."""
    client = RemoteClient(address, timeout_s=30)
    chunk = client.act(seen := observation(2), seen.rows.noise_keys(0), "mean")
    client.close()
    return int(chunk.versions[0]), float(chunk.values[0])


@contextmanager
def asked_all_the_while(address: str) -> Iterator[set[tuple[int, float]]]:
    """The pairs of number and tag that a client sees which asks without a pause."""
    stop, pairs = threading.Event(), set[tuple[int, float]]()

    def ask() -> None:
        client, seen = RemoteClient(address, timeout_s=60), observation(2)
        while not stop.is_set():
            chunk = client.act(seen, seen.rows.noise_keys(0), "mean")
            pairs.update(zip(chunk.versions.tolist(), chunk.values.tolist(), strict=True))
        client.close()

    asking = threading.Thread(target=ask)
    asking.start()
    try:
        yield pairs
    finally:
        stop.set()
        asking.join(70)


@pytest.mark.parametrize("transport", ["ipc", "tcp"])
def test_versions_arrive_in_ranges_and_through_shared_memory(transport: str, tmp_path: Path) -> None:
    address = "tcp://127.0.0.1:0" if transport == "tcp" else f"ipc://{tmp_path}/policy"
    with range_server(address) as bound, SharedBlock() as block, asked_all_the_while(bound) as pairs:
        requester = Meddler(bound)
        assert send(requester, 1) == manifest(1).version and requester.ranges == RANGES
        assert send(requester, 1) == manifest(1).version and requester.ranges == RANGES
        shares = bool(block.hold(manifest(2), tensors(2)))
        for number in (2, 3):
            assert send(requester, number, shared=block) == manifest(number).version
        assert requester.ranges == (RANGES if shares else 3 * RANGES)
        with pytest.raises(WeightsRefused, match="stale"):
            send(requester, 2)
        assert send(requester, 2, back=True) == manifest(2).version
        with pytest.raises(WeightsRefused, match="tensor tag is missing"):
            push(requester, SPEC.name, manifest(4), {"weight": tensors(4)["weight"]})
        with pytest.raises(WeightsRefused, match="tensor tag has other content"):
            push(requester, SPEC.name, manifest(4), {**tensors(4), "tag": np.array(5, np.float32)}, shared=block)
        assert served(bound) == (2, 2)
        requester.close()
    assert all(number == tag for number, tag in pairs)


def test_memory_that_the_server_cannot_open_is_done_without(tmp_path: Path) -> None:
    class Elsewhere(SharedBlock):
        def hold(self, *args: Any) -> str:
            return f"1-3-{'0' * 32}"

    with range_server(f"ipc://{tmp_path}/policy") as bound:
        requester = Meddler(bound)
        assert send(requester, 1, shared=Elsewhere()) == manifest(1).version and requester.ranges == RANGES
        requester.close()


def test_a_sender_gone_at_any_range_is_followed_by_another(tmp_path: Path) -> None:
    class Gone(Exception):
        pass

    def until(cut: int) -> Callable[[int, Message], None]:
        def meddle(count: int, message: Message) -> None:
            if count == cut:
                raise Gone

        return meddle

    with range_server(f"ipc://{tmp_path}/policy") as bound, asked_all_the_while(bound) as pairs:
        for cut in range(RANGES):
            first, second = Meddler(bound, until(cut)), Meddler(bound)
            with pytest.raises(Gone):
                send(first, cut + 1)
            first.close()
            assert send(second, cut + 1) == manifest(cut + 1).version
            assert RANGES - cut <= second.ranges <= RANGES
            second.close()
    assert all(number == tag for number, tag in pairs)


@pytest.mark.parametrize("cut", [3, *(pytest.param(n, marks=pytest.mark.slow) for n in (0, 1, 2, 4, 5, 6))])
def test_a_server_killed_at_any_range_gets_the_version_when_it_is_back(cut: int, tmp_path: Path) -> None:
    address = f"ipc://{tmp_path}/policy"
    processes = [start_server(address, serve_ranges)[0]]

    def meddle(count: int, message: Message) -> None:
        if count == cut:
            kill(processes[-1])
            processes.append(start_server(address, serve_ranges)[0])

    try:
        requester = Meddler(address, meddle)
        assert send(requester, 5) == manifest(5).version
        assert len(processes) == 2 and RANGES < requester.ranges <= 2 * RANGES + 1
        assert served(address) == (5, 5)
        requester.close()
    finally:
        kill(processes[-1])


def test_damaged_ranges_are_sent_again_but_not_for_ever(tmp_path: Path) -> None:
    def once(count: int, message: Message) -> None:
        if count in (2, 5):
            message.body["hash"] = "0" * 16

    def always(count: int, message: Message) -> None:
        if message.body["offset"] == 64:
            message.body["hash"] = "0" * 16

    with range_server(f"ipc://{tmp_path}/policy") as bound:
        requester = Meddler(bound, once)
        assert send(requester, 1) == manifest(1).version and requester.ranges == RANGES + 2
        requester.meddle = always
        with pytest.raises(MessageError, match="bytes 64 to 80 arrived damaged"):
            send(requester, 2)
        assert requester.ranges < 3 * RANGES + DAMAGED
        assert served(bound) == (1, 1)
        requester.close()


def test_two_learners_at_once_never_mix(tmp_path: Path) -> None:
    with range_server(f"ipc://{tmp_path}/policy") as bound, asked_all_the_while(bound) as pairs:
        said: dict[int, Version | EmbodiedError] = {}

        def learn(first: int) -> None:
            requester = Meddler(bound)
            for number in range(first, 21, 2):
                try:
                    said[number] = send(requester, number)
                except WeightsRefused as error:
                    said[number] = error
            requester.close()

        learners = [threading.Thread(target=learn, args=(first,)) for first in (1, 2)]
        for learner in learners:
            learner.start()
        for learner in learners:
            learner.join(120)
        assert said[20] == manifest(20).version and served(bound) == (20, 20)
        assert all("stale" in result.what for result in said.values() if isinstance(result, EmbodiedError))
    assert all(number == tag for number, tag in pairs)


def test_nobody_there_is_said_in_time(tmp_path: Path) -> None:
    requester = Requester(f"ipc://{tmp_path}/nobody", "policy server")
    with pytest.raises(DeadlineExceeded, match="no server listens there"):
        send(requester, 1, timeout_s=0.3)
    requester.close()


def serve_halves(address: str, pipe: Connection) -> None:
    policy = half_policy(0.0)
    slot = PolicySlot(host := VersionedPolicy(policy), loader := Loader(host), PushReceiver(host, loader))
    serve({policy.spec.name: slot}, address, announce=lambda line: pipe.send(line.rpartition(" at ")[2]))


def half_policy(value: float) -> MLPPolicy:
    """A policy with numbers of bfloat16 and uint64."""
    policy = MLPPolicy("half", AgentSpec((Stream("x", (3,)),), (Stream("dx", (1,)),)), hidden=(4,))
    policy.network.register_buffer("halves", torch.full((5,), value, dtype=torch.bfloat16))
    policy.network.register_buffer("counts", torch.tensor([2**64 - 1 if value else 0], dtype=torch.uint64))
    return policy


def test_bfloat16_weights_reach_another_process_bit_for_bit() -> None:
    policy = half_policy(0.1)
    tensors = policy.tensors()
    version = Manifest.of("half", 1, tensors, policy.spec.to_dict())
    assert {"bfloat16", "uint64"} < {tensor.dtype for tensor in version.tensors.values()}
    process, _, address = start_server("tcp://127.0.0.1:0", serve_halves)
    try:
        requester = Requester(address, "policy server", timeout_s=30)
        push(requester, "half", version, tensors, timeout_s=30)
        requester.close()
        client = RemoteClient(address, policy="half", timeout_s=30)
        seen = Observation(rows := Rows.of_envs(1), {"x": np.ones((1, 3), np.float32)}, np.zeros(1))
        assert client.act(seen, rows.noise_keys(0), "mean").versions.tolist() == [1]
        theirs = client.probe(seen).tensors
        client.close()
        assert {name: tuple(found) for name, found in theirs.items()} == fingerprints(tensors)
    finally:
        kill(process)
