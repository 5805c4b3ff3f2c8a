"""Comparison at the end of a run with `compare.split`: measured to the end though it was killed on the way."""

import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from embodied.cli.compose import compose_config
from embodied.episode import Episode
from embodied.errors import ConfigError, CorruptFile
from embodied.learning.bc import BehaviourCloning
from embodied.monitor.summary import read_summary
from embodied.runs.settings import Settings, typed
from embodied.runtime.train import train
from embodied.train import protocol, report
from embodied.train.parts import Parts
from embodied.weights.registry import Registry
from embodied.weights.tensors import read_tensors, write_tensors
from embodied.weights.versions import MANIFEST, TENSORS

TINY = [
    "task=reach_color", "task.reward=sparse", "policy=film", "env.cameras=[front]", "env.pixels=16", "render=ray",
    "policy.channels=[4,8]", "policy.width=8", "policy.hidden=8", "policy.chunk=2", "policy.execute=1",
    "warm_start.demonstrations=2", "warm_start.clone.steps=3", "rollout.num_envs=4", "rollout.steps=8",
    "budget.env_steps=32", "evaluate.episodes=2", "evaluate.final_episodes=3", "evaluate.every=100", "algo.epochs=1",
    "algo.minibatches=1", "render.episodes=0", "env.num_threads=1", "runtime.threads=1",
]  # fmt: skip


def run(*words: str) -> None:
    assert train(compose_config("train", list(words)), list(words)).is_dir()


def test_a_run_killed_while_it_is_measured_ends_when_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.set_num_threads(1)
    root, folder = f"runs={tmp_path}", tmp_path / "a"
    longer = protocol._clone_for

    def killed(*given: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(protocol, "_clone_for", killed)
    with pytest.raises(KeyboardInterrupt, match="resume="):
        run(*TINY, "compare.split=unseen_instructions", root, "name=a")
    assert "protocol" not in read_summary(folder) and read_summary(folder)["episodes"] == 3
    began = Registry(folder / "weights").read("film", 1)[1]
    kept = read_tensors(folder / protocol.CLONE / TENSORS, 10**7, "")
    assert kept.keys() == began.keys() and all((kept[name] == began[name]).all() for name in kept)

    monkeypatch.setattr(protocol, "_clone_for", lambda run, seconds: longer(run, min(seconds, 0.2)))
    run("resume=a", root)
    found = read_summary(folder)["protocol"]
    assert [found[row]["episodes"] for row in ("clone", "same_time_clone", "rl", "wrong_instruction")] == [3, 3, 3, 3]
    assert found["clone"]["split"] == "unseen_instructions" and "RL" in found["sentence"]

    file = folder / protocol.CLONE / TENSORS
    file.unlink()
    write_tensors(file, {name: array + np.float32(1) for name, array in kept.items()})
    with pytest.raises(CorruptFile, match=r"clone/model\.safetensors\): give compare\.split=null") as caught:
        run("resume=a", root)
    assert "\n" not in caught.value.line()
    (file.parent / MANIFEST).unlink()
    file.unlink()
    with pytest.raises(ConfigError, match="kept no clone"):
        run("resume=a", root)


def test_the_clone_of_equal_time_begins_with_the_same_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.set_num_threads(1)
    root, begun = f"runs={tmp_path}", list[dict[str, NDArray[Any]]]()
    run(*TINY, "budget.env_steps=0", root, "name=first")
    fit = BehaviourCloning.fit

    def seen(self: BehaviourCloning, episodes: Iterable[Episode], *more: Any) -> dict[str, float]:
        begun.append(self.tensors())
        return fit(self, episodes, *more)

    longer = protocol._clone_for
    monkeypatch.setattr(BehaviourCloning, "fit", seen)
    monkeypatch.setattr(protocol, "_clone_for", lambda run, seconds: longer(run, min(seconds, 0.1)))
    words = [*TINY, "budget.env_steps=0", "compare.split=seen", "warm_start.weights=first", root]

    def pruned(run: Parts, trained_s: float) -> protocol.Protocol:
        shutil.rmtree(tmp_path / "first")
        return protocol.follow_protocol(run, trained_s)

    monkeypatch.setattr(report, "follow_protocol", pruned)
    first = Registry(tmp_path / "first" / "weights").read("film", 1)[1]
    run(*words, "name=a")
    ours, theirs = begun
    assert all((first[name] == ours[name]).all() and (ours[name] == theirs[name]).all() for name in first)
    shutil.rmtree(tmp_path / "a" / protocol.PRETRAINED)
    with pytest.raises(ConfigError, match="did not keep the weights it began with"):
        run("resume=a", root)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["compare.split=unseen"], r"unseen.*\(compare\.split\): did you mean .*unseen_instructions"),
        (
            ["compare.split=seen", "task=lift_cube"],
            "split wrong_instruction does not fit: task lift_cube has no option",
        ),
        (["compare.split=seen", "compare.wrong=rong"], r"\(compare\.wrong\)"),
        (["compare.split=seen", "algo=bc"], "nothing comes after this clone"),
        (["compare.split=seen", "episodes.keep=[evaluation]"], "add demonstration"),
        (["compare.split=seen", "warm_start.demonstrations=0"], "give warm_start.demonstrations"),
    ],
)
def test_what_could_not_be_measured_is_said_before_anything_is_learned(
    tmp_path: Path, words: list[str], said: str
) -> None:
    given = [word for word in TINY if not word.startswith(("algo.", "task.")) or "algo=bc" not in words]
    if "task=lift_cube" in words:
        given = [word for word in given if word != "task=reach_color"]
    with pytest.raises(ConfigError, match=said) as caught:
        run(*given, *words, f"runs={tmp_path}", "name=a")
    assert "\n" not in caught.value.line() and not (tmp_path / "a").exists()


def test_demonstrations_that_are_stored_elsewhere_need_not_be_kept() -> None:
    words = ["compare.split=seen", "episodes.keep=[evaluation]", "warm_start.episodes=/somewhere"]
    assert typed(Settings, compose_config("train", words)).compare.split == "seen"
