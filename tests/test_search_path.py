"""Config folders outside the clone: named by the user, or by the entry point of an installed package."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from embodied import search_path
from embodied.cli.compose import compose_config, groups
from embodied.errors import ConfigError
from embodied.gateways.embodiment import read_config


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A config folder with a task, an experiment and an embodiment, on the search path."""
    texts = {
        "task/near.yaml": "name: reach\nreward: sparse\n",
        "experiment/quick.yaml": "# @package _global_\ndefaults:\n  - override /task: near\nseed: 7\n",
        "embodiment/cell.yaml": "streams: {}\n",
    }
    for name, text in texts.items():
        (tmp_path / "my configs" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "my configs" / name).write_text(text)
    monkeypatch.setenv(search_path.VARIABLE, "")
    search_path.add_folder(str(tmp_path / "my configs"))
    return tmp_path / "my configs"


def test_own_options_join_those_of_the_project(folder: Path) -> None:
    assert {"near", "reach"} <= set(groups()["task"])
    assert compose_config("play", ["task=near"]).task.reward == "sparse"
    composed = compose_config("train", ["experiment=quick"])
    assert (composed.task.name, composed.task.reward, composed.seed) == ("reach", "sparse", 7)
    assert read_config("cell") == {"name": "cell", "streams": {}}


def test_an_option_that_is_there_twice_is_refused(folder: Path) -> None:
    (folder / "task" / "reach.yaml").write_text("name: reach\n")
    with pytest.raises(ConfigError, match="task reach is there twice"):
        compose_config("play", ["task=near"])


def test_a_folder_without_groups_is_refused(tmp_path: Path) -> None:
    for name, said in ((".", "no config group"), ("none", "no such folder")):
        with pytest.raises(ConfigError, match=said):
            search_path.add_folder(str(tmp_path / name))


@pytest.mark.parametrize("word", ["task=my.open_box", "task.name=my.open_box"])
def test_a_task_by_import_path_has_no_options_but_those_given(word: str) -> None:
    assert compose_config("play", [word, "task.robot=crane"]).task == {"name": "my.open_box", "robot": "crane"}
    assert compose_config("play", [word, "robot=my.crane"]).task == {"name": "my.open_box", "robot": "my.crane"}
    assert compose_config("play", [word, "robot=so101"]).task == {"name": "my.open_box", "robot": "so101"}


def test_an_entry_point_adds_a_packages_folder(tmp_path: Path) -> None:
    (tmp_path / "mine" / "configs" / "task").mkdir(parents=True)
    (tmp_path / "mine" / "configs" / "task" / "near.yaml").write_text("name: reach\n")
    (tmp_path / "mine-0.1.dist-info").mkdir()
    points = tmp_path / "mine-0.1.dist-info" / "entry_points.txt"
    code = "from embodied.cli.compose import groups; print('near' in groups()['task'])"
    environment = {**os.environ, "PYTHONPATH": f"{search_path.CONFIGS.parents[1]}{os.pathsep}{tmp_path}"}
    for value, said in (("mine.configs", "True"), ("mine.nothing", "is no package")):
        points.write_text(f"[embodied.configs]\nmine = {value}\n")
        done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60)
        assert said in done.stdout + done.stderr
