"""A run folder written before format 2, `format_1`, is listed, shown, traced, replayed and learned from."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from embodied.buffer.store import EpisodeStore
from embodied.cli.episodes import main
from embodied.data import Outcome
from embodied.spec import EnvSpec
from embodied.train.demonstrations import stored
from policies.mlp import MLPPolicy

ID = "demonstration-0-0001-000000"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    shutil.copytree(Path(__file__).parent / "format_1", tmp_path / "old")
    (tmp_path / "old" / "attempt.json").write_text('{"attempts": 1}')
    return tmp_path / "old"


def told(run: Path, capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict]:
    status = main([*words, f"run={run}", "--json"])
    return status, json.loads(capsys.readouterr().out)


def test_an_episode_of_format_1_is_read(run: Path) -> None:
    episode = EpisodeStore(run / "episodes").read(ID)
    track = episode.agents["robot"]
    assert (episode.outcome, track.outcome, track.policy) == (Outcome.SUCCESS, Outcome.SUCCESS, "script")
    assert len(episode) == len(track) == 7 and track.time is None and track.times == {}
    assert track.action_requested is None and track.action_executed is None and track.action_rule is None
    np.testing.assert_array_equal(track.requested, track.actions[track.decision, track.k])


def test_commands_read_format_1(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert told(run, capsys, "ls")[1]["tracks"][0]["outcome"] == "success"
    shown = told(run, capsys, "show", ID)[1]
    assert shown["agents"]["robot"]["steps"] == 7 and shown["agents"]["robot"]["times"] == "not recorded"
    traced = told(run, capsys, "trace", ID)[1]
    assert traced["updates"] == [{"update": 1, "version": 1, "segments": ["0-demo-40"]}]
    assert traced["agents"]["robot"]["sources"] == {"script": 7}
    # The last bits of physics may differ on another processor; the start and the streams do not.
    _, found = told(run, capsys, "replay", ID)
    assert found["start"] == [] and len(found["streams"]) == 7 and found["steps"] > 0


def test_demonstrations_are_learned_from_format_1(run: Path) -> None:
    episode = EpisodeStore(run / "episodes").read(ID)
    policy = MLPPolicy("mlp", EnvSpec.from_dict(episode.spec).agents["robot"])
    assert [episode.id for episode in stored(run / "episodes", policy, 0, 1e9, print, "robot")] == [ID]
