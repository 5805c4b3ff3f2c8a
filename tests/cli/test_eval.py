"""`embodied eval` on tasks and splits, against another version, and of what it cannot do."""

import json
from pathlib import Path
from shutil import copytree

import pytest

from embodied.cli.compose import compose_config
from embodied.cli.eval import main
from embodied.errors import InfrastructureError, UserError
from embodied.evaluate import failures
from embodied.evaluate.evaluation import _told_apart
from embodied.runtime.train import train
from simulators.render import video
from tests.cli.command import SMALL, launch, one_line

WORDS = ["task=reach_color", *SMALL[1:], "budget.env_steps=256", "name=a", "evaluate.every=40"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("eval") / "runs"
    words = [*WORDS, f"runs={folder}", "task.phrasings=train"]
    assert train(compose_config("train", words), words).is_dir()
    return str(folder)


def evaluated(runs: str, capsys: pytest.CaptureFixture[str], *words: str) -> tuple[list[str], dict]:
    capsys.readouterr()
    assert main([f"runs={runs}", "run=a", "episodes=6", "threads=1", "--json", *words]) == 0
    *lines, last = capsys.readouterr().out.splitlines()
    return lines, json.loads(last)


def test_the_command_is_there(tmp_path: Path) -> None:
    assert "no run nothing" in one_line(launch("eval", "run=nothing", folder=tmp_path))


def test_without_tasks_and_splits_there_is_one_line_and_the_counts(runs, capsys):
    lines, result = evaluated(runs, capsys)
    assert lines[0] == "6 episodes planned, 6 played, 0 infrastructure faults"
    assert len(lines) == 2 and lines[1].startswith("reach_color: success ") and "of 6 episodes" in lines[1]
    (cell,) = result["cells"]
    assert cell["split"] is None and cell["actions_digest"] == result["actions_digest"]
    assert {"run", "task", "success_rate", "success_ci95", "seed", "outcomes", "steps_mean"} <= result.keys()
    assert evaluated(runs, capsys, "batch=4")[1] == result


def test_where_the_newest_version_is_damaged_an_older_one_is_taken_and_named(runs, capsys, tmp_path):
    copytree(Path(runs) / "a", tmp_path / "a")
    *_, older, newest = sorted(
        (tmp_path / "a" / "weights" / "mlp").glob("[0-9]*"), key=lambda f: int(f.name.split("-")[0])
    )
    (newest / "manifest.json").write_text("{")
    lines, result = evaluated(str(tmp_path), capsys)
    number = older.name.split("-")[0]
    assert any(line.startswith(f"version {number} is taken: ") for line in lines)
    assert result["policy_versions"] == [int(number)]


def test_a_row_for_each_split_and_a_total(runs, capsys):
    words = ["splits=[seen,wrong_instruction]", "videos=1", "label=mine"]
    lines, result = evaluated(runs, capsys, *words)
    assert [line.split()[:2] for line in lines[:3]] == [
        ["task", "split"], ["reach_color", "seen"], ["reach_color", "wrong_instruction"]
    ]  # fmt: skip
    assert lines[3].split()[:2] == ["total", "12"]
    assert "12 episodes planned, 12 played" in lines[4] and lines[5].startswith("reach_color: success ")
    assert sum(cell["successes"] for cell in result["cells"]) == result["successes"]
    for cell in result["cells"]:
        for path in map(Path, cell["videos"]):
            assert f"video {path}" in lines[6:]
            assert path.parent == Path(runs) / "a" / "eval" / "mine" / f"reach_color-{cell['split']}"
            assert path.name.startswith("seed-100") and path.name.endswith("cube.mp4") and path.stat().st_size > 1000
        assert len(cell["videos"]) == min(1, 6 - cell["successes"])


def test_two_versions_on_the_same_episodes(runs, capsys):
    versions = sorted(int(f.name.split("-")[0]) for f in (Path(runs) / "a" / "weights" / "mlp").iterdir() if f.is_dir())
    lines, result = evaluated(runs, capsys, "against=a", f"against_version={versions[0]}")
    assert result["policy_versions"] == [versions[-1]] and result["against"]["policy_versions"] == [versions[0]]
    (found,) = result["comparison"]
    assert found["pairs"] == 6 and 0 <= found["p"] <= 1
    assert found["only_first"] - found["only_second"] == result["successes"] - result["against"]["successes"]
    assert f"reach_color: {found['sentence']}" in lines and "12 episodes planned, 12 played" in lines[-3]


def test_what_was_measured_is_said_before_an_encoder_fails(runs, capsys, monkeypatch):
    written = failures.write_video

    def full(path, *given):
        if path.parent.name.endswith("wrong_instruction"):
            raise InfrastructureError("the video encoder failed: No space left on device", str(path))
        return written(path, *given)

    monkeypatch.setattr(failures, "write_video", full)
    monkeypatch.setattr(video, "_BUDGET", 2)
    with pytest.raises(InfrastructureError, match="No space left"):
        evaluated(runs, capsys, "splits=[seen,wrong_instruction]", "videos=1", "label=full")
    *lines, last = capsys.readouterr().out.splitlines()
    result = json.loads(last)
    assert result["episodes"] == 12 and [len(cell["videos"]) for cell in result["cells"]] == [1, 0]
    assert lines[-2].startswith("reach_color: success ") and lines[-1] == f"video {result['cells'][0]['videos'][0]}"


def test_runs_of_one_name_are_called_by_more_of_their_paths(runs, capsys, tmp_path):
    other = tmp_path / "other" / "a"
    copytree(Path(runs) / "a", other)
    lines, result = evaluated(runs, capsys, f"against={other}", "splits=[seen,wrong_instruction]")
    names = ("runs/a", "other/a")
    assert [line.split()[:3] for line in lines if " total " in line] == [[name, "total", "12"] for name in names]
    assert {(found["first"], found["second"]) for found in result["comparison"]} == {names}
    assert _told_apart(Path("/a"), Path("/x/a")) == ("/a", "x/a")
    assert _told_apart(Path("/x/y/a"), Path("/z/y/a")) == ("x/y/a", "z/y/a")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["splits=[colour]"], "did you mean colours"),
        (["tasks=[reach_colour]"], "did you mean reach_color"),
        (["splits=[seen,seen]"], "name each once"),
        (["tasks=lift_cube", "splits=[wrong_instruction]"], "split wrong_instruction does not fit: task lift_cube"),
        (["tasks=lift_cube", "splits=[wrong_instruction]", "videos=1"], "split wrong_instruction does not fit"),
        (["tasks=[reach_color,lift_cube]"], "needs stream red_pos"),
        (["tasks=reach_color", "splits=[wrong_instruction]", "videos=1", "camera=frnt"], "did you mean front"),
        (["episodes=0"], "from 1 to 65536"),
        (["batch=0"], "from 1 to 65536"),
        (["against=a"], "compared with itself"),
        (["against=b"], "no run b"),
        (["against_version=1"], "give against=RUN"),
        (["label=../x"], "label cannot be"),
        (["against=a", "client=remote", "client.address=ipc:///tmp/nobody"], "leave client out"),
    ],
)
def test_a_mistake_gets_one_line_before_anything_is_played(runs, capsys, words, said):
    with pytest.raises(UserError, match=said) as caught:
        main([f"runs={runs}", "run=a", "episodes=6", "threads=1", *words])
    assert "\n" not in caught.value.line()
    assert "planned" not in capsys.readouterr().out


def test_a_run_without_versions_is_named(tmp_path):
    from omegaconf import OmegaConf

    from embodied.files import write_bytes
    from embodied.runs import run_folder
    from embodied.runs.settings import CONFIG

    folder = run_folder.create(tmp_path, "empty")
    write_bytes(folder / CONFIG, OmegaConf.to_yaml(compose_config("train", WORDS)).encode())
    with pytest.raises(UserError, match="published no version"):
        main([f"runs={tmp_path}", "run=empty"])
