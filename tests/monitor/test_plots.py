from pathlib import Path

import numpy as np
import pytest

from embodied.monitor import plots
from embodied.monitor.metrics import MetricsWriter
from embodied.monitor.stats import wilson


def _write(folder: Path) -> Path:
    with MetricsWriter(folder) as writer:
        writer.write(0, {plots.ENV_STEPS: 0, plots.ELAPSED: 1.0})
        for step in range(1, 9):
            row: dict[str, float] = {plots.ENV_STEPS: 100 * step, plots.ELAPSED: 1.0 + step}
            row |= {plots.ROLLOUT[0]: step / 8, plots.ROLLOUT[1]: 8}
            if step % 4 == 0:
                row |= {plots.EVALUATION[0]: step / 10, plots.EVALUATION[1]: 10}
            writer.write(step, row)
    return writer.path


def test_points_are_the_rows_with_a_rate(tmp_path: Path) -> None:
    points = plots.success_points(plots.read_metrics(_write(tmp_path)), plots.EVALUATION)
    np.testing.assert_array_equal(points["steps"], [400, 800])
    np.testing.assert_array_equal(points["seconds"], [5, 9])
    np.testing.assert_array_equal(points["rate"], [0.4, 0.8])
    assert (points["low"][1], points["high"][1]) == wilson(8, 10)


def test_without_columns_there_are_no_points() -> None:
    assert all(len(column) == 0 for column in plots.success_points({}, plots.ROLLOUT).values())


@pytest.mark.parametrize("target", [None, 0.95])
def test_a_png_is_drawn(tmp_path: Path, target: float | None) -> None:
    image = pytest.importorskip("matplotlib.image")
    picture = tmp_path / plots.FILE
    _write(tmp_path)
    assert plots.plot_success(tmp_path, "reach", target) == ""
    pixels = image.imread(picture)[..., :3]
    assert pixels.shape[0] > 400 and pixels.shape[1] > 800
    assert pixels.reshape(-1, 3).std(axis=0).min() > 0.02
    assert not list(tmp_path.glob(".tmp-*"))


def test_a_clone_is_drawn_along_its_gradient_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")
    with MetricsWriter(tmp_path) as writer:
        for row in (-6, -2, 0):
            values = {plots.ENV_STEPS: 300, plots.GRADIENT_STEPS: 100 + row, plots.ELAPSED: 9.0 + row}
            writer.write(row, values | {plots.EVALUATION[0]: 0.5, plots.EVALUATION[1]: 10})
    drawn, points = [], plots.success_points
    monkeypatch.setattr(plots, "success_points", lambda *a, **k: drawn.append(points(*a, **k)) or drawn[-1])
    assert plots.plot_success(tmp_path) == ""
    assert drawn[1]["steps"].tolist() == [94, 98, 100]


def test_a_run_without_rows_is_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    MetricsWriter(tmp_path).close()
    plots.plot_success(tmp_path, target=0.9)
    assert (tmp_path / plots.FILE).stat().st_size > 1000


def test_without_matplotlib_there_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plots.importlib.util, "find_spec", lambda name: None)
    _write(tmp_path)
    assert "pip install -e '.[view]' in the clone" in plots.plot_success(tmp_path)
    assert not (tmp_path / plots.FILE).exists()
