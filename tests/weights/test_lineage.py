"""Lag between versions: updates along parent links, not differences of numbers."""

from pathlib import Path

from embodied.weights.audit import NAME
from embodied.weights.registry import Registry
from tests.weights.published import SPEC, made_elsewhere, tensors


def publish(registry: Registry, value: float, parent: int | None = None) -> int:
    number = registry.reserve("mlp")
    came_from = registry.stored("mlp", parent) if parent else None
    label = came_from.label if came_from else ""
    registry.publish("mlp", number, tensors(value), SPEC, label)
    return number


def test_lag_counts_updates_where_numbers_jump_and_versions_are_pruned(tmp_path: Path) -> None:
    registry = Registry(tmp_path, keep=1)
    numbers = [publish(registry, 1.0)]
    for value in (2.0, 3.0, 4.0):
        registry.reserve("mlp", 16)  # a resumed run skips what was left of its block
        numbers.append(publish(registry, value, numbers[-1]))
    first, second, _, last = numbers
    assert len(registry.versions("mlp")) == 1 and last - first > 30
    for reader in (registry, Registry(tmp_path)):
        assert reader.lag("mlp", first, last) == 3 and reader.lag("mlp", second, last) == 2
        assert reader.lag("mlp", last, last) == 0 and reader.lag("mlp", 0, last) == 4
        assert reader.lag("mlp", last, first) is None and reader.lag("other", first, last) is None


def test_a_branch_that_was_rolled_back_is_no_ancestor(tmp_path: Path) -> None:
    registry = Registry(tmp_path)
    first = publish(registry, 1.0)
    left = publish(registry, 2.0, first)
    same_again = publish(registry, 1.0, first)  # the restored checkpoint, under a number of its own
    after = publish(registry, 3.0, same_again)
    assert registry.lag("mlp", left, after) is None
    assert registry.lag("mlp", first, same_again) == 0 and registry.lag("mlp", first, after) == 1
    assert registry.lag("mlp", first + 100, after) is None


def test_lag_sees_what_another_process_stored_meanwhile(tmp_path: Path) -> None:
    reader, writer = Registry(tmp_path), Registry(tmp_path)
    first = publish(writer, 1.0)
    assert reader.lag("mlp", first, first + 1) is None
    second = publish(writer, 2.0, first)
    assert reader.lag("mlp", first, second) == 1
    manifest, arrays = made_elsewhere(second + 5, 9.0)
    writer.adopt(manifest, arrays)
    assert reader.lag("mlp", second, manifest.number) is None  # it names no parent


def test_lag_survives_a_torn_or_senseless_audit(tmp_path: Path) -> None:
    registry = Registry(tmp_path)
    first = publish(registry, 1.0)
    with (tmp_path / NAME).open("ab") as file:
        file.write(b'{"event": "publish", "policy": "mlp", "version": "2-zz"}\n{"event": "publish", "policy": 3}\n')
        file.write(
            b'{"event": "publish", "policy": "mlp", "version": "9-abcdefabcdef", "parent": "9-abcdefabcde0"}\n{"ev'
        )
    assert Registry(tmp_path).lag("mlp", first, 9) is None and Registry(tmp_path).lag("mlp", first, first) == 0
    (tmp_path / NAME).unlink()
    assert Registry(tmp_path).lag("mlp", 0, first) is None
