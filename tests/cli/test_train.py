"""`embodied train` as a user meets it: what a run leaves, that it repeats, that it survives, and its errors."""

import csv
import json
import random
import shutil
import signal
import time
from pathlib import Path

import pytest

from embodied.buffer.store import EpisodeStore
from embodied.monitor.metrics import read_metrics
from embodied.runs.checkpoint import checkpoints
from embodied.weights.registry import Registry
from tests.cli.command import SMALL, embodied, launch, one_line, start

BUDGET = ["budget.env_steps=2560"]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two finished runs of one seed: `a` of a process, and `b` of this one."""
    folder = tmp_path_factory.mktemp("train")
    for name, command in (("a", launch), ("b", embodied)):
        done = command("train", *SMALL, *BUDGET, f"name={name}", "seed=3", folder=folder)
        assert done.returncode == 0, done.stderr
    return folder


def test_run_leaves_every_file(root: Path) -> None:
    run = root / "runs" / "a"
    names = {path.name for path in run.iterdir()}
    wanted = {"config.yaml", "metrics.csv", "tensorboard", "summary.json", "success.png", "checkpoints", "episodes"}
    assert wanted | {"weights"} <= names
    assert (root / "runs" / "latest").resolve() == (root / "runs" / "b").resolve()
    summary = json.loads((run / "summary.json").read_text())
    keys = {
        "success_rate",
        "success_ci95",
        "episodes",
        "env_steps",
        "wall_s",
        "env_steps_per_s",
        "policy_version",
        "best",
    }
    assert keys <= set(summary)
    assert (summary["episodes"], summary["env_steps"]) == (8, 2560)


def test_metrics_have_what_a_reader_needs(root: Path) -> None:
    names = set(read_metrics(root / "runs" / "a" / "metrics.csv"))
    assert {
        "wall/step_s", "wall/physics_s", "wall/inference_s", "wall/learning_s", "wall/storage_s",
        "wall/fresh_trajectories_per_s", "wall/rewards_per_s", "wall/weight_sync_s", "wall/weight_sync_mb_per_s",
        "wall/success_per_core_hour", "rollout/version_lag_p50", "rollout/version_lag_max", "rollout/dropped_share",
        "eval/success_rate", "learner/version",
    } <= names  # fmt: skip


def test_a_seed_repeats_but_for_wall_clock(root: Path) -> None:
    rows = []
    for name in ("a", "b"):
        with (root / "runs" / name / "metrics.csv").open() as file:
            rows.append([{k: v for k, v in row.items() if not k.startswith("wall/")} for row in csv.DictReader(file)])
    assert len(rows[0]) > 5
    assert rows[0] == rows[1]


def test_an_episode_can_be_traced(root: Path) -> None:
    listed = embodied("episodes", "ls", "run=a", "mode=train", "--json", folder=root)
    first = json.loads(listed.stdout.splitlines()[0])
    traced = embodied("episodes", "trace", first["id"], "run=a", "--json", folder=root)
    found = json.loads(traced.stdout)
    assert found["agents"]["robot"]["reward"]["version"] == "reach/dense/1"
    assert found["agents"]["robot"]["log_probs"]["finite_share"] == 1.0
    assert [u["update"] for u in found["updates"]] == [int(s.split("/")[-1]) for s in found["segments"]]


def kill_and_resume(folder: Path, name: str, after_s: float) -> None:
    """Kill a run with -9 `after_s` after its first version, resume it, and check what must hold."""
    run = folder / "runs" / name
    process = start("train", *SMALL, "budget.env_steps=12800", f"name={name}", folder=folder)
    deadline = time.monotonic() + 60
    while not (run / "metrics.csv").exists() and time.monotonic() < deadline and process.poll() is None:
        time.sleep(0.02)
    time.sleep(after_s)
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=30)
    before = Registry(run / "weights").ls()
    stored = EpisodeStore(run / "episodes").ids()
    resumed = embodied("train", f"resume={name}", folder=folder)
    assert resumed.returncode == 0, resumed.stderr
    after = Registry(run / "weights").ls()
    store = EpisodeStore(run / "episodes")
    assert store.verify() == []
    assert set(stored) <= set(store.ids())
    assert len(list(store.iterate())) == len(store)
    if before:
        assert after[-1].version.number > before[-1].version.number
        published = [line["version"] for line in Registry(run / "weights").audit() if line["event"] == "publish"]
        numbers = [int(label.split("-")[0]) for label in published]
        assert numbers == sorted(set(numbers))
    steps = read_metrics(run / "metrics.csv")["step"]
    assert steps == [float(i) for i in range(len(steps))]
    assert json.loads((run / "summary.json").read_text())["env_steps"] == 12800


@pytest.mark.parametrize("number", range(2))
def test_killed_run_resumes(tmp_path: Path, number: int) -> None:
    kill_and_resume(tmp_path, f"k{number}", random.Random(time.time_ns()).uniform(0.0, 4.0))


@pytest.mark.slow
@pytest.mark.parametrize("number", range(20))
def test_killed_run_resumes_at_many_moments(tmp_path: Path, number: int) -> None:
    kill_and_resume(tmp_path, f"k{number}", random.Random(time.time_ns()).uniform(0.0, 6.0))


def test_resumed_run_goes_on_bit_for_bit(root: Path, tmp_path: Path) -> None:
    """A run stopped at its budget and resumed with a larger one learns what one without a stop learns."""
    short = embodied("train", *SMALL, "budget.env_steps=1536", "name=c", "seed=3", folder=tmp_path)
    assert short.returncode == 0, short.stderr
    longer = embodied("train", "resume=c", "budget.env_steps=2560", folder=tmp_path)
    assert longer.returncode == 0, longer.stderr
    whole, resumed = (read_metrics(f / "metrics.csv") for f in (root / "runs" / "a", tmp_path / "runs" / "c"))
    for name in ("learner/policy_loss", "rollout/reward_mean", "rollout/env_steps"):
        assert resumed[name][-4:] == whole[name][-4:], name


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["task=reech"], "did you mean reach"),
        (["policy=mpl"], "did you mean mlp"),
        (["tsak=reach"], "did you mean task"),
        (["rollout.num_env=3"], "rollout.num_envs"),
        (["rollout.num_envs=many"], "rollout.num_envs"),
        (["rollout.num_envs=0"], "rollout.num_envs"),
        (["algo.lrr=1"], "did you mean lr"),
        (["algo.lr=fast"], "algo.lr"),
        (["policy._target_=policies.mlp.bild"], "policies.mlp.bild"),
        (["task.reward=none"], "reward"),
        (["algo=bc"], "warm_start.demonstrations"),
        (["resume=nothing"], "no run nothing"),
        (["name=../x"], "name"),
        (["seed"], "key=value"),
        (["client=remote", "client.address=ipc:///tmp/embodied-nobody", "client.timeout_s=1"], "policy server"),
        (["client.address=ipc:///nowhere/x", "client=remote"], "mkdir -p /nowhere"),
        (["policy.hidden=[999999999]"], "GB of memory are free (policy): choose smaller layers"),
        (["policy.hidden=[99999999999]"], "GB of memory are free (policy): choose smaller layers"),
        (["+env.foo=1"], "no option 'foo' (env.foo)"),
        (["+task.foo=1"], "no option 'foo' (task.foo)"),
        ([f"warm_start.weights={__file__}"], f"(warm_start.weights={__file__})"),
    ],
)
def test_a_mistake_gets_one_line(tmp_path: Path, words: list[str], said: str) -> None:
    small = [word for word in SMALL if not word.startswith("algo.")] if "algo=bc" in words else SMALL
    result = embodied("train", *small, *words, folder=tmp_path)
    line = one_line(result, status=3 if words[0] == "client=remote" else 2)
    assert said in line


def test_a_refused_start_or_resume_leaves_nothing_changed(root: Path, tmp_path: Path) -> None:
    one_line(embodied("train", *SMALL, "name=x", "policy.hidden=[0]", folder=tmp_path))
    assert not (tmp_path / "runs" / "x").exists()
    config = (root / "runs" / "b" / "config.yaml").read_bytes()
    said = one_line(embodied("train", "resume=b", "rollout.num_envs=8", "budget.env_steps=99999", folder=root))
    assert "16 environments" in said
    assert (root / "runs" / "b" / "config.yaml").read_bytes() == config


def test_a_run_killed_before_its_first_checkpoint_or_terminated_resumes(tmp_path: Path) -> None:
    run = tmp_path / "runs" / "t"
    process = start("train", *SMALL, "budget.env_steps=128000", "name=t", folder=tmp_path)
    deadline = time.monotonic() + 60
    while not checkpoints(run / "checkpoints") and time.monotonic() < deadline and process.poll() is None:
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    said, _ = process.communicate(timeout=30)
    assert process.returncode == 130
    assert (
        said.splitlines()[-1]
        == "embodied: interrupted; `embodied train resume=runs/t` goes on from the last checkpoint"
    )
    shutil.rmtree(run / "checkpoints")
    done = embodied("train", "resume=runs/t", "budget.env_steps=512", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert read_metrics(run / "metrics.csv")["step"] == [0.0, 1.0, 2.0]


def test_an_existing_run_is_never_overwritten(root: Path) -> None:
    assert "exists" in one_line(embodied("train", *SMALL, "name=a", folder=root))


def test_a_checkpoint_of_another_spec_is_refused(root: Path) -> None:
    line = one_line(embodied("train", "resume=b", "policy.hidden=[8]", "budget.env_steps=99999", folder=root))
    assert "hidden" in line


def test_damaged_checkpoints_are_named(tmp_path: Path) -> None:
    done = embodied("train", *SMALL, "budget.env_steps=512", "name=d", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    for file in (tmp_path / "runs" / "d" / "checkpoints").glob("*/learner.pt"):
        file.write_bytes(file.read_bytes()[:-100])
    line = one_line(embodied("train", "resume=d", "budget.env_steps=1024", folder=tmp_path), status=3)
    assert "learner.pt" in line
