"""`embodied episodes` on an episode of two agents with capture times and changed actions."""

import dataclasses
import json
from pathlib import Path

import pytest

from embodied.buffer.store import EpisodeStore
from embodied.cli.episodes import main
from embodied.data import Outcome
from tests.buffer.samples import SPEC, make_episode

ID = "cell-1/evaluation/2-0000-000007"


@pytest.fixture
def words(tmp_path: Path) -> list[str]:
    long = make_episode(0, ID, mode="evaluation", timed=True, changed=True)
    short = make_episode(1, steps=4).agents["robot"]
    short.outcome, short.policy = Outcome.SUCCESS, "other"
    rated = tuple(
        dataclasses.replace(s, rate_hz=10.0 if s.name == "camera" else 0.0) for s in SPEC.agents["robot"].observations
    )
    agent = dataclasses.replace(SPEC.agents["robot"], observations=rated)
    spec = dataclasses.replace(SPEC, agents={"left": agent, "right": agent})
    tracks = {"left": long.agents["robot"], "right": short}
    store = EpisodeStore(tmp_path / "run" / "episodes", keep=["all"])
    store.add(dataclasses.replace(long, agents=tracks, spec=spec.to_dict()))
    store.seal()
    (tmp_path / "run" / "attempt.json").write_text('{"attempts": 1}')
    return [f"run={tmp_path / 'run'}"]


def told(capsys: pytest.CaptureFixture[str], *words: str) -> dict:
    assert main([*words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_ls_lists_a_line_per_track(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    listed = told(capsys, "ls", *words)
    assert (listed["id"], listed["outcome"], listed["steps"]) == (ID, "failure", 7)
    tracks = [(t["agent"], t["policy"], t["outcome"], t["steps"]) for t in listed["tracks"]]
    assert tracks == [("left", "mlp", "failure", 7), ("right", "other", "success", 4)]
    assert main(["ls", *words]) == 0
    text = capsys.readouterr().out
    assert "left" in text and "right" in text and "1 episodes" in text


def test_show_tells_every_tracks_policy_times_rates_and_changed_actions(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    shown = told(capsys, "show", ID, *words)["agents"]
    left, right = shown["left"], shown["right"]
    assert (left["policy"], left["outcome"], left["steps"]) == ("mlp", "failure", 7)
    assert (right["policy"], right["outcome"], right["steps"]) == ("other", "success", 4)
    assert left["times"] == "100.000 to 100.350 s, 20 steps per second" and right["times"] == "not recorded"
    assert (
        left["observations"]["camera"] == "uint8 [8, 4, 4, 3], 10 Hz, captured 20.0 ms before the step (at most 20.0)"
    )
    assert right["observations"]["camera"] == "uint8 [5, 4, 4, 3], 10 Hz"
    assert left["changed_actions"] == {"requested": 1, "executed": 2, "rules": {"velocity": 1, "hold": 1}}
    assert right["changed_actions"] == {"requested": 0, "executed": 0}
    assert main(["show", ID, *words]) == 0
    assert "  left:\n    policy: mlp\n" in capsys.readouterr().out


def test_trace_tells_every_tracks_versions_and_rules(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    traced = told(capsys, "trace", ID, *words)["agents"]
    assert (traced["left"]["policy"], traced["right"]["policy"]) == ("mlp", "other")
    assert (traced["left"]["outcome"], traced["right"]["outcome"]) == ("failure", "success")
    assert (traced["left"]["rules"], traced["right"]["rules"]) == ({"velocity": 1, "hold": 1}, {})
    assert sum(version["steps"] for version in traced["left"]["versions"]) == 6  # the last step executes no decision
