"""`embodied eval` on tasks and splits, against another version, and of what it cannot do."""

import json
from pathlib import Path

import pytest
from command import SMALL

from embodied.cli.compose import compose_config
from embodied.cli.eval import main
from embodied.errors import UserError
from embodied.runtime.train import train

WORDS = ["task=reach_color", *SMALL[1:], "budget.env_steps=256", "name=a", "evaluate.every=40"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("eval") / "runs"
    words = [*WORDS, f"runs={folder}", "task.phrasings=train"]
    assert train(compose_config("train", words), words) == 0
    return str(folder)


def evaluated(runs: str, capsys: pytest.CaptureFixture[str], *words: str) -> tuple[list[str], dict]:
    capsys.readouterr()
    assert main([f"runs={runs}", "run=a", "episodes=6", "threads=1", "--json", *words]) == 0
    *lines, last = capsys.readouterr().out.splitlines()
    return lines, json.loads(last)


def test_without_tasks_and_splits_there_is_one_line_and_the_counts(runs, capsys):
    lines, result = evaluated(runs, capsys)
    assert lines[0] == "6 episodes planned, 6 played, 0 infrastructure faults"
    assert len(lines) == 2 and lines[1].startswith("reach_color: success ") and "of 6 episodes" in lines[1]
    (cell,) = result["cells"]
    assert cell["split"] is None and cell["actions_digest"] == result["actions_digest"]
    assert {"run", "task", "success_rate", "success_ci95", "seed", "outcomes", "steps_mean"} <= result.keys()
    assert evaluated(runs, capsys, "batch=4")[1] == result


def test_a_row_for_each_split_and_a_total(runs, capsys):
    words = ["splits=[seen,wrong_instruction]", "videos=1", "label=mine"]
    lines, result = evaluated(runs, capsys, *words)
    assert [line.split()[:2] for line in lines[:3]] == [
        ["task", "split"], ["reach_color", "seen"], ["reach_color", "wrong_instruction"]
    ]  # fmt: skip
    assert lines[3].split()[:2] == ["total", "12"]
    assert "12 episodes planned, 12 played" in lines[-2]
    assert sum(cell["successes"] for cell in result["cells"]) == result["successes"]
    for cell in result["cells"]:
        for path in map(Path, cell["videos"]):
            assert f"video {path}" in lines
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
        (["episodes=0"], "choose 1 to 65536"),
        (["batch=0"], "choose 1 to 65536"),
        (["against=a"], "compared with itself"),
        (["against=b"], "no run b"),
        (["against_version=1"], "give against=RUN"),
        (["label=../x"], "label cannot be"),
        (["against=a", "serve=remote", "serve.address=ipc:///tmp/nobody"], "leave serve out"),
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
    from embodied.runtime import run_folder
    from embodied.runtime.settings import CONFIG

    folder = run_folder.create(tmp_path, "empty")
    write_bytes(folder / CONFIG, OmegaConf.to_yaml(compose_config("train", WORDS)).encode())
    with pytest.raises(UserError, match="published no version"):
        main([f"runs={tmp_path}", "run=empty"])
