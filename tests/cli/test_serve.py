"""`embodied serve` in one process and `embodied eval` in another: the same actions as inline."""

import json
import signal
from pathlib import Path

import numpy as np
import pytest

from embodied.monitor.metrics import read_metrics
from tests.cli.command import SMALL, embodied, one_line, start


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("serve")
    done = embodied("train", *SMALL, "budget.env_steps=512", "name=a", folder=folder)
    assert done.returncode == 0, done.stderr
    return folder


def measured(folder: Path, *words: str) -> dict[str, object]:
    done = embodied("eval", "run=a", "episodes=20", "threads=1", "--json", *words, folder=folder)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("transport", ["ipc", "tcp"])
def test_served_evaluation_equals_inline(root: Path, tmp_path: Path, transport: str) -> None:
    address = f"ipc://{tmp_path}/policy" if transport == "ipc" else "tcp://127.0.0.1:47613"
    server = start("serve", "run=a", f"address={address}", folder=root)
    try:
        served = measured(root, "client=remote", f"client.address={address}", "client.timeout_s=60")
    finally:
        server.send_signal(signal.SIGTERM)
        said, _ = server.communicate(timeout=30)
    assert address in said
    assert server.returncode == 0, said
    inline = measured(root)
    assert inline == served
    assert inline["policy_versions"] == [3]


def test_a_run_differs_in_one_key(root: Path, tmp_path: Path) -> None:
    """Training through a server gives the numbers of training inline: weights pushed, actions fetched."""
    address = f"ipc://{tmp_path}/policy"
    server = start("serve", "run=null", "task=reach", "env.num_threads=1", f"address={address}", folder=tmp_path)
    try:
        words = [*SMALL, "budget.env_steps=512", "name=r", "client=remote", f"client.address={address}"]
        done = embodied("train", *words, "client.timeout_s=60", folder=tmp_path)
    finally:
        server.send_signal(signal.SIGTERM)
        server.communicate(timeout=30)
    assert done.returncode == 0, done.stderr
    inline, remote = (read_metrics(f / "metrics.csv") for f in (root / "runs" / "a", tmp_path / "runs" / "r"))
    for name, column in inline.items():
        if not name.startswith("wall/"):
            np.testing.assert_array_equal(remote[name], column, err_msg=name)


def test_a_server_of_another_policy_is_refused(tmp_path: Path) -> None:
    address = f"ipc://{tmp_path}/policy"
    server = start("serve", "run=null", "task=reach", "policy.hidden=[8]", f"address={address}", folder=tmp_path)
    try:
        words = ["name=r", "client=remote", f"client.address={address}", "client.timeout_s=60"]
        said = one_line(embodied("train", *SMALL, *words, folder=tmp_path))
    finally:
        server.send_signal(signal.SIGTERM)
        server.communicate(timeout=30)
    assert "the server's policy has extra.hidden" in said and address in said
    assert not (tmp_path / "runs" / "r").exists()


def test_a_port_in_use_gets_one_line(root: Path, tmp_path: Path) -> None:
    address = "tcp://127.0.0.1:47614"
    first = start("serve", "run=a", f"address={address}", folder=root)
    try:
        assert first.stdout is not None
        assert address in first.stdout.readline()
        second = embodied("serve", "run=a", f"address={address}", folder=root)
    finally:
        first.send_signal(signal.SIGTERM)
        first.communicate(timeout=30)
    assert second.returncode in (2, 3)
    assert "47614" in one_line(second, second.returncode)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["eval", "run=b"], "known: a"),
        (["eval", "run=a", "version=77"], "versions kept"),
        (["eval", "run=a", "version=new"], "version"),
        (["eval", "run=a", "episodes=0"], "episodes"),
        (["eval", "run=a", "episode=3"], "did you mean episodes"),
        (["serve", "run=a", "address=udp://1"], "udp"),
        (["serve", "run=a", "address=tcp://0.0.0.0:47615"], "credentials"),
        (["episodes", "ls", "run=zzz"], "no run zzz"),
        (["episodes", "show", "x", "run=a"], "no episode x"),
        (["episodes", "list"], "did you mean ls"),
        (["episodes", "ls", "run=a", "--jsn"], "unknown flag '--jsn'"),
        (["episodes", "ls", "run=a", "mode=eval"], "did you mean evaluation"),
        (["eval", "run=a", "client=remote"], "client.address has no value"),
    ],
)
def test_a_mistake_gets_one_line(root: Path, words: list[str], said: str) -> None:
    result = embodied(*words, folder=root)
    assert result.returncode in (2, 3)
    assert said in one_line(result, result.returncode)
