"""A run stops before it publishes where the server decides with something else than the learner's weights."""

import csv
import math
import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from embodied.cli.compose import compose_config
from embodied.client import LocalClient
from embodied.errors import RolloutMismatch
from embodied.runtime.train import train
from embodied.serving.versioned_policy import VersionedPolicy
from embodied.train import parts
from policies.base import Policy
from policies.film import FiLMPolicy
from policies.mlp import MLPPolicy
from tests.cli.command import embodied, one_line, start
from tests.learning.planted import AlteringClient, FiLMMirrored, MLPAltered, MLPHalf, MLPOtherScale, sharp

TINY = [
    "rollout.num_envs=4", "rollout.steps=8", "evaluate.episodes=2", "evaluate.every=100", "evaluate.final_episodes=2",
    "checkpoint.every=100", "algo.epochs=1", "algo.minibatches=1", "render.episodes=0", "env.num_threads=1",
    "runtime.threads=1",
]  # fmt: skip
MLP = [*TINY, "task=reach", "policy.hidden=[16]", "policy.init_std=0.05"]
FILM = [
    *TINY, "task=reach_color", "policy=film", "env.cameras=[front]", "env.pixels=32", "render=ray",
    "policy.channels=[8,8]", "policy.width=16", "policy.hidden=16", "policy.init_std=0.05", "policy.chunk=2",
]  # fmt: skip
METRICS = ("drift", "ratio", "kl", "ess")


def run_in(folder: Path, words: list[str], name: str) -> Path:
    given = [*words, f"name={name}", f"runs={folder}"]
    return train(compose_config("train", given), given)


def rows(folder: Path, name: str) -> list[dict[str, str]]:
    with (folder / name / "metrics.csv").open() as file:
        return list(csv.DictReader(file))


def assert_sound(folder: Path, name: str, steps: int) -> None:
    found = [row for row in rows(folder, name) if row["learner/drift_at_start"]]
    assert len(found) == steps
    for row in found:
        drift, ratio, kl, ess = (float(row[f"learner/{metric}_at_start"]) for metric in METRICS)
        assert drift < 1e-3 and abs(kl) < 1e-3
        assert math.isclose(ratio, 1.0, abs_tol=1e-3) and math.isclose(ess, 1.0, abs_tol=1e-3)


def planted(
    monkeypatch: pytest.MonkeyPatch, kind: type[Any], client: Callable[[VersionedPolicy], LocalClient] = LocalClient
) -> None:
    """Let runs be served by a policy of another kind, and have policies whose actions depend on what they see."""
    own = parts.make_policy

    def sharpened(*given: Any) -> Policy:
        policy: Policy = sharp(own(*given))
        return policy

    def served(serve: Any, policy: Any, env: Any, debug: bool) -> LocalClient:
        policy.__class__ = kind
        return client(VersionedPolicy(policy))

    monkeypatch.setattr(parts, "make_policy", sharpened)
    monkeypatch.setattr(parts, "make_client", served)


@pytest.mark.parametrize(("words", "kind"), [(MLP, MLPPolicy), (FILM, FiLMPolicy)], ids=["mlp", "film"])
def test_a_sound_run_has_no_drift(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], kind: type[Any]
) -> None:
    planted(monkeypatch, kind)
    assert run_in(tmp_path, [*words, "budget.env_steps=96"], "sound").is_dir()
    assert_sound(tmp_path, "sound", 3)


def test_carried_decisions_train_and_are_no_drift(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    planted(monkeypatch, FiLMPolicy)
    words = [*FILM, "policy.chunk=4", "rollout.steps=6", "budget.env_steps=96"]
    assert run_in(tmp_path, words, "carried").is_dir()
    assert_sound(tmp_path, "carried", 4)
    found = rows(tmp_path, "carried")[1:]
    assert [float(row["rollout/dropped_share"]) for row in found] == [0.0] * 4
    assert [float(row["rollout/version_lag_max"]) for row in found] == [0.0, 1.0, 0.0, 1.0]


BIAS = r"parameter actor\.2\.bias differs on the server, and no other of \d+;"
STATE = r"preprocessing step state differs, by up to [\d.]+;"
PICTURES = r"preprocessing step pictures/front_rgb differs, by up to \d+;"
DTYPE = "the dtype of computation is bfloat16 on the server, float32 in the learner;"
DATA = "nothing differs that can be seen; the rollout's data were altered on the way;"
CASES = {
    "parameter": (MLP, MLPAltered, LocalClient, BIAS),
    "step": (MLP, MLPOtherScale, LocalClient, STATE),
    "pictures": (FILM, FiLMMirrored, LocalClient, PICTURES),
    "dtype": (MLP, MLPHalf, LocalClient, DTYPE),
    "data": (MLP, MLPPolicy, AlteringClient, DATA),
}


@pytest.mark.parametrize("case", CASES)
def test_what_is_planted_is_refused_before_it_is_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    words, kind, client, said = CASES[case]
    planted(monkeypatch, kind, client)
    with pytest.raises(RolloutMismatch) as caught:
        run_in(tmp_path, [*words, "budget.env_steps=96"], "stopped")
    line = caught.value.line()
    assert re.search(said, line), line
    assert re.match(
        r"log-probabilities of rollouts drift by [\d.e+]+ .* allowed are 0.01 \(version 1, segment sim-0/0/", line
    )
    assert line.endswith(f"`embodied train resume={tmp_path / 'stopped'}`") and "\n" not in line
    run = tmp_path / "stopped"
    assert len(list((run / "weights").glob("*/*-*/manifest.json"))) == 1
    assert [path.name for path in (run / "checkpoints").iterdir() if path.is_dir()] == ["00000000"]
    assert len(rows(tmp_path, "stopped")) == 1
    monkeypatch.undo()
    if case == "parameter":  # mended, it goes on from its checkpoint
        given = [f"runs={tmp_path}", "resume=stopped", "budget.env_steps=64"]
        assert train(compose_config("train", given), given).is_dir()
        assert_sound(tmp_path, "stopped", 2)


def test_without_the_check_the_drift_is_still_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    planted(monkeypatch, MLPAltered)
    assert run_in(tmp_path, [*MLP, "budget.env_steps=32", "algo.drift=0"], "shown").is_dir()
    assert float(rows(tmp_path, "shown")[-1]["learner/drift_at_start"]) > 0.01


SERVED = {
    "altered": (MLP, "planted.serve_altered", BIAS),
    "half": (MLP, "planted.serve_half", DTYPE),
    "mirrored": (FILM, "planted.serve_mirrored", PICTURES),
    "mlp": (MLP, None, ""),
    "film": (FILM, None, ""),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", SERVED)
def test_through_a_server_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str) -> None:
    words, target, said = SERVED[case]
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1] / "learning"))
    address = f"ipc://{tmp_path}/policy"
    made = [word for word in words if word.startswith(("task", "policy", "env"))]
    other = [f"policy._target_={target}"] if target else []
    server = start("serve", "run=null", *made, *other, f"address={address}", folder=tmp_path)
    sharper = ["warm_start.demonstrations=4", "warm_start.clone.steps=200", "warm_start.clone.initial_std=0.02"]
    try:
        given = [*words, *sharper, "client=remote", f"client.address={address}", "client.timeout_s=60", "name=r"]
        done = embodied("train", *given, "budget.env_steps=400", "algo.drift=0.002", folder=tmp_path, timeout=400)
    finally:
        server.send_signal(signal.SIGTERM)
        server.communicate(timeout=30)
    if target:
        line = one_line(done, 3)
        assert re.search(said, line), line
        assert len(list((tmp_path / "runs" / "r" / "weights").glob("*/*-*/manifest.json"))) == 1
    else:
        assert done.returncode == 0, done.stderr
        found = rows(tmp_path / "runs", "r")
        assert_sound(tmp_path / "runs", "r", sum(int(row["step"]) > 0 for row in found))
