"""A warm start leaves nothing behind but weights: the cloner goes, unless cloning is all there is."""

import functools
import gc
import shutil
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from embodied.buffer.store import EpisodeStore
from embodied.cli.compose import compose_config
from embodied.learning.bc import BehaviourCloning
from embodied.monitor.metrics import read_metrics
from embodied.runtime.train import train
from embodied.train import demonstrations, warm_start
from embodied.train.loop import Loop
from embodied.train.metrics import StepMetrics
from embodied.weights.registry import Registry

TINY = [
    "task=reach", "policy.hidden=[8]", "warm_start.demonstrations=2", "rollout.num_envs=2", "rollout.steps=8",
    "budget.env_steps=40", "evaluate.episodes=2", "evaluate.final_episodes=2", "evaluate.every=100", "algo.epochs=1",
    "render.episodes=0", "env.num_threads=1", "runtime.threads=1",
]  # fmt: skip


@pytest.fixture
def left(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Count of cloners before every update of a run."""
    made, counts, tick, begin = weakref.WeakSet[Any](), list[int](), Loop.update, BehaviourCloning.__init__

    @functools.wraps(begin)
    def begun(cloner: BehaviourCloning, *given: Any, **more: Any) -> None:
        begin(cloner, *given, **more)
        made.add(cloner)

    def ticked(run: Loop) -> None:
        gc.collect()
        counts.append(len(made))
        assert run.parts.cloner is None
        tick(run)

    monkeypatch.setattr(BehaviourCloning, "__init__", begun)
    monkeypatch.setattr(Loop, "update", ticked)
    return counts


def run(*words: str) -> None:
    assert train(compose_config("train", list(words)), list(words)).is_dir()


def test_a_warm_start_that_was_killed_leaves_no_demonstrations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.set_num_threads(1)
    root, folder, sealed = f"runs={tmp_path}", tmp_path / "a", Loop.checkpoint

    def killed(run: Loop) -> None:
        run.parts.store.seal()
        raise KeyboardInterrupt

    monkeypatch.setattr(Loop, "checkpoint", killed)
    words = [word for word in TINY if not word.startswith(("warm_start", "budget"))]
    with pytest.raises(KeyboardInterrupt):
        run(*words, "warm_start.demonstrations=5", "warm_start.clone.steps=3", "budget.env_steps=0", root, "name=a")
    own = next((folder / "episodes").glob("shard-0-*.h5"))
    shutil.copy(own, folder / "episodes" / "recorded.h5")
    monkeypatch.setattr(Loop, "checkpoint", sealed)
    monkeypatch.setattr(demonstrations, "BATCH", 2)
    run("resume=a", root)
    (folder / "episodes" / "recorded.h5").unlink()  # it was left alone
    shown = [s for s in EpisodeStore(folder / "episodes").summary() if s.mode == "demonstration"]
    assert [s.seed for s in shown] == list(range(500_000, 500_005)) and {
        s.id.split("/")[2].split("-")[0] for s in shown
    } == {"1"}
    assert not own.exists()
    first, other = (Registry(folder / "weights").read("mlp", number)[1] for number in (1, "latest"))
    assert first.keys() == other.keys() and all((first[name] == other[name]).all() for name in first)


def test_no_cloner_is_left_when_a_run_learns_or_goes_on(tmp_path: Path, left: list[int]) -> None:
    torch.set_num_threads(1)
    root = f"runs={tmp_path}"
    run(*TINY, "warm_start.clone.steps=3", root, "name=a")
    first = len(left)
    assert first and not any(left)
    run("resume=a", "budget.env_steps=100", root)
    assert len(left) > first and not any(left)


def test_cloning_alone_leaves_rows_evaluations_and_versions_on_its_way(tmp_path: Path) -> None:
    words = [word for word in TINY if not word.startswith("algo.")]
    run(*words, "algo=bc", "algo.steps=20", f"runs={tmp_path}", "name=a")
    metrics = read_metrics(tmp_path / "a" / "metrics.csv")
    assert metrics["step"] == [*range(-9, 1)]
    assert metrics["learner/bc_steps"] == [*range(2, 21, 2)]
    evaluated = [step for step, n in zip(metrics["step"], metrics["eval/episodes"], strict=True) if n == 2]
    assert evaluated == [-7, -5, -2, 0]
    assert metrics["learner/version"] == [0, 0, 1, 1, 2, 2, 2, 3, 3, 4]


def test_an_interrupted_cloning_continues_bit_for_bit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = [*(word for word in TINY if not word.startswith("algo.")), "algo=bc", "algo.steps=20", f"runs={tmp_path}"]
    run(*words, "name=whole")
    write, begun = StepMetrics.write_early, list[bool]()

    def killed(stage: StepMetrics, row: int, *given: Any) -> None:
        write(stage, row, *given)
        if row == -5:
            raise KeyboardInterrupt

    with monkeypatch.context() as during:
        during.setattr(warm_start, "CHECKPOINT_S", 0.0)
        during.setattr(warm_start, "_SAVING", float("inf"))
        during.setattr(StepMetrics, "write_early", killed)
        with pytest.raises(KeyboardInterrupt):
            run(*words, "name=a")
    assert (tmp_path / "a" / "cloning").is_dir()
    fit = BehaviourCloning.fit
    monkeypatch.setattr(
        BehaviourCloning,
        "fit",
        lambda self, shown, report, state: begun.append(bool(state)) or fit(self, shown, report, state),
    )
    run("resume=a", f"runs={tmp_path}")
    assert begun == [True] and not (tmp_path / "a" / "cloning").exists()
    whole, resumed = (read_metrics(tmp_path / name / "metrics.csv") for name in ("whole", "a"))
    for name in ("step", "learner/bc_loss", "learner/bc_steps", "learner/grad_norm"):
        np.testing.assert_array_equal(whole[name], resumed[name])
    tensors = [Registry(tmp_path / name / "weights").read("mlp", "latest")[1] for name in ("whole", "a")]
    assert all(np.array_equal(tensors[0][name], tensors[1][name]) for name in tensors[0])
