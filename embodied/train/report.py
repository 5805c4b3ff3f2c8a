"""The end of a run: the last evaluation, its summary, plot, video and one line."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from embodied.data import Episode
from embodied.evaluate.video import record_video
from embodied.monitor.plots import plot_success
from embodied.monitor.stats import wilson
from embodied.monitor.summary import summarise, write_summary
from embodied.train.loop import InlineRun
from embodied.train.protocol import follow_protocol


def report(run: InlineRun) -> str:
    """Evaluate the last version on seeds never used before, and write what the run came to.

    Returns:
        The line that ends the run.
    """
    settings = run.settings.evaluate
    trained_s = run.elapsed_s
    run.progress.update(phase="last evaluation")
    seeds = np.arange(settings.final_seed, settings.final_seed + settings.final_episodes)
    played, episodes = run.test(seeds, "final")
    run.store.seal()
    summary: dict[str, Any] = summarise(
        successes=played.successes,
        episodes=played.counted,
        env_steps=run.env_steps,
        wall_s=trained_s,
        policy_version=run.publisher.number,
        task=run.settings.task.get("name"),
        seed=run.settings.seed,
        run=run.folder.name,
        infrastructure_faults=run.env.faults,
        origin=run.origin,
    )
    write_summary(run.folder, summary)
    if run.settings.compare.split is not None:
        protocol = follow_protocol(run, trained_s)
        for text in protocol.lines():
            run.progress.say(text)
        write_summary(run.folder, summary | {"protocol": protocol.to_dict()})
    low, high = wilson(played.successes, played.counted)
    line = (
        f"{run.settings.task.get('name')}: success {played.successes}/{played.counted} = "
        f"{100 * played.successes / max(played.counted, 1):.1f} % (95 % interval {100 * low:.1f} to {100 * high:.1f}), "
        f"{run.env_steps:,} steps in {trained_s:.0f} s, version {run.publisher.number}"
    )
    try:
        return line + _pictures(run, episodes)
    except BaseException:
        run.progress.say(line)  # what was measured is not lost with its pictures
        raise


def _pictures(run: InlineRun, episodes: Sequence[Episode]) -> str:
    """Draw the plot and the video; returns what is to be added to the line that ends the run."""
    settings = run.settings
    run.progress.update(phase="plot and video")
    if note := plot_success(run.folder, f"{settings.task.get('name')}, seed {settings.seed}", settings.evaluate.target):
        run.progress.say(note)
    shown = episodes[: settings.render.episodes]
    if not shown:
        return ""
    if not all(len(episode.initial_state) for episode in shown):
        return ", no video: these envs tell no states that it could be drawn from"
    path = run.folder / "evaluation.mp4"
    video = record_video(path, settings.task, shown, settings.render.renderer)
    if video.hint:
        run.progress.say(f"the video was drawn without GL; {video.hint}")
    return f", video {path}"
