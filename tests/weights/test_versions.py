"""Versions that are damaged on disk: never pointed at, known from those that are whole, replaced by the right bytes."""

import subprocess
import sys
from pathlib import Path

import pytest

from embodied.errors import CorruptFile, InfrastructureError
from embodied.files import TEMPORARY
from embodied.weights import registry as registry_module
from embodied.weights.manifest import Manifest
from embodied.weights.pointers import Pointers
from embodied.weights.registry import Registry
from tests.weights.published import SPEC, publish, tensors

FILES = ["manifest.json", "model.safetensors"]


def damage(registry: Registry, number: int, name: str = "model.safetensors") -> None:
    file = registry.path("mlp", registry.find("mlp", number)) / name
    file.write_bytes(file.read_bytes()[:-9])


def test_the_newest_whole_manifest_is_that_of_an_older_version(tmp_path: Path) -> None:
    registry, said = Registry(tmp_path), list[str]()
    publish(registry, 3)
    assert registry.newest_whole("mlp", said.append).number == 3 and not said
    damage(registry, 3, "manifest.json")
    damage(registry, 2, "manifest.json")
    assert registry.newest_whole("mlp", said.append).number == 1
    assert len(said) == 2 and all("an older version is taken: " in line for line in said)
    damage(registry, 1, "manifest.json")
    with pytest.raises(CorruptFile, match="3-"):
        registry.newest_whole("mlp", said.append)


@pytest.mark.parametrize("name", FILES)
def test_no_pointer_moves_to_a_damaged_version(tmp_path: Path, name: str) -> None:
    registry = Registry(tmp_path)
    publish(registry, 4)
    damage(registry, 3, name)
    third = registry.find("mlp", 3)
    for move in (lambda: registry.pin("mlp", 3), lambda: registry.rollback("mlp", 3),
                 lambda: registry.serve("mlp", third)):  # fmt: skip
        with pytest.raises(CorruptFile, match=name):
            move()
    assert registry.pointers("mlp") == Pointers() and registry.audit()[-1]["event"] == "publish"
    registry.pair("mlp", {3: 10})
    assert registry.rollback("mlp").number == 2, "a damaged one is passed over, with a checkpoint or without"
    damage(registry, 1)
    with pytest.raises(CorruptFile, match="1-"):
        registry.rollback("mlp")
    assert registry.pointers("mlp").serving == registry.find("mlp", 2)


def test_what_was_read_is_read_again_only_after_it_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    publish(Registry(tmp_path))
    registry, reads = Registry(tmp_path), []
    version, read = registry.find("mlp", 1), registry.read
    monkeypatch.setattr(registry, "read", lambda *which: (reads.append(which), read(*which))[1])
    for _ in range(3):
        registry.check("mlp", version)
    assert len(reads) == 1 and registry.has("mlp", version)
    damage(registry, 1)
    assert registry.has("mlp", version), "nobody has looked"
    for _ in range(3):
        with pytest.raises(CorruptFile):
            registry.check("mlp", version)
    assert len(reads) == 2 and not registry.has("mlp", version)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("again", ["adopt", "publish"])
def test_a_damaged_version_is_mended_by_who_has_its_bytes(tmp_path: Path, name: str, again: str) -> None:
    registry = Registry(tmp_path)
    publish(registry, 3)
    registry.pin("mlp", 2)
    manifest, content = registry.read("mlp", 2)
    registry.adopt(manifest, content)
    damage(registry, 2, name)
    if again == "adopt":
        registry.adopt(manifest, content)
    else:
        registry.publish("mlp", 2, content, SPEC)
    assert Registry(tmp_path).read("mlp", 2)[1]["weight"][0, 0] == 2 and registry.has("mlp", manifest.version)
    assert [line["event"] for line in registry.audit()][3:] == ["pin", "mend"]
    assert registry.active("mlp") == manifest.version and not list(tmp_path.rglob(f"{TEMPORARY}*"))
    assert len(registry.versions("mlp")) == 3


def test_a_mend_that_fails_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    registry = Registry(tmp_path)
    publish(registry, 2)
    manifest, content = registry.read("mlp", 1)
    damage(registry, 1)

    def full(path: Path, *_: object) -> None:
        raise InfrastructureError("no disk space", str(path), "free space")

    monkeypatch.setattr(registry_module, "write_tensors", full)
    with pytest.raises(InfrastructureError):
        registry.adopt(manifest, content)
    assert manifest.version in registry.versions("mlp") and not list(tmp_path.rglob(f"{TEMPORARY}*"))
    monkeypatch.undo()
    registry.rollback("mlp", 2)
    registry.adopt(manifest, content)
    assert registry.read("mlp", 1), "a hold is no reason to keep damage"


# Work and checks for tests/faults.py, which runs them in processes that die.


def work(folder: Path) -> None:
    registry = Registry(folder / "weights")
    registry.adopt(made := Manifest.of("mlp", 1, tensors(1), SPEC), tensors(1))
    (registry.path("mlp", made.version) / "model.safetensors").unlink(missing_ok=True)
    registry.adopt(made, tensors(1))
    registry.read("mlp", 1)


def check(folder: Path, outcome: str) -> None:
    made, registry = Manifest.of("mlp", 1, tensors(1), SPEC), Registry(folder / "weights")
    assert registry.versions("mlp") in ([], [made.version])
    if outcome in ("done", "killed"):
        registry.adopt(made, tensors(1))
        assert registry.read("mlp", 1)[1]["weight"][0, 0] == 1
        assert {line["version"] for line in registry.audit()} == {made.label}
        assert not list(folder.rglob(f"{TEMPORARY}*")) and registry.reserve("mlp") > 1


def test_a_mend_killed_at_random_is_made_up_for(tmp_path: Path) -> None:
    faults = Path(__file__).parents[1] / "faults.py"
    command = [sys.executable, str(faults), "random", __file__, "work", "check", str(tmp_path), "12"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
