import subprocess
import sys
from pathlib import Path

import pytest

from embodied.monitor.metrics import MetricsWriter


def _scalars(folder: Path, tag: str) -> list[tuple[int, float]]:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    events = accumulator.EventAccumulator(str(folder)).Reload()
    return [(event.step, event.value) for event in events.Scalars(tag)]


def test_tensorboard_reads_what_was_written(tmp_path: Path) -> None:
    with MetricsWriter(tmp_path) as writer:
        for step in range(4):
            writer.write(step, {"learner/loss": 1.5 * step})
    assert _scalars(tmp_path / "tensorboard", "learner/loss") == [(0, 0), (1, 1.5), (2, 3), (3, 4.5)]


def test_a_resumed_run_replaces_later_steps(tmp_path: Path) -> None:
    with MetricsWriter(tmp_path) as writer:
        for step in range(6):
            writer.write(step, {"learner/loss": 1})
    with MetricsWriter(tmp_path) as writer:
        writer.truncate_after(2)
        for step in range(3, 5):
            writer.write(step, {"learner/loss": 2})
    assert _scalars(tmp_path / "tensorboard", "learner/loss") == [(0, 1), (1, 1), (2, 1), (3, 2), (4, 2)]


def test_without_torch_and_without_tensorboard(tmp_path: Path) -> None:
    code = """
import pathlib, sys
if sys.argv[2] == "none":
    sys.modules["tensorboard"] = None
from embodied.monitor.metrics import MetricsWriter
with MetricsWriter(pathlib.Path(sys.argv[1])) as writer:
    writer.write(0, {"a/x": 1})
assert "torch" not in sys.modules
"""
    for kind in ("none", "tensorboard"):
        folder = tmp_path / kind
        folder.mkdir()
        subprocess.run([sys.executable, "-c", code, str(folder), kind], check=True, timeout=60)
        assert (folder / "metrics.csv").read_text() == "step,a/x\n0,1\n"
        assert (folder / "tensorboard").exists() is (kind == "tensorboard")
