"""Results of a run are printed although its plot or video cannot be drawn."""

import errno
from pathlib import Path

import pytest

from embodied.cli.compose import compose_config
from embodied.monitor.summary import read_summary
from embodied.runtime.train import train
from embodied.train import report

TINY = [
    "task=reach", "rollout.num_envs=4", "rollout.steps=8", "budget.env_steps=32", "evaluate.episodes=2",
    "evaluate.final_episodes=3", "evaluate.every=100", "algo.epochs=1", "algo.minibatches=1", "render.episodes=1",
    "env.num_threads=1", "runtime.threads=1", "policy.hidden=[4]",
]  # fmt: skip


@pytest.mark.parametrize("name", ["plot_success", "record_video"])
def test_a_full_disk_comes_after_what_was_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    def full(*given: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(report, name, full)
    words = [*TINY, f"runs={tmp_path}", "name=a"]
    with pytest.raises(OSError, match="No space left"):
        train(compose_config("train", words), words)
    assert "reach: success 0/3 = 0.0 % (95 % interval" in "".join(capsys.readouterr())
    assert read_summary(tmp_path / "a")["episodes"] == 3
