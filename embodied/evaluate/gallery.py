"""Tasks and the success of their scripted experts, as rows of a list and as videos."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from annotated_types import Interval
from numpy.typing import NDArray

from embodied.data import ActionChunk, Observation, Outcome, Source
from embodied.errors import ConfigError
from embodied.monitor.stats import wilson
from embodied.rollout.env import Env
from embodied.rollout.play import Played, by_expert, play
from embodied.runs.parts import make_env
from embodied.settings import Rows, Seed, require, settings
from embodied.spec import PolicySpec
from simulators.make import task_names
from simulators.render.video import Clip, Video, write_video
from simulators.tabletop import decode_text
from simulators.task import Task

MAX_EPISODES = 100


@settings()
class PlaySettings:
    """Settings of `embodied play`.

    Attributes:
        seed, episodes: One episode of each seed from `seed` on.
        out: Video to write.
        camera: Name of a camera of the scene.
        renderer: `auto`, `ray`, `gl` or `quality`.
    """

    task: dict[str, Any]
    env: dict[str, Any]
    seed: Seed = 0
    episodes: Annotated[int, Interval(ge=1, le=MAX_EPISODES)] = 1
    out: str | None = None
    camera: str = "video"
    renderer: Literal["auto", "ray", "gl", "quality"] = "auto"

    def __post_init__(self) -> None:
        require(self.out is None or self.out.endswith(".mp4"), "out", self.out, "name a file that ends in .mp4")


@settings()
class TasksSettings:
    """Settings of `embodied tasks`.

    Attributes:
        episodes: Seeds, from 0 on, on which each task's expert is measured.
    """

    episodes: Rows = 200


@dataclass(frozen=True)
class Recording:
    """Episodes of the expert on a task.

    Attributes:
        task: The task.
        played: Outcomes, lengths, returns.
        states: Per episode [L + 1, S], the start first.
        instructions: Per episode.
    """

    task: Task
    played: Played
    states: list[NDArray[np.float64]]
    instructions: list[str]

    def clips(self) -> list[Clip]:
        played = self.played
        return [
            Clip(states, f"{words} · seed {seed}", Outcome(int(outcome)))
            for states, words, seed, outcome in zip(
                self.states, self.instructions, played.seeds, played.outcomes, strict=True
            )
        ]


@dataclass(frozen=True)
class Shown:
    """Result of `play_video`: the episodes, the file, and its properties."""

    recording: Recording
    path: Path
    video: Video


def is_simulated_here(task: dict[str, Any]) -> bool:
    """Whether a task configuration is one of this project's own simulator."""
    return "env" not in task


def describe_task(label: str, task: dict[str, Any], env: dict[str, Any], episodes: int) -> dict[str, Any]:
    """Description of a task configuration with its expert's success, as JSON values.

    Args:
        label: Name of the configuration.
        task: Its `name` and options.
        env: Settings of its environments.
        episodes: Seeds to measure the expert on, from 0 on; tasks of other simulators are not measured.

    Returns:
        `task`, `robot`, `cameras`, `instruction`, and of the expert `episodes`, `successes`, `success_rate` and
        `success_ci95`, the Wilson interval; those four are None for tasks of other simulators.
    """
    unknown = dict.fromkeys(("episodes", "successes", "success_rate", "success_ci95"))
    if not is_simulated_here(task):
        name = task.get("env", task.get("name"))
        words = task.get("instruction", "")
        return {"task": label, "robot": f"worker: {name}", "cameras": [], "instruction": words} | unknown
    made = make_env(task, env, episodes, seed=0, autoreset=False)
    try:
        model, spec = simulated_task(made).model, made.spec
        played = play_expert(made, np.arange(episodes))
    finally:
        made.close()
    return {
        "task": label,
        # As `simulators.scene.table_scene` names its models.
        "robot": model.names.split(b"\0", 1)[0].decode().removesuffix("_table"),
        "cameras": [model.camera(i).name for i in range(model.ncam)],
        "instruction": spec.instruction,
        "episodes": played.counted,
        "successes": played.successes,
        "success_rate": played.successes / max(played.counted, 1),
        "success_ci95": list(wilson(played.successes, played.counted)),
    }


def play_expert(env: Env, seeds: NDArray[np.int64], states: list[NDArray[np.float64]] | None = None) -> Played:
    """Play the expert's episode of each seed; the states [B, S] before each step are appended to `states`."""
    policy = PolicySpec("expert", env.spec.agents[env.spec.only_agent])
    expert = by_expert(env, policy)

    def decide(seen: Observation) -> ActionChunk:
        if states is not None:
            states.append(env.snapshot()["state"])
        return expert(seen)

    return play(env, decide, seeds, policy, id="expert", mode="demonstration", source=Source.SCRIPT)


def record_expert(task: dict[str, Any], env: dict[str, Any], seed: int, episodes: int) -> Recording:
    """Play the expert on one episode of each seed from `seed` on.

    Raises:
        ConfigError: The task is not simulated in this process.
    """
    if not is_simulated_here(task):
        fix = f"choose one of this project's: {', '.join(task_names())}"
        raise ConfigError(f"task {task.get('name')} has no scripted expert here", "task", fix)
    made = make_env(task, env, episodes, seed, autoreset=False)
    try:
        states: list[NDArray[np.float64]] = []
        played = play_expert(made, np.arange(seed, seed + episodes), states)
        states.append(made.snapshot()["state"])
        spec = made.spec
        simulated = simulated_task(made)
    finally:
        made.close()
    words = played.segment.observations.get("instruction")
    said = [spec.instruction] * episodes if words is None else [decode_text(text) for text in words[0]]
    episode_states = [
        np.stack([states[t][row] for t in range(length + 1)]) for row, length in enumerate(played.lengths)
    ]
    return Recording(simulated, played, episode_states, said)


def simulated_task(env: Env) -> Task:
    """Task of environments that are simulated in this process.

    Raises:
        ConfigError: They are simulated elsewhere.
    """
    task: Task | None = getattr(env, "task", None)
    if task is None:
        raise ConfigError("these environments are not simulated in this process", "env", "use env=mujoco")
    return task


def play_video(settings: PlaySettings, label: str) -> Shown:
    """Play the expert and write a video of one camera, `<label>.mp4` unless the settings name a file.

    Raises:
        ConfigError: Unknown camera, or the task is not simulated in this process.
    """
    recording = record_expert(settings.task, settings.env, settings.seed, settings.episodes)
    path = Path(settings.out or f"{label}.mp4")
    hz = recording.task.spec.control_hz
    clips = recording.clips()
    return Shown(
        recording, path, write_video(path, recording.task.model, clips, hz, settings.camera, settings.renderer)
    )
