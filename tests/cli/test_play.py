"""`embodied play`: every task's expert as a video, and one line on a mistake."""

from pathlib import Path

import imageio.v3 as iio
import numpy as np
import pytest

from embodied.cli import play
from embodied.cli.compose import compose_config, groups
from embodied.data import Outcome
from embodied.evaluate import gallery
from embodied.runs.settings import typed
from tests.cli.command import launch, one_line

CONFIGS = groups()["task"]


def settings(task: str, **changes: object) -> gallery.PlaySettings:
    words = [f"task={task}", *(f"{key}={value}" for key, value in changes.items())]
    return typed(gallery.PlaySettings, compose_config("play", words))


@pytest.mark.parametrize("task", CONFIGS)
def test_the_recorded_states_are_the_episodes(task: str) -> None:
    parts = settings(task)
    if not gallery.is_simulated_here(parts.task):
        pytest.skip("another simulator's")
    recording = gallery.record_expert(parts.task, parts.env, seed=3, episodes=4)
    played = recording.played
    assert played.seeds.tolist() == [3, 4, 5, 6]
    assert [len(states) for states in recording.states] == (played.lengths + 1).tolist()
    assert played.segment.starts is not None
    for states, start in zip(recording.states, played.segment.starts.state, strict=True):
        assert np.array_equal(states[0], start)
        assert len(np.unique(states[:, 0])) == len(states)  # the time goes on, also in the last step
    assert all(recording.instructions)
    assert [clip.outcome for clip in recording.clips()] == [Outcome(int(outcome)) for outcome in played.outcomes]


def test_a_video_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert play.main(["task=lift_cube", "seed=2", "render=ray", "camera=front", "env.num_threads=1"]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[0].startswith("seed 2: ") and ": success in " in said[0]
    assert said[1].startswith("lift_cube.mp4: ") and "drawn by ray" in said[1]
    steps = int(said[0].split()[-2])
    frames = iio.imread(tmp_path / "lift_cube.mp4")
    assert len(frames) > steps and frames[0].shape == (480, 640, 3)
    assert not np.array_equal(frames[0], frames[steps])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["task=lift_cub"], "did you mean lift_cube"),
        (["task=reach", "camera=vidoe", "render=ray"], "did you mean video"),
        (["task=reach", "renderer=rays"], "did you mean ray"),
        (["task=reach", "episodes=0"], "episodes"),
        (["task=reach", "out=a.gif"], "out"),
        (["task=reach", "sed=1"], "did you mean seed"),
        (["task=fetch_push"], "no scripted expert here"),
        (["task=reach", "task.name=reech"], "no task is called 'reech'.*did you mean reach"),
    ],
)
def test_mistakes_are_one_line(words: list[str], said: str) -> None:
    with pytest.raises(gallery.ConfigError, match=said) as caught:
        play.main(words)
    assert "\n" not in caught.value.line()


def test_the_command_is_there(tmp_path: Path) -> None:
    assert "did you mean lift_cube" in one_line(launch("play", "task=lift_cbue", folder=tmp_path))
    assert not list(tmp_path.iterdir())
