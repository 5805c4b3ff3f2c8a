"""A warm start leaves nothing behind but weights: the cloner goes, unless cloning is all there is."""

import functools
import gc
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch

from embodied.cli.compose import compose_config
from embodied.learning.bc import BehaviourCloning
from embodied.runtime.inline import InlineRun
from embodied.runtime.train import train

TINY = [
    "task=reach", "policy.hidden=[8]", "warm_start.demonstrations=2", "rollout.num_envs=2", "rollout.steps=8",
    "budget.env_steps=40", "evaluate.episodes=2", "evaluate.final_episodes=2", "evaluate.every=100", "algo.epochs=1",
    "render.episodes=0", "body.num_threads=1", "runtime.threads=1",
]  # fmt: skip


@pytest.fixture
def left(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many cloners there are whenever a run ticks."""
    made, counts, tick, begin = weakref.WeakSet[Any](), list[int](), InlineRun.tick, BehaviourCloning.__init__

    @functools.wraps(begin)
    def begun(cloner: BehaviourCloning, *given: Any, **more: Any) -> None:
        begin(cloner, *given, **more)
        made.add(cloner)

    def ticked(run: InlineRun) -> None:
        gc.collect()
        counts.append(len(made))
        assert run.cloner is None and run.warm
        tick(run)

    monkeypatch.setattr(BehaviourCloning, "__init__", begun)
    monkeypatch.setattr(InlineRun, "tick", ticked)
    return counts


def run(*words: str) -> None:
    assert train(compose_config("train", list(words)), list(words)) == 0


def test_no_cloner_is_left_when_a_run_learns_or_goes_on(tmp_path: Path, left: list[int]) -> None:
    torch.set_num_threads(1)
    root = f"runs={tmp_path}"
    run(*TINY, "warm_start.clone.steps=3", root, "name=a")
    first = len(left)
    assert first and not any(left)
    run("resume=a", "budget.env_steps=100", root)
    assert len(left) > first and not any(left)
