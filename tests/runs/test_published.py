"""Versions as a user names them."""

from pathlib import Path

import pytest

from embodied.errors import ConfigError, UserError, WeightsRefused
from embodied.runs.published import find_version
from embodied.weights.registry import Registry
from tests.weights.published import publish


def test_latest_is_the_version_to_be_served_and_says_why_it_is_not_the_newest(tmp_path: Path) -> None:
    registry, said = Registry(tmp_path, keep=9), list[str]()
    publish(registry, 4)

    def latest() -> int:
        return find_version(registry, "mlp", "latest", said.append).number

    assert latest() == 4 and not said
    registry.rollback("mlp", 2)
    assert latest() == 2
    registry.resume("mlp")
    registry.pin("mlp", 3)
    assert latest() == 3
    assert said == [
        "version 2 is taken: it is served since a rollback; the newest is version 4",
        "version 3 is taken: it is pinned; the newest is version 4",
    ]


def test_the_best_version_is_kept_until_another_is_better(tmp_path: Path) -> None:
    registry = Registry(tmp_path, keep=2)
    publish(registry, 1)
    with pytest.raises(UserError, match="no version of mlp was evaluated"):
        find_version(registry, "mlp", "best")
    registry.keep_best("mlp", 1)
    publish(registry, 4)
    assert find_version(Registry(tmp_path), "mlp", "best").number == 1
    assert [version.number for version in registry.versions("mlp")] == [1, 4, 5]
    registry.keep_best("mlp", 5)
    publish(registry, 1)
    assert [version.number for version in registry.versions("mlp")] == [5, 6]


def test_a_version_that_is_not_kept_is_the_users_mistake(tmp_path: Path) -> None:
    registry = Registry(tmp_path)
    publish(registry, 2)
    with pytest.raises(WeightsRefused, match=r"version 9 of mlp is not kept .*: versions kept: 1, 2") as caught:
        find_version(registry, "mlp", "9")
    assert caught.value.exit_status == 2
    with pytest.raises(ConfigError, match="give a whole number, latest or best"):
        find_version(registry, "mlp", "newest")
