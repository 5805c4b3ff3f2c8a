"""GR00T's clients, of both generations, at a gateway in a process, in front of a policy server in another."""

import contextlib
import os
import pickle
import queue
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest
import zmq
from numpy.typing import NDArray

from embodied.client import RemoteClient
from embodied.data import Observation
from embodied.errors import ConfigError, DeadlineExceeded, UserError
from embodied.gateways.groot.server import run
from embodied.gateways.launcher import STOP_REQUESTED
from tests.gateways.groot.client import GrootClient, ServerError, decode, encode
from tests.gateways.groot.gateway import gateway, start_gateway
from tests.serving import tiny

TOKEN = "a-long-secret"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with tiny.server(f"ipc://{tmp_path_factory.mktemp('groot')}/s") as address:
        yield address


@pytest.fixture(scope="module")
def address(server: str) -> Iterator[str]:
    with gateway(server) as found:
        yield found


@pytest.fixture
def client(address: str) -> Iterator[GrootClient]:
    with GrootClient(address) as made:
        yield made


def nested(seen: Observation, frames: int = 1) -> dict[str, Any]:
    return {
        "video": {"camera": np.repeat(seen.streams["camera"][:, None], frames, axis=1)},
        "state": {"joint_pos": np.repeat(seen.streams["joint_pos"][:, None], frames, axis=1)},
        "language": {"task": [["lift"]] * len(seen.rows)},
    }


def flat(seen: Observation) -> dict[str, Any]:
    apart = nested(seen)
    text = {"annotation.human.coarse_action": ["lift"] * len(seen.rows)}
    return {"video.camera": apart["video"]["camera"], "state.joint_pos": apart["state"]["joint_pos"], **text}


def expected(server: str, seen: Observation) -> NDArray[np.float32]:
    with closing(RemoteClient(server, timeout_s=20)) as direct:
        return direct.act(seen, seen.rows.noise_keys(0), "mean").actions


def test_every_form_of_asking_gets_the_policys_actions(client: GrootClient, server: str) -> None:
    seen = tiny.observation(3, seed=1)
    wanted = expected(server, seen)
    for asked, key in (
        (nested(seen), "joint_vel"),
        (nested(seen, frames=2), "joint_vel"),
        (flat(seen), "action.joint_vel"),
    ):
        action, info = client.new(asked)
        assert set(action) == {key} and action[key].dtype == np.float32
        np.testing.assert_array_equal(action[key], wanted)
        assert info["policy_version"] == 0 and set(info) == {"policy_version", "policy_label", "timing"}
    old = client.old(flat(seen))
    assert set(old) == {"action.joint_vel"}
    np.testing.assert_array_equal(old["action.joint_vel"], wanted)
    single = client.old(
        {key: value[0] if key != "annotation.human.coarse_action" else value[:1] for key, value in flat(seen).items()}
    )
    np.testing.assert_array_equal(single["action.joint_vel"], wanted[0])
    default, _ = client.call(None, data={"observation": nested(seen), "options": {}})
    np.testing.assert_array_equal(default["joint_vel"], wanted)


def test_the_last_frame_counts(client: GrootClient, server: str) -> None:
    seen, before = tiny.observation(2, seed=2), tiny.observation(2, seed=3)
    both = {
        kind: {
            key: np.concatenate([nested(before)[kind][key], value], axis=1) for key, value in nested(seen)[kind].items()
        }
        for kind in ("video", "state")
    }
    np.testing.assert_array_equal(client.new(both)[0]["joint_vel"], expected(server, seen))


def test_the_other_endpoints(client: GrootClient) -> None:
    assert client.ping() == {"status": "ok", "message": "Server is running"}
    config = client.call("get_modality_config")
    assert config["video"] == {"delta_indices": [0], "modality_keys": ["camera"]}
    assert config["action"] == {"delta_indices": [0, 1, 2], "modality_keys": ["joint_vel"]}
    client.old(flat(tiny.observation(1)))
    assert client.call("get_modality_config")["state"]["modality_keys"] == ["state.joint_pos"]
    assert client.call("reset", data={"options": None}) == {}
    with pytest.raises(ServerError, match=r"unknown endpoint 'get_actions'.*did you mean get_action"):
        client.call("get_actions")


def test_kill_is_refused_without_a_token(client: GrootClient) -> None:
    with pytest.raises(ServerError, match="kill is refused"):
        client.call("kill")
    client.token = "something"
    with pytest.raises(ServerError, match="kill is refused"):
        client.call("kill")
    assert client.ping()["status"] == "ok"


def test_sampled_actions_differ_from_step_to_step_and_repeat_after_the_same_history(server: str) -> None:
    with gateway(server, mode="sample", seed=5) as address, GrootClient(address) as client:
        asked = flat(tiny.observation(1))
        one, two = client.old(asked)["action.joint_vel"], client.old(asked)["action.joint_vel"]
        assert not np.array_equal(one, two)
        client.call("reset")
        assert not np.array_equal(one, client.old(asked)["action.joint_vel"])
    with gateway(server, mode="sample", seed=5) as address, GrootClient(address) as client:
        np.testing.assert_array_equal(client.old(asked)["action.joint_vel"], one)


def test_versions_change_after_a_push(tmp_path: Path) -> None:
    with tiny.server(f"ipc://{tmp_path}/s") as server, gateway(server) as address, GrootClient(address) as client:
        seen = tiny.observation(2)
        before, info = client.new(nested(seen))
        assert info["policy_label"] == "0"
        for number in (3, 4):
            with closing(RemoteClient(server, timeout_s=20)) as learner:
                learner.push(tiny.manifest(number), tiny.tensors(number))
            after, info = client.new(nested(seen))
            assert (info["policy_version"], info["policy_label"]) == (number, tiny.manifest(number).label)
            assert not np.array_equal(before["joint_vel"], after["joint_vel"])


def test_tokens(server: str) -> None:
    process, address = start_gateway(server, api_key=TOKEN)
    for wrong in ("", TOKEN[:-1], TOKEN + "x", "ü"):
        with GrootClient(address, wrong) as client:
            for endpoint in ("ping", "kill", "get_action", "reset", "get_modality_config", "nothing"):
                with pytest.raises(ServerError, match=r"^Unauthorized: Invalid API token$"):
                    client.call(endpoint)
            with pytest.raises(ServerError, match="Unauthorized"):
                client.raw(msgpack.packb({"endpoint": "ping", "api_token": [TOKEN]}))
    with GrootClient(address, TOKEN) as client:
        assert client.ping()["status"] == "ok"
        client.new(nested(tiny.observation(1)))
        assert client.call("kill") is None
    process.join(20)
    assert process.exitcode == STOP_REQUESTED


@pytest.mark.parametrize("address", ["0.0.0.0:0", "tcp://*:0", "[::]:0"])
def test_others_are_let_in_with_a_token_only(address: str, server: str) -> None:
    with pytest.raises(UserError, match="no api_key is given"):
        run({"server": server, "address": address})
    with pytest.raises(UserError, match="empty api_key"):
        run({"server": server, "address": address, "api_key": ""})
    stop = threading.Event()
    if address == "0.0.0.0:0":
        assert run({"server": server, "address": address, "api_key": TOKEN}, lambda _: stop.set(), stop) == 0


def test_what_cannot_start_says_why(server: str, address: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="in use"):
        run({"server": server, "address": address})
    with pytest.raises(ConfigError, match="no such embodiment"):
        run({"server": server, "embodiment": "nothing"})
    with pytest.raises(DeadlineExceeded, match="hello"):
        run({"server": f"ipc://{tmp_path}/nobody", "start_s": 0.1})


class Trap:
    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (self.path,)


def test_garbage_is_answered(client: GrootClient, tmp_path: Path) -> None:
    trap = Trap(str(tmp_path / "opened"))
    good = encode(tiny.observation(1).streams["joint_pos"][:, None])["as_npy"]
    huge = good.replace(b"(1, 1, 4)", b"(9, 9, 9)")
    assert huge != good

    def state(npy: bytes) -> bytes:
        asked = nested(tiny.observation(1))
        asked["state"]["joint_pos"] = {"__ndarray_class__": True, "as_npy": npy}
        return msgpack.packb({"endpoint": "get_action", "data": {"observation": asked}}, default=encode)

    client.raw(state(good))
    garbage = [b"", b"\xc1", b"GET / HTTP/1.1", os.urandom(1000), msgpack.packb([1]), pickle.dumps(trap)]
    for message in [*garbage, state(good[:-1]), state(huge), state(pickle.dumps(trap)), state(b"")]:
        with pytest.raises(ServerError) as caught:
            client.raw(message)
        assert "\n" not in str(caught.value)
    assert not (tmp_path / "opened").exists()
    assert client.ping()["status"] == "ok"


def without(key: str) -> dict[str, Any]:
    asked = flat(tiny.observation(1))
    del asked[key]
    return asked


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        (None, "the observation is no map"),
        ([1], "the observation is no map"),
        (without("video.camera"), "lacks video.camera"),
        ({**flat(tiny.observation(1)), "state.joint_pos": np.zeros((1, 1, 5), np.float32)}, r"\(rows, frames, 4\)"),
        ({**flat(tiny.observation(1)), "state.joint_pos": np.zeros((2, 1, 4), np.float32)}, "the same rows"),
        ({**flat(tiny.observation(1)), "state.joint_pos": np.full((1, 1, 4), np.nan)}, r"finite.*send finite"),
        ({**flat(tiny.observation(1)), "state.joint_pos": [0, 0, 0, 0]}, "no array"),
        ({**flat(tiny.observation(1)), "video.camera": np.zeros((1, 1, 3, 3, 3), np.float32)}, "is float32"),
        (flat(tiny.observation(65)), "has 65 rows"),
        (flat(tiny.observation(200_000)), "a message of"),
        ({**flat(tiny.observation(1)), "state.joint_pos": np.full((1, 1, 4), 1e8)}, "the policy has a bug"),
    ],
)
def test_wrong_observations_are_named(client: GrootClient, asked: Any, says: str) -> None:
    for ask in (client.old, client.new):
        with pytest.raises(ServerError, match=says):
            ask(asked)


def test_clients_at_once_get_their_own_answers(address: str, server: str) -> None:
    def ask(seed: int) -> list[tuple[Observation, NDArray[np.float32]]]:
        with GrootClient(address) as client:
            seen = [tiny.observation(1 + (seed + step) % 3, 100 * seed + step) for step in range(20)]
            return [(one, client.new(nested(one))[0]["joint_vel"]) for one in seen]

    with ThreadPoolExecutor(12) as pool:
        answers = [pair for pairs in pool.map(ask, range(12)) for pair in pairs]
    with closing(RemoteClient(server, timeout_s=20)) as direct:
        for seen, actions in answers:
            np.testing.assert_array_equal(actions, direct.act(seen, seen.rows.noise_keys(0), "mean").actions)


def ask_later(address: str, ask: Callable[[GrootClient], Any]) -> Callable[[], Any]:
    """Ask in a thread; the function returned waits for the answer."""
    pool = ThreadPoolExecutor(1)

    def work() -> Any:
        with GrootClient(address) as client:
            return ask(client)

    future = pool.submit(work)
    pool.shutdown(wait=False)
    return lambda: future.result(60)


def test_a_server_that_stands_still_blocks_no_ping_and_a_full_queue_says_busy(tmp_path: Path) -> None:
    process, _, server = tiny.start_server(f"ipc://{tmp_path}/s")
    try:
        with gateway(server, workers=1, waiting=1) as address, GrootClient(address) as client:
            wanted, _ = client.new(nested(tiny.observation(1)))
            message = msgpack.packb({"data": {"observation": nested(tiny.observation(1))}}, default=encode)
            assert process.pid is not None
            os.kill(process.pid, signal.SIGSTOP)
            poller = zmq.Poller()
            for _ in range(3):
                poller.register(client.connect(), zmq.POLLIN)
            for asking, _ in poller.sockets:
                asking.send(message)
            ((refused, _),) = poller.poll(20_000)
            assert "busy: 1 requests wait already" in msgpack.unpackb(refused.recv())["error"]
            assert client.ping()["status"] == "ok"
            os.kill(process.pid, signal.SIGCONT)
            for asking, _ in list(poller.sockets):
                if asking is not refused:
                    assert asking.poll(20_000)
                    action, _ = msgpack.unpackb(asking.recv(), object_hook=decode)
                    np.testing.assert_array_equal(action["joint_vel"], wanted["joint_vel"])
                asking.close()
    finally:
        tiny.kill(process)


def test_a_client_that_floods_and_never_reads_costs_the_others_nothing(address: str, client: GrootClient) -> None:
    asked = nested(tiny.observation(1))
    message = msgpack.packb({"data": {"observation": asked}}, default=encode)
    context = zmq.Context()
    flood = context.socket(zmq.DEALER)
    flood.linger = 0
    flood.rcvhwm = 1
    flood.connect(address)
    wanted, _ = client.new(asked)
    for _ in range(300):
        flood.send_multipart([b"", message])
    for frames in ([b"x"], [b"a"] * 50, [b"y" * 1000, b"", message]):
        flood.send_multipart(frames)
    for _ in range(5):
        np.testing.assert_array_equal(client.new(asked)[0]["joint_vel"], wanted["joint_vel"])
    assert client.ping()["status"] == "ok"
    context.destroy()


def test_the_policy_server_may_be_restarted(tmp_path: Path) -> None:
    process, _, server = tiny.start_server(f"ipc://{tmp_path}/s")
    with gateway(server) as address:
        asked = nested(tiny.observation(1))
        with GrootClient(address) as client:
            wanted, _ = client.new(asked)
        tiny.kill(process)
        answer = ask_later(address, lambda c: c.new(asked))
        process, _, _ = tiny.start_server(server)
        try:
            np.testing.assert_array_equal(answer()[0]["joint_vel"], wanted["joint_vel"])
        finally:
            tiny.kill(process)


def test_a_policy_server_that_is_gone_is_named(tmp_path: Path) -> None:
    process, _, server = tiny.start_server(f"ipc://{tmp_path}/s")
    values = {"server": server, "address": "127.0.0.1:0", "timeout_s": 1.0}
    stop, lines = threading.Event(), queue.Queue[str]()
    thread = threading.Thread(target=run, args=(values, lines.put, stop))
    thread.start()
    try:
        address = lines.get(timeout=20).rpartition(" at ")[2]
        tiny.kill(process)
        with GrootClient(address) as client:
            with pytest.raises(ServerError, match=r"no answer to act within 1 s.*policy server"):
                client.new(nested(tiny.observation(1)))
            assert client.ping()["status"] == "ok"
    finally:
        stop.set()
        thread.join(20)


def test_it_ends_on_sigterm(server: str) -> None:
    process, _ = start_gateway(server)
    process.terminate()
    process.join(20)
    assert process.exitcode == 0


def test_who_stops_in_mid_message_takes_no_memory_from_others(server: str) -> None:
    """Greetings, and messages that claim more than there is or never end, from sockets that speak no ZeroMQ."""
    greeting = b"\xff" + bytes(8) + b"\x7f\x03\x00NULL" + bytes(16) + bytes(32)
    ready = b"\x05READY\x0bSocket-Type\x00\x00\x00\x03REQ"
    hello = greeting + b"\x04" + bytes([len(ready)]) + ready
    begun = b"\x01\x00\x02" + (4 << 20).to_bytes(8, "big")
    with gateway(server, message_mib=4, connections=8) as address, GrootClient(address) as client:
        host, port = address.removeprefix("tcp://").split(":")
        assert client.ping()["status"] == "ok"
        stuck = [socket.create_connection((host, int(port))) for _ in range(12)]
        for sock in stuck:
            sock.sendall(hello + begun + b"x")
        for older in (b"\xff" + bytes(8) + b"\x7f\x01" + bytes(53), bytes(64)):  # ZMTP 2 and 1
            with socket.create_connection((host, int(port))) as sock:
                sock.settimeout(30)
                with contextlib.suppress(ConnectionError):
                    sock.sendall(older)
                    while sock.recv(64):
                        pass
        with GrootClient(address) as other:
            assert other.ping()["status"] == "ok"
            with pytest.raises(ServerError, match=r"a message of 6\d+ bytes.*set message_mib"):
                other.raw(bytes(6_000_000))
            assert other.ping()["status"] == "ok"
        for sock in stuck:
            sock.close()
