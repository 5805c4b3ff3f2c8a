"""The policy server as a process, with real clients in other processes."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from embodied.client import LocalClient, PolicyClient, RemoteClient
from embodied.data import ActionChunk, Observation, Outcome, Rows
from embodied.errors import (
    DataError,
    DeadlineExceeded,
    EmbodiedError,
    SpecMismatch,
    UserError,
    WeightsRefused,
)
from embodied.serving.server import PolicyServer
from embodied.serving.versioned_policy import VersionedPolicy
from embodied.spec import AgentSpec, EnvSpec, Stream
from embodied.wire.message import Message, encode
from tests.serving.tiny import (
    AGENT,
    BODY,
    SPAWN,
    SPEC,
    TinyPolicy,
    act_arrays,
    ask_many,
    kill,
    manifest,
    observation,
    raw,
    same,
    server,
    start_server,
    tensors,
    whole_slot,
)


@pytest.fixture(params=["ipc", "tcp"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    with server(f"ipc://{tmp_path}/policy" if request.param == "ipc" else "tcp://127.0.0.1:0") as bound:
        yield bound


@pytest.fixture
def one_server(tmp_path: Path) -> Iterator[str]:
    with server(f"ipc://{tmp_path}/policy") as bound:
        yield bound


def test_many_clients_get_what_inline_gives_and_each_answer_one_version(address: str) -> None:
    pipes, processes = [], []
    for seed in range(3):
        ours, theirs = SPAWN.Pipe()
        processes.append(SPAWN.Process(target=ask_many, args=(address, seed, 60, theirs), daemon=True))
        processes[-1].start()
        pipes.append(ours)
    learner = RemoteClient(address, timeout_s=20)
    number = 0
    while not all(pipe.poll(0) for pipe in pipes):
        number += 1
        assert learner.push(manifest(number), tensors(number)) == manifest(number).version
        time.sleep(0.005)
        assert all(process.exitcode in (None, 0) for process in processes), "a client failed"
    inline = {tag: TinyPolicy() for tag in range(number + 1)}
    used = set()
    for seed, (pipe, process) in enumerate(zip(pipes, processes, strict=True)):
        for count, step, chunk in pipe.recv():
            version = int(chunk.versions[0])
            assert (chunk.versions == version).all()
            used.add(version)
            inline[version].load(tensors(version))
            seen = observation(count, step)
            wanted = inline[version].act(seen, seen.rows.noise_keys(seed), "sample")
            wanted.policy = SPEC.name
            same(chunk, wanted)
        process.join(20)
    assert len(used) > 1
    counts = learner.status()["counts"]
    assert counts["requests"] == 180 and counts["batches"] <= 180 and counts["switches"] == number
    learner.close()


def test_requests_of_many_sessions_share_a_batch(one_server: str) -> None:
    peers = [raw(one_server) for _ in range(4)]
    seen = observation(2)
    arrays = act_arrays(seen)
    client = RemoteClient(one_server)
    for turn in range(200):  # on a busy machine requests may arrive so far apart that each has a batch of its own
        for index, peer in enumerate(peers):
            message = Message("act", turn + 1, f"s{index}", body={"mode": "mean"}, arrays=arrays)
            peer.send_multipart(encode(message))
        for peer in peers:
            assert peer.poll(5000)
            peer.recv_multipart()
        counts = client.status()["counts"]
        assert counts["requests"] == 4 * (turn + 1)
        if counts["batches"] < counts["requests"]:
            break
    assert counts["batches"] < counts["requests"]
    client.close()


def _both(address: str) -> list[PolicyClient]:
    return [LocalClient(VersionedPolicy(TinyPolicy())), RemoteClient(address, timeout_s=20)]


def test_local_and_remote_clients_behave_alike(one_server: str) -> None:
    seen = observation(5, 7)
    keys = seen.rows.noise_keys(3)
    chunks = []
    for client in _both(one_server):
        assert client.hello(BODY) == SPEC
        assert client.version() == (0, "")
        assert client.push(manifest(4), tensors(4)) == manifest(4).version
        assert client.push(manifest(4), tensors(4)) == client.version()
        extra = Observation(seen.rows, {**seen.streams, "unneeded": np.zeros((5, 1), np.float32)}, seen.time)
        chunks.append(client.act(extra, keys, "sample"))
        nobody = client.act(seen.take(np.zeros(0, np.int64)), keys[:0], "mean")
        assert nobody.actions.shape == (0, 3, 2) and nobody.actions.dtype == np.float32
        client.outcome(Rows.of_envs(2), [Outcome.SUCCESS, Outcome.FAILURE])
        client.outcome(Rows.of_envs(1), [Outcome.SUCCESS], [3])
        client.tick()
        client.close()
    same(*chunks)
    assert (chunks[1].versions == 4).all()
    assert chunks[1].actions.flags.writeable
    status = RemoteClient(one_server).status()
    assert status["outcomes"] == {"4": [0, 1, 1, 0, 0, 0, 0], "3": [0, 1, 0, 0, 0, 0, 0]}


def test_local_and_remote_clients_refuse_alike(one_server: str) -> None:
    seen = observation(3)
    keys = seen.rows.noise_keys(0)

    def changed(name: str, value: object) -> Observation:
        streams = {**seen.streams, name: value}
        return Observation(seen.rows, {k: v for k, v in streams.items() if v is not None}, seen.time)  # type: ignore[misc]

    spoiled = seen.streams["joint_pos"].copy()
    spoiled[2, 1] = np.nan
    other = EnvSpec("wave", {"robot": AgentSpec((Stream("joint_pos", (7,), unit="rad"),), ())}, 20.0)
    two = EnvSpec("pair", {"left": AGENT, "right": AGENT}, 20.0)
    deaf = EnvSpec("pair", {"left": AGENT, "right": AgentSpec((), AGENT.actions)}, 20.0)
    torn = {**tensors(2), "weight": np.zeros((4, 6), np.float32)}
    cases = [
        (SpecMismatch, "joint_pos", lambda c: c.hello(other)),
        (SpecMismatch, "no agent left", lambda c: c.hello(BODY, "left")),
        (SpecMismatch, "name one of left, right", lambda c: c.hello(two)),
        (SpecMismatch, "no agent third", lambda c: c.hello(two, ["left", "third"])),
        (SpecMismatch, "joint_pos", lambda c: c.hello(deaf, ("left", "right"))),
        (SpecMismatch, "camera", lambda c: c.act(changed("camera", None), keys, "mean")),
        (SpecMismatch, "field dtype", lambda c: c.act(changed("joint_pos", np.zeros((3, 4))), keys, "mean")),
        (SpecMismatch, "field shape", lambda c: c.act(changed("camera", np.zeros((3, 1), np.uint8)), keys, "mean")),
        (DataError, "joint_pos is not finite in row 2", lambda c: c.act(changed("joint_pos", spoiled), keys, "mean")),
        (DataError, "", lambda c: c.act(changed("joint_pos", np.zeros((2, 4), np.float32)), keys, "mean")),
        (DataError, "", lambda c: c.act(seen, keys[:2], "mean")),
        (UserError, "'median'", lambda c: c.act(seen, keys, "median")),
        (WeightsRefused, "stale", lambda c: c.push(manifest(1), tensors(1))),
        (WeightsRefused, "another content", lambda c: c.push(manifest(5, tag=6), tensors(6))),
        (WeightsRefused, "weight", lambda c: c.push(manifest(6), {**torn, "tag": tensors(6)["tag"]})),
        (WeightsRefused, "tag", lambda c: c.push(manifest(6), {"weight": tensors(6)["weight"]})),
        (DataError, "no outcome", lambda c: c.outcome(Rows.of_envs(1), [9])),
    ]
    said = []
    for client in _both(one_server):
        assert client.hello(two, "right") == client.hello(two, ["left", "right"]) == client.hello(deaf, "left") == SPEC
        client.push(manifest(5), tensors(5))
        said.append([])
        for kind, words, call in cases:
            with pytest.raises(kind) as caught:
                call(client)
            assert words in caught.value.line() and "\n" not in caught.value.line()
            said[-1].append((caught.value.line(), type(caught.value)) if words else None)
        assert client.version() == manifest(5).version
        client.close()
    assert said[0] == said[1]


def test_malformed_messages_and_a_client_that_never_reads_do_no_harm(one_server: str) -> None:
    draw = np.random.default_rng(0)
    good = [bytes(f) for f in encode(Message("act", 5, "x", body={"mode": "mean"}, arrays=act_arrays(observation(2))))]
    bad, deaf = raw(one_server), raw(one_server)
    deaf.rcvhwm = 1
    sent = 0
    client = RemoteClient(one_server, timeout_s=20)
    seen = observation(2)
    wanted = client.act(seen, seen.rows.noise_keys(0), "mean")
    for turn in range(300):
        frames = list(good)
        index = int(draw.integers(len(frames)))
        if turn % 3 == 0:
            frames[index] = draw.bytes(int(draw.integers(40)))
        elif turn % 3 == 1:
            del frames[index]
        else:
            spoiled = bytearray(frames[0])
            spoiled[draw.integers(len(spoiled))] = draw.integers(256)
            frames[0] = bytes(spoiled)
        if frames:
            bad.send_multipart(frames)
            sent += 1
        deaf.send_multipart(good)
        if turn % 10 == 0:
            same(client.act(seen, seen.rows.noise_keys(0), "mean"), wanted)
    for kind in ("load", "error"):
        bad.send_multipart(encode(Message(kind, 1, "x")))
    errors = 0
    while bad.poll(300):
        errors += b"message" in bad.recv_multipart()[0]
    assert errors > 150
    same(client.act(seen, seen.rows.noise_keys(0), "mean"), wanted)
    client.close()


def test_a_failing_policy_is_reported_and_the_server_lives(one_server: str) -> None:
    client = RemoteClient(one_server, timeout_s=20)
    seen = observation(1)
    seen.streams["joint_pos"][:] = 1e9
    with pytest.raises(EmbodiedError, match="the policy has a bug"):
        client.act(seen, seen.rows.noise_keys(0), "mean")
    assert client.act(observation(1), seen.rows.noise_keys(0), "mean").policy == "tiny"
    client.close()


@pytest.mark.parametrize("transport", ["ipc", "tcp"])
def test_a_killed_server_is_named_and_its_successor_is_found(transport: str, tmp_path: Path) -> None:
    seen = observation(2)
    process, _, address = start_server(f"ipc://{tmp_path}/policy" if transport == "ipc" else "tcp://127.0.0.1:0")
    client = RemoteClient(address, timeout_s=20)

    def ask() -> ActionChunk:
        return client.act(seen, seen.rows.noise_keys(0), "mean")

    first = ask()
    kill(process)
    client._requester.timeout_s = 0.5
    with pytest.raises(DeadlineExceeded, match="no server listens there") as caught:
        ask()
    assert "act" in caught.value.what and caught.value.where == f"policy server at {address}"
    process, _, _ = start_server(address)  # the socket file of the killed one is no obstacle
    client._requester.timeout_s = 20
    same(ask(), first)
    client.close()
    kill(process)


def test_a_request_outlives_a_restart_within_its_deadline(tmp_path: Path) -> None:
    seen = observation(2)
    process, _, address = start_server(f"ipc://{tmp_path}/policy")
    client = RemoteClient(address, timeout_s=30)
    first = client.act(seen, seen.rows.noise_keys(0), "mean")
    assert process.pid
    os.kill(process.pid, signal.SIGSTOP)  # it will not have answered when it dies
    successors = []

    def replace() -> None:
        time.sleep(0.3)
        kill(process)
        successors.append(start_server(address)[0])

    thread = threading.Thread(target=replace)
    thread.start()
    same(client.act(seen, seen.rows.noise_keys(0), "mean"), first)
    thread.join(60)
    client.close()
    kill(successors[0])


def test_a_hanging_server_is_told_from_a_dead_one(tmp_path: Path) -> None:
    process, _, address = start_server(f"ipc://{tmp_path}/policy")
    client = RemoteClient(address, timeout_s=20)
    client.hello(BODY)
    assert process.pid
    os.kill(process.pid, signal.SIGSTOP)
    try:
        client._requester.timeout_s = 0.5
        with pytest.raises(DeadlineExceeded, match="last heard"):
            client.version()
    finally:
        os.kill(process.pid, signal.SIGCONT)
    client._requester.timeout_s = 20
    assert client.version() == (0, "")
    client.close()
    kill(process)


def test_sigterm_answers_what_has_arrived_and_says_goodbye(tmp_path: Path) -> None:
    process, pipe, address = start_server(f"ipc://{tmp_path}/policy")
    peer = raw(address)
    for id in range(1, 6):
        arrays = act_arrays(observation(2, id))
        peer.send_multipart(encode(Message("act", id, "s", body={"mode": "mean"}, arrays=arrays)))
    assert peer.poll(5000)
    process.terminate()
    kinds = []
    while peer.poll(2000):
        kinds.append(peer.recv_multipart()[0])
        if b"bye" in kinds[-1]:
            break
    assert sum(b"act" in kind for kind in kinds) == 5 and b"bye" in kinds[-1]
    assert pipe.poll(10) and pipe.recv() == "drained"
    process.join(10)
    assert process.exitcode == 0
    assert not (tmp_path / "policy").exists()


def test_two_servers_on_one_address(one_server: str) -> None:
    with pytest.raises(UserError, match="another server listens there"):
        PolicyServer({"tiny": whole_slot()}, one_server).open()
