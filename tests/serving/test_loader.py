"""Versions prepared beside the serving thread, on the real thread."""

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from embodied.errors import Busy, InfrastructureError, WeightsRefused
from embodied.serving.loader import Loader
from embodied.serving.versioned_policy import VersionedPolicy
from tests.serving.tiny import TinyPolicy, manifest, observation, tensors


def until(done: Callable[[], bool], loader: Loader) -> None:
    limit = time.monotonic() + 30
    while not done():
        assert time.monotonic() < limit, "nothing came of it"
        loader.tick()
        time.sleep(0.001)


def number(host: VersionedPolicy) -> float:
    seen = observation(1)
    return float(host.act(seen, seen.rows.noise_keys(0), "mean").values[0])


@pytest.mark.parametrize("standby", [True, False])
def test_a_version_is_switched_to_by_tick_only(standby: bool) -> None:
    host = VersionedPolicy(TinyPolicy(), TinyPolicy() if standby else None)
    told: list[Any] = []
    loader, said = Loader(host, lambda *what: told.append(what)), []
    loader.submit(lambda: (manifest(3), tensors(3)), "push", said.append)
    limit = time.monotonic() + 30
    while not loader._ready:
        assert time.monotonic() < limit
        time.sleep(0.001)
    assert host.version == (0, "") and number(host) == 0 and loader.busy
    loader.tick()
    assert host.version == manifest(3).version and number(host) == 3 and not loader.busy
    assert said == [manifest(3).version]
    loader.close()
    assert told == [((0, ""), manifest(3).version, "push")]


def test_versions_follow_each_other_in_order_and_each_is_whole() -> None:
    host = VersionedPolicy(TinyPolicy(), TinyPolicy())
    loader, said = Loader(host), []
    for tag in range(1, 9):
        loader.submit(lambda tag=tag: (manifest(tag), tensors(tag)), "push", said.append)  # type: ignore[misc]
    with pytest.raises(Busy):
        loader.submit(lambda: None, "push")
    until(lambda: len(said) == 8, loader)
    assert said == [manifest(tag).version for tag in range(1, 9)] and number(host) == 8
    loader.close()


def test_whatever_goes_wrong_is_told_and_the_thread_lives() -> None:
    class Breaks(TinyPolicy):
        def load(self, given: Any) -> None:
            if float(given["tag"]) == 5:
                raise MemoryError("no room")
            super().load(given)

    host = VersionedPolicy(Breaks())
    loader, said = Loader(host), []

    def missing() -> None:
        raise FileNotFoundError("gone")

    loader.submit(missing, "push", said.append)
    loader.submit(lambda: (manifest(4), {}), "push", said.append)
    loader.submit(lambda: (manifest(5), tensors(5)), "push", said.append)  # fails in `tick`, without a standby
    loader.submit(lambda: None, "nothing", said.append)
    loader.submit(lambda: (manifest(6), tensors(6)), "push", lambda _: 1 / 0)  # who asked has a bug
    loader.submit(lambda: (manifest(7), tensors(7)), "push", said.append)
    until(lambda: len(said) == 5, loader)
    kinds = [type(one) for one in said]
    assert kinds[:3] == [InfrastructureError, WeightsRefused, InfrastructureError]
    assert said[3] == (0, "") and said[4] == manifest(7).version and host.version == manifest(7).version
    loader.close()


def test_a_rollback_goes_back_only_when_asked_to() -> None:
    host = VersionedPolicy(TinyPolicy(), TinyPolicy())
    loader, said = Loader(host), []
    for tag, back in ((5, False), (3, False), (3, True)):
        loader.submit(lambda tag=tag: (manifest(tag), tensors(tag)), "rollback", said.append, back)  # type: ignore[misc]
    until(lambda: len(said) == 3, loader)
    assert isinstance(said[1], WeightsRefused) and host.version == manifest(3).version and number(host) == 3
    loader.close()


def test_close_finishes_the_job_at_hand_and_refuses_the_line() -> None:
    host = VersionedPolicy(TinyPolicy(), TinyPolicy())
    told: list[Any] = []
    loader, said = Loader(host, lambda *what: told.append(what)), []
    begun, go = threading.Event(), threading.Event()

    def slow() -> Any:
        begun.set()
        go.wait(30)
        return manifest(1), tensors(1)

    loader.submit(slow, "push", said.append)
    loader.submit(lambda: (manifest(2), tensors(2)), "push", said.append)
    assert begun.wait(30)
    threading.Timer(0.05, go.set).start()
    loader.close()
    assert [type(one) for one in said] == [InfrastructureError, type(manifest(1).version)]
    assert "stopping" in said[0].what and host.version == manifest(1).version
    assert [why for _, _, why in told] == ["push"], "the audit holds the last switch too"
    with pytest.raises(InfrastructureError, match="stopping"):
        loader.submit(lambda: None, "push")
    loader.close()


def test_a_load_that_hangs_does_not_keep_the_server_from_ending() -> None:
    loader, go = Loader(VersionedPolicy(TinyPolicy())), threading.Event()
    begun, said = threading.Event(), []  # type: ignore[var-annotated]

    def hangs() -> None:
        begun.set()
        go.wait(30)

    loader.submit(hangs, "push", said.append)
    assert begun.wait(30)
    loader.close(timeout_s=0.05)
    assert [type(one) for one in said] == [InfrastructureError], "who asked is not left without an answer"
    loader.close(timeout_s=1e9)  # nothing is waited for twice
    go.set()


def test_an_audit_that_cannot_be_written_stops_nothing() -> None:
    def full(*_: Any) -> None:
        raise OSError("no space left on device")

    host = VersionedPolicy(TinyPolicy(), TinyPolicy())
    loader, said = Loader(host, full), []
    for tag in (1, 2):
        loader.submit(lambda tag=tag: (manifest(tag), tensors(tag)), "push", said.append)  # type: ignore[misc]
    until(lambda: len(said) == 2, loader)
    loader.close()
    assert host.version == manifest(2).version
