"""`embodied sim-worker`, and the commands over it: trained, stored, resumed and evaluated like our own tasks."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from embodied.cli.sim_worker import parse_options
from embodied.errors import ConfigError
from embodied.monitor.metrics import read_metrics
from tests.cli.command import embodied, one_line, start

ROOT = Path(__file__).parents[2]
PEER = ROOT / ".venvs" / "gymnasium-robotics" / "bin" / "python"
ENV = "gymnasium:tests.simulators.worker.tiny_gym:Tiny-v0"
TASK = [
    "task=fetch_push", "env=worker", f"task.env={ENV}", "rollout.num_envs=4", "rollout.steps=8", "evaluate.every=3",
    "evaluate.episodes=4", "evaluate.final_episodes=4", "evaluate.target=1.01", "checkpoint.every=2",
]  # fmt: skip


@pytest.fixture(autouse=True)
def tiny_envs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers find the tests' environments."""
    paths = [str(ROOT / "tests" / "simulators"), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))


def test_options_are_read() -> None:
    assert parse_options(["a=1", "b=x", "c=[1, true]", "d="]) == {"a": 1, "b": "x", "c": [1, True], "d": None}
    for word in ("a", "=1", "a b=1", "a={"):
        with pytest.raises(ConfigError):
            parse_options([word])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--connect", "ipc:///tmp/x"], "--env"),
        (["--env", ENV, "--connect", "nowhere"], "not an address"),
        (["--env", ENV, "--connect", "tcp://10.0.0.1:5555"], "no credentials are given"),
        (["--env", ENV, "--connect", "ipc:///nonexistent/dir/x"], "mkdir -p /nonexistent/dir"),
        (["--env", "..:x", "--connect", "ipc:///tmp/x"], "names no module"),
        (["--env", ENV, "--connect", "ipc:///tmp/x", "--option", "x"], "write key=value"),
        (["--env", ENV, "--connect", "ipc:///tmp/x", "--idle", "0"], "--idle 0"),
        (
            ["--env", "gymnasium:tests.simulators.worker.tiny_gym:Tyny-v0", "--connect", "ipc:///tmp/x"],
            "did you mean Tiny-v0",
        ),
    ],
)
def test_a_mistake_gets_one_line(words: list[str], said: str, tmp_path: Path) -> None:
    assert said in one_line(embodied("sim-worker", *words, folder=tmp_path))


def evaluated(run: str, folder: Path) -> dict:
    done = embodied("eval", f"run={run}", "episodes=5", "--json", folder=folder)
    assert done.returncode == 0, done.stderr
    result: dict = json.loads(done.stdout.splitlines()[-1])
    assert result["episodes"] == 5 and result["outcomes"]["infrastructure_fault"] == 0
    return result


def trained(*words: str, folder: Path) -> str:
    done = embodied("train", *words, folder=folder)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    """Listen at the address that a worker calls during the test."""
    worker = start("sim-worker", "--env", ENV, "--connect", f"ipc://{tmp_path}/worker", folder=tmp_path)
    yield f"env.address=ipc://{tmp_path}/worker"
    worker.send_signal(signal.SIGTERM)
    worker.communicate(timeout=30)


def test_a_run_is_trained_stored_and_evaluated_over_a_worker(tmp_path: Path, address: str) -> None:
    assert "no video" in trained(*TASK, address, "budget.env_steps=96", "name=a", folder=tmp_path)
    assert evaluated("a", tmp_path)["task"] == "fetch_push"
    listed = embodied("episodes", "ls", "run=a", "mode=evaluation", "limit=1", "--json", folder=tmp_path)
    episode = json.loads(listed.stdout.splitlines()[0])
    assert episode["task"] == "fetch_push"
    for action in ("show", "trace"):
        done = embodied("episodes", action, episode["id"], "run=a", folder=tmp_path)
        assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_a_resumed_run_sees_what_one_that_never_stopped_sees(tmp_path: Path, address: str) -> None:
    trained(*TASK, address, "budget.env_steps=160", "name=a", folder=tmp_path)
    trained(*TASK, address, "budget.env_steps=96", "name=b", folder=tmp_path)
    trained("resume=b", "budget.env_steps=160", folder=tmp_path)
    one, other = (read_metrics(tmp_path / "runs" / run / "metrics.csv") for run in ("a", "b"))
    for name in ("rollout/reward_mean", "rollout/episodes"):
        np.testing.assert_array_equal(one[name], other[name], err_msg=name)
    assert evaluated("a", tmp_path)["actions_digest"] == evaluated("b", tmp_path)["actions_digest"]


@pytest.mark.slow
def test_a_worker_killed_during_training_costs_its_episodes(tmp_path: Path) -> None:
    words = [*TASK, f"env.spawn={sys.executable}", "budget.env_steps=4000", "evaluate.every=1000", "name=k"]
    run = start("train", *words, folder=tmp_path)
    metrics, killed = tmp_path / "runs" / "k" / "metrics.csv", False
    limit = time.monotonic() + 120
    while run.poll() is None and time.monotonic() < limit and not killed:
        time.sleep(0.05)
        if metrics.exists() and len(metrics.read_text().splitlines()) > 5:
            children = subprocess.run(["ps", "-o", "pid=", "--ppid", str(run.pid)], capture_output=True, text=True)
            os.kill(int(children.stdout.split()[0]), signal.SIGKILL)
            killed = True
    said, _ = run.communicate(timeout=120)
    assert run.returncode == 0, said
    assert killed and "is replaced" in said
    faults = read_metrics(metrics)["rollout/faults"]
    assert 1 <= faults[-1] <= 4


@pytest.mark.peer
@pytest.mark.skipif(not PEER.exists(), reason="make peer-gymnasium-robotics makes it")
def test_fetch_push_is_trained_recorded_and_evaluated(tmp_path: Path) -> None:
    words = [
        "experiment=fetch_push", f"env.spawn={PEER}", "rollout.num_envs=8", "evaluate.every=5",
        "evaluate.episodes=4", "evaluate.final_episodes=4", "budget.env_steps=2000",
    ]  # fmt: skip
    done = embodied("train", *words, "name=fetch", folder=tmp_path, timeout=280)
    assert done.returncode == 0, done.stderr
    first, again = (evaluated("fetch", tmp_path) for _ in range(2))
    assert first == again and first["steps_mean"] == 50
    listed = embodied("episodes", "ls", "run=fetch", "mode=evaluation", "limit=1", "--json", folder=tmp_path)
    shown = embodied("episodes", "show", json.loads(listed.stdout.splitlines()[0])["id"], "run=fetch", folder=tmp_path)
    assert "achieved_goal: float32 [51, 3]" in shown.stdout, shown.stdout
