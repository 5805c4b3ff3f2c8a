"""Weights to begin with: from a run, a checkpoint or a file, taken whole or refused in one line."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from embodied.cli.compose import compose_config
from embodied.errors import CorruptFile, EmbodiedError, SpecMismatch, UserError, WeightsRefused
from embodied.files import sealed
from embodied.monitor.summary import read_summary
from embodied.runs import checkpoint, run_folder
from embodied.runtime.train import train
from embodied.spec import AgentSpec, Stream
from embodied.train.pretrained import find_weights, read_weights
from embodied.weights.registry import Registry
from embodied.weights.tensors import write_tensors
from policies.film import FiLMPolicy
from policies.mlp import MLPPolicy
from policies.torch_policy import TorchPolicy

AGENT = AgentSpec(
    (Stream("joint_pos", (3,)), Stream("front", (16, 16, 3), "uint8"), Stream("instruction", (16,), "uint8")),
    (Stream("delta", (2,)),),
)
Make = Callable[..., TorchPolicy]


def mlp(seed: int = 0, name: str = "p", **options: Any) -> MLPPolicy:
    return MLPPolicy(name, AGENT, seed=seed, **({"hidden": (8,)} | options))


def film(seed: int = 0, name: str = "p", **options: Any) -> FiLMPolicy:
    small = {"chunk": 2, "channels": (4, 8), "width": 8, "hidden": 16, "critic_hidden": (8,), "state": ["joint_pos"]}
    return FiLMPolicy(name, AGENT, seed=seed, **(small | options))


MAKES = pytest.mark.parametrize(("make", "parameter"), [(mlp, "actor.0.weight"), (film, "eyes.front.layers.0.weight")])


def save(folder: Path, policy: TorchPolicy) -> Path:
    saved = checkpoint.SavedPolicy(policy.tensors(), policy.spec.to_dict())
    return checkpoint.save(folder, 3, {policy.spec.name: saved}, {}, {})


def publish(root: Path, name: str, policy: TorchPolicy, times: int = 1) -> Path:
    folder = run_folder.create(root, name)
    registry = Registry(folder / "weights")
    for _ in range(times):
        number = registry.reserve(policy.spec.name)
        tensors = policy.tensors()
        tensors["mean"] += np.float32(number)
        registry.publish(policy.spec.name, number, tensors, policy.spec.to_dict())
    return folder


def read(source: Path | str, policy: TorchPolicy, runs: Path) -> dict[str, NDArray[Any]]:
    return read_weights(find_weights(str(source), runs, policy.spec.name), policy)


def assert_same(a: dict[str, NDArray[Any]], b: dict[str, NDArray[Any]]) -> None:
    assert a.keys() == b.keys()
    for name, array in a.items():
        np.testing.assert_array_equal(array, b[name], err_msg=name)


@MAKES
def test_every_kind_of_source_gives_the_weights(tmp_path: Path, make: Make, parameter: str) -> None:
    theirs, ours = make(1), make(2)
    saved = save(tmp_path / "checkpoints", theirs)
    folder = publish(tmp_path, "a", theirs, times=2)
    shutil.copy(saved / theirs.spec.name / "model.safetensors", tmp_path / "alone.safetensors")
    for source in (saved, saved / theirs.spec.name / "model.safetensors", tmp_path / "alone.safetensors"):
        assert_same(read(source, ours, tmp_path), theirs.tensors())
    assert parameter in theirs.tensors()
    for source, number in (("a", 2), ("a:1", 1), (f"{folder}:2", 2), ("a:latest", 2)):
        found = find_weights(source, tmp_path, "p")
        assert found == f"{folder.resolve()}:{number}"
        assert read_weights(found, ours)["mean"][0] == number


@MAKES
def test_names_and_steps_between_decisions_may_differ(tmp_path: Path, make: Make, parameter: str) -> None:
    theirs = make(1, name="other", **({"execute": 1} if make is film else {}))
    publish(tmp_path, "a", theirs)
    assert read("a", make(2), tmp_path)[parameter].shape == theirs.tensors()[parameter].shape


@MAKES
@pytest.mark.parametrize("damage", ["missing", "extra", "reshaped"])
def test_a_parameter_that_does_not_fit_is_named(tmp_path: Path, make: Make, parameter: str, damage: str) -> None:
    tensors = make(1).tensors()
    if damage == "missing":
        del tensors[parameter]
    elif damage == "extra":
        parameter = "actor.extra"
        tensors[parameter] = np.zeros(3, np.float32)
    else:
        tensors[parameter] = tensors[parameter][:-1]
    spec = make(1).spec.to_dict()
    folder = run_folder.create(tmp_path, "a")
    registry = Registry(folder / "weights")
    registry.publish("p", registry.reserve("p"), tensors, spec)
    write_tensors(tmp_path / "alone.safetensors", tensors)
    saved = checkpoint.save(tmp_path / "checkpoints", 1, {"p": checkpoint.SavedPolicy(tensors, spec)}, {}, {})
    policy = make(2)
    before = policy.tensors()
    for source in ("a", tmp_path / "alone.safetensors", saved):
        with pytest.raises(WeightsRefused, match=rf"parameter {parameter} (is|has)") as error:
            read(source, policy, tmp_path)
        assert "\n" not in error.value.line() and error.value.fix
    assert_same(before, policy.tensors())


@pytest.mark.parametrize(
    ("make", "options", "field"),
    [
        (mlp, {"hidden": (9,)}, r"extra\.hidden"),
        (mlp, {"action_scale": 2.0}, r"extra\.action_scale"),
        (film, {"channels": (4, 4)}, r"extra\.channels"),
        (film, {"chunk": 3}, "chunk 3"),
        (film, {"words": {"length": 8}}, r"extra\.tokenizer.*words/1024/8.*words/1024/16"),
        (film, {"critic": ["joint_pos"]}, r"critic"),
    ],
)
def test_another_spec_or_tokenizer_is_refused_by_its_field(
    tmp_path: Path, make: Make, options: dict, field: str
) -> None:
    theirs, ours = make(1, **options), make(2)
    saved = save(tmp_path / "checkpoints", theirs)
    publish(tmp_path, "a", theirs)
    version = next((tmp_path / "a" / "weights" / "p").glob("1-*"))
    for source in (saved, saved / theirs.spec.name / "model.safetensors", "a", version / "model.safetensors"):
        with pytest.raises(SpecMismatch, match=field) as error:
            read(source, ours, tmp_path)
        assert "\n" not in error.value.line()


def test_another_kind_of_policy_is_refused(tmp_path: Path) -> None:
    publish(tmp_path, "a", mlp())
    with pytest.raises(SpecMismatch, match="the weights' policy has"):
        read("a", film(), tmp_path)


@pytest.mark.parametrize(
    ("source", "error", "said"),
    [
        ("nothing", UserError, "no run nothing.*known: a"),
        ("a:7", WeightsRefused, "version 7 of p is not kept"),
        ("a:x", UserError, "version"),
        (f"a:{'9' * 5000}", UserError, "give a whole number, latest or best"),
        ("a:", UserError, "version cannot be ''"),
        ("empty", UserError, "published no version"),
        ("two", UserError, "no policy p"),
    ],
)
def test_a_source_that_is_not_there_is_said(tmp_path: Path, source: str, error: type[EmbodiedError], said: str) -> None:
    publish(tmp_path, "a", mlp())
    run_folder.create(tmp_path, "empty")
    registry = Registry(publish(tmp_path, "two", mlp(name="b")) / "weights")
    registry.publish("c", registry.reserve("c"), mlp(name="c").tensors(), mlp(name="c").spec.to_dict())
    with pytest.raises(error, match=said) as raised:
        read(source, mlp(), tmp_path)
    assert "\n" not in raised.value.line()


def test_checkpoints_of_format_1_and_of_several_policies_give_their_weights(tmp_path: Path) -> None:
    theirs, ours = mlp(1), mlp(2)
    saved = save(tmp_path / "checkpoints", theirs)
    (saved / "p" / "model.safetensors").rename(saved / "model.safetensors")
    (saved / "p" / "policy.json").rename(saved / "policy.json")
    names = ("model.safetensors", "policy.json", "learner.pt")
    files = {name: checkpoint._checksum(saved / name) for name in names}
    (saved / "state.json").write_bytes(sealed({"step": 3, "files": files, "state": {}}))
    for source in (saved, saved / "model.safetensors"):
        assert_same(read(source, ours, tmp_path), theirs.tensors())
    both = {name: checkpoint.SavedPolicy(p.tensors(), p.spec.to_dict()) for name, p in (("p", theirs), ("q", ours))}
    two = checkpoint.save(tmp_path / "two", 1, both, {}, {})
    for source in (two, two / "p" / "model.safetensors"):
        assert_same(read(source, mlp(3), tmp_path), theirs.tensors())
    alone = checkpoint.save(tmp_path / "alone", 1, {"q": both["p"], "r": both["q"]}, {}, {})
    with pytest.raises(UserError, match="no policy p"):
        read(alone, ours, tmp_path)


def test_damaged_bytes_are_never_parsed(tmp_path: Path) -> None:
    saved = save(tmp_path / "checkpoints", mlp())
    file = saved / "p" / "model.safetensors"
    data = file.read_bytes()
    file.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(CorruptFile, match=r"model\.safetensors"):
        read(saved, mlp(), tmp_path)
    (tmp_path / "cut.safetensors").write_bytes(data[: len(data) // 2])
    with pytest.raises(CorruptFile, match=r"cut\.safetensors"):
        read(tmp_path / "cut.safetensors", mlp(), tmp_path)
    with pytest.raises(CorruptFile, match=r"model\.safetensors"):
        read(file, mlp(), tmp_path)
    version = next((publish(tmp_path, "a", mlp()) / "weights" / "p").glob("1-*")) / "model.safetensors"
    altered = version.read_bytes()
    version.write_bytes(altered[:-1] + bytes([altered[-1] ^ 1]))
    with pytest.raises(CorruptFile, match=r"other content"):
        read(version, mlp(), tmp_path)
    saved = save(tmp_path / "others", mlp())
    (saved / "p" / "policy.json").write_text(json.dumps({"name": "p"}))
    with pytest.raises(CorruptFile, match=r"policy\.json"):
        read(saved, mlp(), tmp_path)


QUICK = [
    "task=reach", "evaluate.episodes=2", "evaluate.final_episodes=2", "render.episodes=0", "env.num_threads=1",
    "rollout.num_envs=4", "rollout.steps=8", "algo.epochs=1",
]  # fmt: skip


def run(*words: str) -> None:
    given = list(words)
    assert train(compose_config("train", given), given).is_dir()


def test_a_run_begins_with_them_and_keeps_their_normaliser(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    clone = ["warm_start.demonstrations=2", "warm_start.clone.steps=5"]
    run(*QUICK, *clone, "budget.env_steps=0", "name=a")
    run(*QUICK, "warm_start.weights=latest", "budget.env_steps=64", "name=b")
    run(*QUICK, "warm_start.weights=runs/a", *clone, "budget.env_steps=0", "seed=1", "name=c")
    a, b, c = (Registry(Path("runs", name, "weights")) for name in "abc")
    begun = a.read("mlp", 1)[1]
    assert_same(b.read("mlp", 1)[1], begun)
    assert_same({n: x for n, x in c.read("mlp", 1)[1].items() if n in ("mean", "std")},
                {n: begun[n] for n in ("mean", "std")})  # fmt: skip
    after, tuned = b.read("mlp", "latest")[1], c.read("mlp", 1)[1]
    for name in ("mean", "std"):
        np.testing.assert_array_equal(after[name], begun[name])
    for learned in (after, tuned):
        assert not np.array_equal(learned["actor.0.weight"], begun["actor.0.weight"])
    where = f"{Path('runs/a').resolve()}:1"
    assert read_summary(Path("runs/b"))["origin"] == {"weights": where}
    assert read_summary(Path("runs/c"))["origin"]["weights"] == where
    with pytest.raises(SpecMismatch, match=r"extra\.hidden"):
        run(*QUICK, "warm_start.weights=a", "policy.hidden=[8]", "name=d")
    assert not Path("runs/d").exists()
