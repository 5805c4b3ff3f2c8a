"""`embodied episodes replay` on a run with cameras and randomisation that was stopped and resumed."""

import json
from pathlib import Path

import pytest

from embodied.buffer.store import EpisodeStore
from embodied.cli.episodes import main
from embodied.errors import UserError
from embodied.monitor.metrics import read_metrics
from tests.cli.command import SMALL, embodied, launch

WORDS = [
    "randomise=default", "env.cameras=[wrist]", "env.pixels=16", "render=ray", "episodes.keep=[all]",
    "episodes.pictures=all",
    "env.randomise.action_latency=[0,2]", "evaluate.every=9",
]  # fmt: skip
SHORT, LONG = "budget.env_steps=512", "budget.env_steps=1024"


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run `whole`, and `halves`, which was stopped midway and resumed."""
    folder = tmp_path_factory.mktemp("episodes")
    small = [word for word in SMALL if not word.startswith("evaluate.every")]
    for words in (["name=whole", LONG], ["name=halves", SHORT]):
        done = embodied("train", *small, *WORDS, "render.episodes=1", *words, folder=folder)
        assert done.returncode == 0, done.stderr
    done = embodied("train", "resume=halves", LONG, folder=folder)
    assert done.returncode == 0, done.stderr
    return folder


def test_a_resumed_run_goes_on_bit_for_bit(root: Path) -> None:
    whole, halves = (read_metrics(root / "runs" / name / "metrics.csv") for name in ("whole", "halves"))
    for name in ("learner/policy_loss", "rollout/reward_mean"):
        assert whole[name][-1] == halves[name][-1], name


def test_episodes_replay(root: Path) -> None:
    stored = EpisodeStore(root / "runs" / "halves" / "episodes")
    trained = [s.id for s in stored.summary() if s.mode == "train"]
    evaluated = [s.id for s in stored.summary() if s.mode == "evaluation"]
    assert len(trained) == 16
    for id in (trained[0], evaluated[-1]):
        done = embodied("episodes", "replay", id, "run=halves", folder=root)
        assert (done.returncode, done.stdout) == (0, f"identical: {len(stored.read(id))} steps, 8 streams\n")
    done = embodied("episodes", "replay", trained[1], "run=halves", "task.reward=sparse", "--json", folder=root)
    found = json.loads(done.stdout)
    assert done.returncode == 2 and found["step"] == 0 and "reward" in found["differs"][0]
    shown = launch("episodes", "show", trained[0], "run=halves", folder=root)
    assert "action_latency: " in shown.stdout and "colour: [22, 3] from -0." in shown.stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["replay"], "takes one episode"),
        (["replay", "nothing"], "no episode nothing"),
        (["replay", "ID", "task.rewad=sparse"], "did you mean reward"),
        (["replay", "ID", "env.randomise.mas=1"], "did you mean mass"),
        (["replay", "ID", "env.cameras=[rist]"], "did you mean wrist"),
        (["replay", "ID", "task.reward={"], "cannot be read"),
        (["show", "ID", "task.reward=sparse"], "unknown key 'task.reward'"),
        (["reply", "ID"], "did you mean replay"),
    ],
)
def test_a_mistake_gets_one_line(root: Path, words: list[str], said: str) -> None:
    id = EpisodeStore(root / "runs" / "whole" / "episodes").ids()[0]
    words = [id if word == "ID" else word for word in words]
    with pytest.raises(UserError) as caught:
        main([*words, "run=whole", f"runs={root / 'runs'}"])
    assert said in caught.value.line() and "\n" not in caught.value.line()
