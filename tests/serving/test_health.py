"""The pages about a server, asked over real sockets, by the polite and by others."""

import http.client
import json
import os
import resource
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from embodied.errors import UserError
from embodied.runtime.slots import push_slots
from embodied.serving import health
from embodied.serving.health import HealthServer, judge
from embodied.serving.metrics_page import MetricsPage, number
from embodied.serving.server import PolicyServer
from embodied.serving.versioned_policy import VersionedPolicy
from tests.serving.tiny import TinyPolicy

STATE: dict[str, Any] = {
    "taken": 100.0, "ready": True, "draining": False, "computing_since": None, "sessions": 3,
    "refused": {"errors": 5, "busy": 1},
    "policies": {
        "reach": {
            "policy": "tiny", "number": 12, "hash": "ab12cd34ef56", "waiting": 2, "batch_ms": 4.0,
            "counts": {"requests": 100, "rows": 800, "batches": 40, "switches": 2, "errors": 1, "busy": 3, "late": 4},
            "outcomes": {"12": [0, 7, 2, 0, 0, 0, 0]},
            "latency": {"buckets": [0.001, 0.01], "counts": [10, 80, 10], "sum": 0.5, "count": 100},
            "active": "13-0123456789ab", "held": {"by": "ops"}, "pinned": "",
            "followers": {"arm \"1\"\n": {"serving": "11-aaaaaaaaaaaa", "heard_s": 0.7}, "new": {"serving": ""}},
        }
    },
}  # fmt: skip


@pytest.fixture
def state() -> dict[str, Any]:
    return dict(STATE)


@pytest.fixture
def page(state: dict[str, Any]) -> Iterator[Callable[..., tuple[int, str]]]:
    """Asks a health page with `state` behind it."""
    server = HealthServer(":0", lambda: state, clock=lambda: 101.0)
    host, _, port = server.start().rpartition(":")
    assert host == "127.0.0.1"

    def ask(path: str, method: str = "GET") -> tuple[int, str]:
        connection = http.client.HTTPConnection(host, int(port), timeout=20)
        try:
            connection.request(method, path)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        finally:
            connection.close()

    ask.port = int(port)  # type: ignore[attr-defined]
    yield ask
    server.close()


def raw(port: int, data: bytes) -> bytes:
    """Answer to bytes that may be no HTTP."""
    with socket.create_connection(("127.0.0.1", port), timeout=20) as sock:
        try:
            sock.sendall(data)
            heard = b""
            while more := sock.recv(65536):
                heard += more
        except ConnectionError:
            pass
    return heard


def test_health_says_why_not(page: Callable[..., tuple[int, str]], state: dict[str, Any]) -> None:
    assert page("/healthz") == (200, "ok\n")
    state["ready"] = False
    assert page("/healthz") == (503, "starting: it is not ready yet\n")
    state["draining"] = True
    assert page("/healthz")[1].startswith("draining")
    state.update(ready=True, draining=False, taken=90.0)
    assert page("/healthz") == (
        503, "hanging: the serving thread was last heard 11.0 s ago; it was not computing\n")  # fmt: skip
    state["computing_since"] = 89.5
    assert "it has been computing a batch for 11.5 s" in page("/healthz")[1]
    state.clear()
    assert page("/healthz")[0] == 503


def test_status_is_the_snapshot(page: Callable[..., tuple[int, str]], state: dict[str, Any]) -> None:
    status, text = page("/status?pretty")
    assert status == 200 and json.loads(text) == STATE


def test_metrics(page: Callable[..., tuple[int, str]]) -> None:
    status, text = page("/metrics")
    assert status == 200
    found = {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    reach = ("policy", "reach")
    for name, value in STATE["policies"]["reach"]["counts"].items():
        assert found[f"embodied_{name}_total", reach] == value
    arm = ("follower", 'arm "1"\n')
    for key, value in {
        ("embodied_errors_total", ("policy", "")): 5,
        ("embodied_ready",): 1,
        ("embodied_draining",): 0,
        ("embodied_sessions",): 3,
        ("embodied_snapshot_age_seconds",): 1,
        ("embodied_computing_seconds",): 0,
        ("embodied_queue_requests", reach): 2,
        ("embodied_batch_seconds", reach): 0.004,
        ("embodied_policy_version", reach): 12,
        ("embodied_policy_held", reach): 1,
        ("embodied_policy_pinned", reach): 0,
        ("embodied_policy_info", ("active", "13-0123456789ab"), reach, ("serving", "12-ab12cd34ef56")): 1,
        ("embodied_follower_version", arm, reach): 11,
        ("embodied_follower_age_seconds", arm, reach): 0.7,
        ("embodied_answer_seconds_bucket", ("le", "0.001"), reach): 10,
        ("embodied_answer_seconds_bucket", ("le", "0.01"), reach): 90,
        ("embodied_answer_seconds_bucket", ("le", "+Inf"), reach): 100,
        ("embodied_answer_seconds_count", reach): 100,
        ("embodied_answer_seconds_sum", reach): 0.5,
        ("embodied_outcomes_total", ("outcome", "success"), reach, ("version", "12")): 7,
    }.items():
        assert found[key] == value, key
    assert any(name[0] == "embodied_build_info" for name in found)
    assert found[("process_resident_memory_bytes",)] > 1e6


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=4,
)
KEYS = [*STATE, *STATE["policies"]["reach"]]


@settings(deadline=None, max_examples=80)
@given(changed=st.dictionaries(st.sampled_from(KEYS), anything, max_size=5), gone=st.sets(st.sampled_from(KEYS)))
def test_no_snapshot_breaks_the_metrics(changed: dict[str, Any], gone: set[str]) -> None:
    policy = {key: value for key, value in {**STATE["policies"]["reach"], **changed}.items() if key not in gone}
    spoilt = {key: value for key, value in {**STATE, "policies": {"reach": policy}}.items() if key not in gone}
    for snapshot in (spoilt, {**spoilt, **changed}):
        text = MetricsPage(lambda s=snapshot: s, lambda: 0.0).render()[1].decode()
        assert list(text_string_to_metric_families(text))
        assert judge(snapshot, 0.0, 10.0)[0] in (200, 503)


def test_numbers() -> None:
    for value in (10**400, float("nan"), True, "1", None, [1]):
        assert number(value) is None
    assert number(2) == 2.0


def test_other_requests(page: Callable[..., tuple[int, str]]) -> None:
    assert page("/healthz", "HEAD") == (200, "")
    assert page("/")[0] == page("/metrics/../etc/passwd")[0] == 404
    assert page("/healthz", "POST")[0] == page("/status", "DELETE")[0] == 405
    assert b"Content-Length: 3\r\n" in raw(page.port, b"HEAD /healthz HTTP/1.1\r\n\r\n")  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"\r\n\r\n", b" 400 "),
        (b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n", b" 400 "),
        (b"GET /healthz\r\n\r\n", b" 400 "),
        (b"GET  /healthz  HTTP/1.1\r\n\r\n", b" 400 "),
        (b"GET /healthz SPDY/3\r\n\r\n", b" 400 "),
        (b"GET /" + b"a" * 20_000 + b" HTTP/1.1\r\n\r\n", b" 431 "),
        (b"GET /healthz HTTP/1.1\r\n" + b"X-A: 1\r\n" * 20_000 + b"\r\n", b" 431 "),
        (b"GET /healthz HTTP/1.1\r\n\r\n" + b"b" * 200_000, b" 200 "),
        (b"GET /healthz HTTP/1.1\r\nContent-Length: 99999999999\r\n\r\n", b" 200 "),
    ],
)
def test_what_is_no_proper_request(page: Callable[..., tuple[int, str]], data: bytes, said: bytes) -> None:
    assert said in raw(page.port, data).split(b"\r\n")[0]  # type: ignore[attr-defined]
    assert page("/healthz")[0] == 200


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    server = HealthServer(":0", lambda: STATE)
    yield int(server.start().rpartition(":")[2])
    server.close()


@settings(deadline=None, max_examples=30)
@given(data=st.binary(max_size=200))
def test_garbage_ends_in_an_answer(port: int, data: bytes) -> None:
    assert b"HTTP/1.1 " in raw(port, data + b"\r\n\r\n")


def test_who_lingers_makes_way(page: Callable[..., tuple[int, str]]) -> None:
    port = page.port  # type: ignore[attr-defined]
    silent = [socket.create_connection(("127.0.0.1", port), timeout=20) for _ in range(40)]
    try:
        for sock in silent[-8:]:
            sock.sendall(b"GET /heal")
        assert page("/healthz")[0] == 200
        assert silent[0].recv(1) == b"", "the oldest was let go"
        threads = threading.active_count()
        assert page("/metrics")[0] == 200 and threading.active_count() == threads
    finally:
        for sock in silent:
            sock.close()


def test_it_answers_when_no_descriptor_is_left(port: int) -> None:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    with ExitStack() as files:
        asking = [files.enter_context(socket.socket()) for _ in range(3)]
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (64 + len(list(Path("/proc/self/fd").iterdir())), limits[1]))
            with suppress(OSError):
                while True:
                    files.enter_context(Path(os.devnull).open())
            for sock in asking:
                sock.settimeout(5.0)
                sock.connect(("127.0.0.1", port))
                sock.sendall(b"GET /healthz HTTP/1.1\r\n\r\n")
                assert sock.recv(1000).startswith(b"HTTP/1.1 ")
                sock.close()
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_slow_requests_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "_TIME_S", 0.3)
    server = HealthServer(":0", lambda: STATE)
    port = int(server.start().rpartition(":")[2])
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=20) as sock:
            end = time.monotonic() + 20
            with pytest.raises(ConnectionError):
                while time.monotonic() < end:  # one byte at a time never ends the wait
                    sock.sendall(b"x")
                    time.sleep(0.02)
        with socket.create_connection(("127.0.0.1", port), timeout=20) as silent:
            assert silent.recv(1) == b""
    finally:
        server.close()


def test_one_who_never_reads_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "_TIME_S", 0.3)
    server = HealthServer(":0", lambda: {"text": "x" * 30_000_000})
    port = int(server.start().rpartition(":")[2])
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=20) as deaf:
            deaf.sendall(b"GET /status HTTP/1.1\r\n\r\n")
            end = time.monotonic() + 20
            while server._connections or not server._pages:
                assert time.monotonic() < end
                time.sleep(0.02)
    finally:
        server.close()


def test_a_snapshot_that_fails_is_an_answer() -> None:
    server = HealthServer(":0", lambda: {}["x"])
    port = int(server.start().rpartition(":")[2])
    try:
        for path in (b"healthz", b"metrics", b"status"):
            assert b" 500 " in raw(port, b"GET /" + path + b" HTTP/1.1\r\n\r\n").split(b"\r\n")[0]
    finally:
        server.close()


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("0.0.0.0:80", "for this machine only"), ("192.0.2.1:80", "for this machine only"),
        ("[::]:80", "for this machine only"), ("robot.lan:80", "for this machine only"), ("8080", "write host:port"),
        ("127.0.0.1:99999", "write host:port"), ("http://127.0.0.1:80", "write host:port"), ("", "write host:port"),
    ],
)  # fmt: skip
def test_addresses_of_the_page(address: str, said: str) -> None:
    with pytest.raises(UserError, match=said) as caught:
        HealthServer(address, dict)
    assert "\n" not in caught.value.line()


def test_a_port_in_use_and_a_page_that_ends() -> None:
    first = HealthServer("localhost:0", dict)
    address = first.start()
    with pytest.raises(UserError, match="cannot be listened on by process"):
        HealthServer(address, dict).start()
    first.close()
    again = HealthServer(address, dict)
    assert again.start() == address
    again.close()


def test_without_prometheus_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(UserError, match=r"\[serve\]"):
        HealthServer(":0", dict)


def test_a_real_server_starts_is_well_hangs_and_ends() -> None:
    made = PolicyServer(push_slots(VersionedPolicy(TinyPolicy())), "tcp://127.0.0.1:0")
    assert "starting" in judge(made.snapshot, time.monotonic(), 10.0)[1]
    stop = threading.Event()
    thread = threading.Thread(target=made.run, args=(stop,))
    thread.start()
    end = time.monotonic() + 30
    while not made.snapshot["ready"]:
        assert time.monotonic() < end
        time.sleep(0.01)
    snapshot = made.snapshot
    assert judge(snapshot, snapshot["taken"] + 9, 10.0) == (200, "ok")
    assert judge(snapshot, snapshot["taken"] + 11, 10.0)[0] == 503
    text = MetricsPage(lambda: snapshot).render()[1].decode()
    assert 'embodied_requests_total{policy="tiny"} 0.0' in text
    assert 'embodied_answer_seconds_count{policy="tiny"} 0.0' in text
    stop.set()
    thread.join(30)
    assert "draining" in judge(made.snapshot, time.monotonic(), 10.0)[1]
