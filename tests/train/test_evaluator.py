"""An evaluation in parts: the same episodes, with the same noise, as all at once."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from embodied.cli.compose import compose_config
from embodied.data import ActionChunk, Observation
from embodied.monitor.progress import Progress
from embodied.rollout import play
from embodied.runs.settings import Settings, typed
from embodied.train import evaluator
from embodied.train.loop import Loop
from embodied.train.parts import make_parts

WORDS = [
    "task=reach", "policy.hidden=[8]", "rollout.num_envs=2", "rollout.steps=8", "render.episodes=3",
    "env.num_threads=1", "runtime.threads=1",
]  # fmt: skip
Asked = set[tuple[int, ...]]


def actions(
    folder: Path, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> tuple[list[Any], list[np.ndarray], list[Asked]]:
    """Of three evaluations on two numbers of seeds: the results, the episodes' actions in order, the keys of noise."""
    monkeypatch.setattr(evaluator, "BATCH", at_once)
    settings, seen = typed(Settings, compose_config("train", WORDS)), list[np.ndarray]()
    with Progress("test") as progress:
        run = Loop(make_parts(settings, folder, 0, progress))
        run.publish()
        episodes, act, keys = run.evaluator._episodes, run.parts.client.act, list[Asked]()

        def acted(asked: Observation, noise: np.ndarray, mode: str) -> ActionChunk:
            keys[-1] |= {tuple(map(int, row)) for row in noise}
            return act(asked, noise, mode)

        def evaluate(count: int, name: str) -> evaluator.Evaluation:
            keys.append(set())
            return run.evaluate(np.arange(count), name)

        def made(played: play.Played) -> list[Any]:
            seen.extend(played.segment.actions[: played.lengths[row], row] for row in range(len(played.seeds)))
            return episodes(played)

        monkeypatch.setattr(run.evaluator, "_episodes", made)
        monkeypatch.setattr(run.parts.client, "act", acted)
        found = [evaluate(5, "a"), evaluate(5, "b"), evaluate(4, "c")]
        run.close()
    return [(list(t.outcomes), list(t.lengths), [e.seed for e in t.shown]) for t in found], seen, keys


def test_parts_give_the_results_of_all_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.set_num_threads(1)
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    whole, ours, asked = actions(tmp_path / "a", monkeypatch, 256)
    parts, theirs, again = actions(tmp_path / "b", monkeypatch, 2)
    assert whole == parts and [seeds for *_, seeds in whole] == [[0, 1, 2]] * 3
    assert len(ours) == len(theirs) == 14
    assert all(np.array_equal(a, b) for a, b in zip(ours, theirs, strict=True))
    assert all(some and some <= every for some, every in zip(again, asked, strict=True))
    assert [{key[1] for key in some} for some in again] == [set(range(5)), set(range(5)), set(range(4))]
