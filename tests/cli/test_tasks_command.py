"""`embodied tasks`: every configuration, its expert measured."""

import json
from pathlib import Path

import pytest

from embodied.cli import tasks
from embodied.cli.compose import groups
from embodied.errors import ConfigError
from embodied.evaluate.gallery import describe_task
from embodied.monitor.stats import wilson
from tests.cli.command import launch, one_line

BODY = {"_target_": "simulators.make.make_env", "num_threads": 1}


def test_every_configuration_has_a_row(capsys: pytest.CaptureFixture[str]) -> None:
    assert tasks.main(["episodes=4", "--json"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["task"] for row in rows] == groups()["task"]
    measured = [row for row in rows if row["episodes"] is not None]
    assert len(measured) >= 2
    for row in measured:
        assert row["episodes"] == 4 and row["success_rate"] == row["successes"] / 4
        assert row["success_ci95"] == list(wilson(row["successes"], 4))
        assert row["instruction"] and "video" in row["cameras"] and row["robot"]


def test_the_table_says_the_same(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "groups", lambda: {"task": ["reach"]})
    assert tasks.main(["episodes=2"]) == 0
    header, reach = capsys.readouterr().out.splitlines()
    assert header.split() == ["task", "robot", "expert", "cameras", "instruction"]
    assert "panda" in reach and "of 2" in reach and reach.endswith("reach the green marker")


def test_another_simulators_task_is_not_measured() -> None:
    row = describe_task("fetch_push", {"name": "fetch_push", "env": "gymnasium:FetchPush-v4"}, BODY, 2)
    assert row["robot"] == "worker: gymnasium:FetchPush-v4" and row["success_ci95"] is None
    assert "not measured" in tasks._line(row)


def test_mistakes_are_one_line() -> None:
    with pytest.raises(ConfigError, match="did you mean episodes"):
        tasks.main(["episode=4"])
    with pytest.raises(ConfigError, match="from 1 to 65536"):
        tasks.main(["episodes=0"])


def test_the_command_is_there(tmp_path: Path) -> None:
    assert "did you mean reach" in one_line(launch("tasks", "task=reech", folder=tmp_path))


def test_one_task_can_be_chosen(capsys: pytest.CaptureFixture[str]) -> None:
    assert tasks.main(["task=reach", "episodes=2", "--json"]) == 0
    assert [json.loads(line)["task"] for line in capsys.readouterr().out.splitlines()] == ["reach"]
    with pytest.raises(ConfigError, match="did you mean reach"):
        tasks.main(["task=reech"])
