"""Numbers: none names two contents, whichever files and versions were deleted, and they do not run out unsaid."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from embodied.errors import UserError, WeightsRefused
from embodied.files import sealed
from embodied.weights import numbers as numbers_module
from embodied.weights import registry as registry_module
from embodied.weights.manifest import MAX_NUMBER, Manifest
from embodied.weights.registry import Registry

SPEC = {"name": "mlp", "chunk": 2}


def tensors(value: float) -> dict[str, np.ndarray]:
    return {"weight": np.full((2,), value, np.float32)}


def publish(registry: Registry, value: float, policy: str = "mlp") -> Manifest:
    return registry.publish(policy, registry.reserve(policy), tensors(value), SPEC)


def made_elsewhere(number: int, value: float = 0.5) -> tuple[Manifest, dict[str, np.ndarray]]:
    return Manifest.of("mlp", number, tensors(value), SPEC), tensors(value)


def delete(registry: Registry, number: int) -> None:
    shutil.rmtree(registry.path("mlp", registry.find("mlp", number)))


def test_the_number_of_a_deleted_newest_version_is_not_free(tmp_path: Path) -> None:
    registry = Registry(tmp_path)
    first, second = publish(registry, 1), publish(registry, 2)
    delete(registry, 2)
    for opened in (registry, Registry(tmp_path)):
        with pytest.raises(WeightsRefused, match=f"number 2 already names {second.label}"):
            opened.adopt(*made_elsewhere(2))
        with pytest.raises(WeightsRefused, match=f"number 2 already names {second.label}"):
            opened.publish("mlp", 2, tensors(5), SPEC)
    delete(registry, 1)
    with pytest.raises(WeightsRefused, match=f"number 1 already names {first.label}"):
        registry.adopt(*made_elsewhere(1))
    registry.adopt(second, tensors(2))
    assert registry.read("mlp", 2)[0] == second, "the content it had may come again"


@pytest.mark.parametrize("other", [False, True])
def test_no_number_is_given_out_twice_though_the_count_and_versions_were_deleted(tmp_path: Path, other: bool) -> None:
    registry = Registry(tmp_path)
    for value in (1, 2, 3):
        publish(registry, value)
    delete(registry, 3)
    (tmp_path / "numbers.json").unlink()
    if other:
        publish(registry, 1, "other")
    registry.adopt(*made_elsewhere(2, 2))
    assert Registry(tmp_path).reserve("mlp") == 4
    (tmp_path / "numbers.json").unlink()
    with pytest.raises(WeightsRefused, match="number 3 already names"):
        Registry(tmp_path).adopt(*made_elsewhere(3))


def test_an_adopted_version_does_not_hide_what_the_audit_knows(tmp_path: Path) -> None:
    registry = Registry(tmp_path)
    registry.adopt(*made_elsewhere(9))
    delete(registry, 9)
    (tmp_path / "numbers.json").unlink()
    registry.adopt(*made_elsewhere(4))
    assert registry.reserve("mlp") == 10


def test_a_normal_publication_and_a_new_number_read_no_audit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    registry = Registry(tmp_path)
    publish(registry, 1)
    for module in (registry_module, numbers_module):
        monkeypatch.setattr(module, "stored", lambda *_: pytest.fail("the audit is read"))
    first = registry.reserve("mlp", 3)
    for number in range(first, first + 3):
        registry.publish("mlp", number, tensors(number), SPEC)
    registry.adopt(*made_elsewhere(70))
    assert publish(registry, 3).number == 71


def test_numbers_do_not_run_out_unsaid(tmp_path: Path) -> None:
    registry = Registry(tmp_path)
    for number in (MAX_NUMBER, MAX_NUMBER - 2**20 + 1):
        with pytest.raises(WeightsRefused, match=f"number {number} is beyond .*number versions from 1"):
            registry.adopt(*made_elsewhere(number))
    assert registry.versions("mlp") == []
    registry.adopt(*made_elsewhere(MAX_NUMBER - 2**20))
    assert publish(registry, 1).number == MAX_NUMBER - 2**20 + 1
    (tmp_path / "numbers.json").write_bytes(sealed({"numbers": {"mlp": MAX_NUMBER - 1}}))
    with pytest.raises(UserError, match=r"fewer than 2 version numbers are left.*another folder"):
        registry.reserve("mlp", 2)
    assert publish(registry, 2).number == MAX_NUMBER
    with pytest.raises(UserError, match="another folder"):
        registry.reserve("mlp")


@settings(max_examples=30, deadline=None)
@given(st.lists(st.sampled_from(["publish", "adopt", "delete", "count", "open"]), min_size=4, max_size=14), st.data())
def test_no_number_names_two_contents(
    tmp_path_factory: pytest.TempPathFactory, acts: list[str], data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("numbers")
    registry, named = Registry(folder, keep=3), dict[int, str]()
    for value, act in enumerate(acts):
        versions = registry.versions("mlp")
        if act == "publish":
            made = publish(registry, value)
        elif act == "adopt":
            made, content = made_elsewhere(data.draw(st.integers(1, 6)), value)
            try:
                registry.adopt(made, content)
            except WeightsRefused:
                assert made.number in named
                continue
        else:
            if act == "delete" and versions:
                delete(registry, data.draw(st.sampled_from(versions)).number)
            elif act == "count":
                (folder / "numbers.json").unlink(missing_ok=True)
            registry = Registry(folder, keep=3) if act == "open" else registry
            continue
        assert named.setdefault(made.number, made.label) == made.label
