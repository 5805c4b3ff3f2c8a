from pathlib import Path

import pytest

from embodied.errors import CorruptFile
from embodied.monitor.stats import wilson
from embodied.monitor.summary import read_summary, summarise, write_summary


def test_a_summary_reads_back(tmp_path: Path) -> None:
    summary = summarise(
        successes=193, episodes=200, env_steps=600_000, wall_s=120.0, policy_version=73, task="lift_cube", seed=0
    )
    assert write_summary(tmp_path, summary).name == "summary.json"
    assert read_summary(tmp_path) == {
        "success_rate": 0.965,
        "success_ci95": list(wilson(193, 200)),
        "episodes": 200,
        "env_steps": 600_000,
        "wall_s": 120.0,
        "env_steps_per_s": 5000.0,
        "policy_version": 73,
        "task": "lift_cube",
        "seed": 0,
    }
    assert [path.name for path in tmp_path.iterdir()] == ["summary.json"]


def test_nothing_evaluated_is_no_rate() -> None:
    summary = summarise(successes=0, episodes=0, env_steps=0, wall_s=0.0, policy_version=0)
    assert summary["success_rate"] is None and summary["env_steps_per_s"] is None
    assert summary["success_ci95"] == [0.0, 1.0]


def test_a_run_without_summary_is_named(tmp_path: Path) -> None:
    with pytest.raises(CorruptFile, match=r"summary\.json"):
        read_summary(tmp_path)
