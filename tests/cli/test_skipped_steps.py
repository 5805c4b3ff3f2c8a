"""A run whose losses stop being finite says so, step by step, and ends with one line."""

from pathlib import Path

from tests.cli.command import SMALL, launch, one_line

PLANTED = '''
import numpy as np

from embodied.rewards.stage import TaskReward


class Planted(TaskReward):
    """One reward of every segment is infinite."""

    def score(self, segment):
        segment = super().score(segment)
        segment.rewards[0, 0] = np.inf
        return segment
'''


def test_a_loss_that_is_not_finite_is_said_and_ends_the_run_at_a_bound(tmp_path: Path) -> None:
    (tmp_path / "planted.py").write_text(PLANTED)
    done = launch("train", *SMALL, "reward._target_=planted.Planted", "name=a", folder=tmp_path, timeout=280.0)
    line = one_line(done, status=3)
    assert "not finite 17 times in a row" in line
    said = done.stdout + done.stderr
    for count in (8, 16):
        assert f"step skipped: loss or gradient not finite ({count} so far)" in said
