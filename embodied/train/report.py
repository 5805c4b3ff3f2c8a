"""Report of a run: the last evaluation, its summary, plot, video and one line."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from embodied.episode import Episode
from embodied.errors import ConfigError
from embodied.evaluate.video import record_video
from embodied.monitor.plots import plot_success
from embodied.monitor.stats import wilson
from embodied.monitor.summary import summarise, write_summary
from embodied.train.loop import Loop
from embodied.train.parts import Parts
from embodied.train.protocol import follow_protocol


def report(loop: Loop) -> str:
    """Evaluate the last version on seeds never used before, and write the results of the run.

    Returns:
        The line that ends the run.
    """
    parts, trained_s = loop.parts, loop.elapsed_s
    settings, given = parts.settings, parts.settings.evaluate
    parts.progress.update(phase="last evaluation")
    result = loop.evaluate(np.arange(given.final_seed, given.final_seed + given.final_episodes), "final")
    parts.store.seal()
    task, env_steps, version = settings.task.get("name"), loop.metrics.env_steps, loop.publisher.number
    summary: dict[str, Any] = summarise(
        successes=result.successes,
        episodes=result.counted,
        env_steps=env_steps,
        wall_s=trained_s,
        policy_version=version,
        task=task,
        seed=settings.seed,
        run=parts.folder.name,
        infrastructure_faults=parts.env.faults,
        origin=loop.origin,
        best={"policy_version": best[1], "success_rate": best[0]} if (best := loop.evaluator.best) else None,
    )
    write_summary(parts.folder, summary)
    if settings.compare.split is not None:
        protocol = follow_protocol(parts, trained_s)
        for text in protocol.lines():
            parts.progress.say(text)
        write_summary(parts.folder, summary | {"protocol": protocol.to_dict()})
    low, high = wilson(result.successes, result.counted)
    line = (
        f"{task}: success {result.successes}/{result.counted} = "
        f"{100 * result.successes / max(result.counted, 1):.1f} % (95 % interval {100 * low:.1f} to {100 * high:.1f}), "
        f"{env_steps:,} steps in {trained_s:.0f} s, version {version}"
    )
    try:
        return line + _pictures(parts, result.shown)
    except BaseException:
        parts.progress.say(line)  # the result is not lost with its pictures
        raise


def _pictures(parts: Parts, shown: Sequence[Episode]) -> str:
    """Draw the plot and the video; an addition to the line that ends the run."""
    settings = parts.settings
    parts.progress.update(phase="plot")
    title = f"{settings.task.get('name')}, seed {settings.seed}"
    if note := plot_success(parts.folder, title, settings.evaluate.target):
        parts.progress.say(note)
    if not shown:
        return ""
    if not all(len(episode.initial_state) for episode in shown):
        return ", no video: these environments give no states to draw"
    parts.progress.update(phase="video")
    path = parts.folder / "evaluation.mp4"
    try:
        video = record_video(path, settings.task, shown, settings.render.renderer)
    except ConfigError as error:
        return f", no video: {error.line()}"
    if video.hint:
        parts.progress.say(f"the video was drawn without GL; {video.hint}")
    return f", video {path}"
