"""Cores and memory that a process may use."""

from pathlib import Path

import pytest

from embodied import machine


@pytest.mark.parametrize(
    ("threads", "busy", "said"),
    [(1, 9.0, ""), (2, 0.3, ""), (2, 3.0, "other programs keep 3.0 of 2 cores busy"), (4, 0.0, "may use 2 cores")],
)
def test_threads_without_free_cores_are_said(
    monkeypatch: pytest.MonkeyPatch, threads: int, busy: float, said: str
) -> None:
    monkeypatch.setattr(machine.os, "sched_getaffinity", lambda pid: {0, 1})
    monkeypatch.setattr(machine.os, "getloadavg", lambda: (busy, 0.0, 0.0))
    line = machine.crowded(threads, "runtime.threads")
    assert said in line and bool(line) == bool(said)
    assert not line or "give runtime.threads=1" in line


def test_a_container_with_less_than_a_core_has_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(machine, "CGROUP", tmp_path)
    (tmp_path / "cpu.max").write_text("50000 100000")
    assert machine.usable_cores() == 1


def test_memory_in_use_in_a_container_is_not_free(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(machine, "CGROUP", tmp_path)
    (tmp_path / "memory.max").write_text("1000000")
    (tmp_path / "memory.current").write_text("400000")
    assert machine.free_memory() == 600_000
