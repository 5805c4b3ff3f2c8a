"""`success.png`: the success of a run over its environment steps and seconds, from `metrics.csv`."""

import importlib.util
import io
import math
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embodied.files import write_bytes
from embodied.monitor.metrics import FILE as METRICS
from embodied.monitor.metrics import read_metrics
from embodied.monitor.stats import wilson

FILE = "success.png"

ENV_STEPS = "rollout/env_steps"
GRADIENT_STEPS = "learner/bc_steps"
ELAPSED = "wall/s"
ROLLOUT = ("rollout/success_rate", "rollout/episodes")
EVALUATION = ("eval/success_rate", "eval/episodes")

_INK, _MUTED, _ROLLOUT, _EVALUATION = "#1f2933", "#7b8794", "#2f6fb2", "#d1602b"

Column = NDArray[np.float64]
POOL = 64  # training episodes of one point


def success_points(
    metrics: dict[str, list[float]], names: tuple[str, str], pool: int = 1, along: str = ENV_STEPS
) -> dict[str, Column]:
    """Data of one curve: `steps`, `seconds`, `rate`, `low`, `high`, one number per point.

    Args:
        metrics: Columns of `read_metrics`.
        names: Columns of the success rate and of the episodes it was counted over; the ends of the interval are those
            of Wilson's at 95 %.
        along: Column of `steps`.
        pool: Rows are joined until they count this many episodes, so that a few do not look like a rate.
    """
    steps = np.asarray(metrics.get(along, []))
    blank = np.full(len(steps), math.nan)
    rate, episodes, seconds = (np.asarray(metrics.get(name, blank)) for name in (*names, ELAPSED))
    known = np.isfinite(steps) & np.isfinite(rate) & (np.nan_to_num(episodes) > 0)
    steps, rate, episodes, seconds = (column[known] for column in (steps, rate, episodes, seconds))
    groups = np.cumsum(episodes) // pool
    last = np.flatnonzero(np.diff(groups, prepend=0) > 0)
    won, counted = (np.diff(np.cumsum(column)[last], prepend=0) for column in (np.round(rate * episodes), episodes))
    steps, seconds, rate, episodes = steps[last], seconds[last], won / counted, counted
    ends = [wilson(round(r * n), round(n)) for r, n in zip(rate, episodes, strict=True)]
    low, high = np.array(ends, np.float64).reshape(-1, 2).T
    return {"steps": steps, "seconds": seconds, "rate": rate, "low": low, "high": high}


def plot_success(folder: Path, title: str = "", target: float | None = None) -> str:
    """Draw a run's success curve into its folder.

    Args:
        folder: The run, whose metrics have the columns named at the head of this file.
        title: Stands above the plot; the run's name by default.
        target: Success rate the run aims at, drawn as a line.

    Returns:
        Empty, or one line that says why there is no plot: matplotlib is not installed.

    Raises:
        CorruptFile: The metrics cannot be read.
    """
    if not importlib.util.find_spec("matplotlib"):
        return f"no {FILE}, since matplotlib is not installed: pip install -e '.[view]' in the clone"
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import EngFormatter, PercentFormatter

    metrics = read_metrics(folder / METRICS)
    made = np.asarray(metrics.get(ENV_STEPS, []))
    is_clone = GRADIENT_STEPS in metrics and len(np.unique(made[np.isfinite(made)])) == 1
    along = GRADIENT_STEPS if is_clone else ENV_STEPS
    curve, tests = success_points(metrics, ROLLOUT, POOL, along), success_points(metrics, EVALUATION, along=along)

    figure = Figure(figsize=(7.2, 4.2), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    if target is not None:
        axes.axhline(target, color=_MUTED, linewidth=1, linestyle=(0, (4, 3)), label=f"target {100 * target:.0f} %")
    if len(curve["steps"]):
        axes.fill_between(curve["steps"], curve["low"], curve["high"], color=_ROLLOUT, alpha=0.18, linewidth=0)
        axes.plot(curve["steps"], curve["rate"], color=_ROLLOUT, linewidth=1.6, label="rollout, with 95 % interval")
    spread = np.maximum(0.0, [tests["rate"] - tests["low"], tests["high"] - tests["rate"]])
    axes.errorbar(
        tests["steps"],
        tests["rate"],
        spread,
        fmt="o",
        markersize=5,
        color=_EVALUATION,
        elinewidth=1.2,
        capsize=2.5,
        zorder=3,
        label="evaluation",
    )

    axes.set_ylim(-0.02, 1.04)
    axes.set_xlim(left=0)
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    axes.set_xlabel("gradient steps of cloning" if is_clone else "environment steps", color=_INK)
    axes.set_ylabel("success", color=_INK)
    axes.set_title(title or folder.name, loc="left", color=_INK, fontsize=11)
    axes.grid(axis="y", color="#e4e7eb", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(colors=_INK, length=3)
    # Below the plot, where no point is.
    figure.legend(loc="outside lower center", ncols=3, frameon=False, fontsize=9, labelcolor=_INK)

    steps, seconds = np.asarray(metrics.get(along, [])), np.asarray(metrics.get(ELAPSED, []))
    if len(seconds) == len(steps) > 1 and np.all(np.isfinite([steps, seconds])) and np.all(np.diff(seconds) > 0):
        _add_seconds(axes, steps, seconds)
    png = io.BytesIO()
    figure.savefig(png, format="png")
    write_bytes(folder / FILE, png.getvalue())
    return ""


def _add_seconds(axes: Any, steps: Column, seconds: Column) -> None:
    """A second scale above the plot: wall seconds at round values, placed at the steps made by then."""
    from matplotlib.ticker import MaxNLocator

    top = axes.twiny()
    top.set_xlim(axes.get_xlim())
    ticks = [t for t in MaxNLocator(6, integer=True).tick_values(0, seconds[-1]) if seconds[0] <= t <= seconds[-1]]
    top.set_xticks(np.interp(ticks, seconds, steps), [f"{t:.0f} s" for t in ticks])
    top.tick_params(colors=_MUTED, length=3, labelsize=8)
    top.spines[["top", "right"]].set_visible(False)
