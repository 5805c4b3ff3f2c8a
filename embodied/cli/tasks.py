"""`embodied tasks`."""

import json
from collections.abc import Sequence
from typing import Any

from embodied.cli.compose import compose_config, groups, show_help
from embodied.errors import ConfigError, nearest

HELP = """\
embodied tasks [task=NAME] [robot=NAME] [episodes=200] [--json]

Lists every task configuration with its robot, cameras and instruction, and measures its scripted expert: the share of
seeds on which it succeeds, with the 95 % Wilson interval.

  embodied tasks episodes=50    faster
  embodied tasks task=stack     one of them
  embodied tasks task=stack robot=so101   of another robot
  embodied tasks --json         a line of JSON per task
"""
ROW = "{:<20} {:<30} {:<29} {:<22} {}"


def main(arguments: Sequence[str]) -> int:
    if show_help(arguments, HELP, "tasks"):
        return 0
    known = groups()["task"]
    chosen = [word.removeprefix("task=") for word in arguments if word.startswith("task=")]
    for label in chosen:
        if label not in known:
            raise ConfigError(f"unknown task {label!r}", f"task={label}", nearest(label, known))
    words = [word for word in arguments if word != "--json" and not word.startswith(("task=", "robot="))]
    robot = [word for word in arguments if word.startswith("robot=")]
    config = compose_config("tasks", words)
    from embodied.evaluate.gallery import PlaySettings, TasksSettings, describe_task
    from embodied.runs.settings import typed

    settings = typed(TasksSettings, config)
    if "--json" not in arguments:
        print(ROW.format("task", "robot", "expert", "cameras", "instruction"))
    for label in chosen or known:
        parts = typed(PlaySettings, compose_config("play", [f"task={label}", *robot]))
        found = describe_task(label, parts.task, parts.env, settings.episodes)
        print(json.dumps(found) if "--json" in arguments else _line(found), flush=True)
    return 0


def _line(found: dict[str, Any]) -> str:
    """One row of the table."""
    expert = "not measured"
    if found["success_ci95"] is not None:
        low, high = found["success_ci95"]
        expert = f"{100 * found['success_rate']:.1f} % ({100 * low:.1f} to {100 * high:.1f}) of {found['episodes']}"
    return ROW.format(found["task"], found["robot"], expert, " ".join(found["cameras"]), found["instruction"]).rstrip()
