"""`embodied robot`: robots of one's own from MJCF and URDF files."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from embodied.errors import ConfigError, nearest

HELP = """\
embodied robot import FILE [key=value ...] [--json]

Writes a description of the robot in an MJCF or URDF file, with its meshes, and a config of the group `robot`. Whatever
the file does not say is measured or chosen, and told: end effector, gripper, gains, limits, home and workspace.

  embodied robot import ur5e.xml gripper=2f85.xml       an arm, and a gripper for its flange
  embodied robot import arm.urdf out=lab name=lab_arm   into the config folder lab
  embodied --config-dir lab play task=lift_cube robot=lab_arm

Keys and their defaults:
  out: robots       # the config folder to write into
  name: null        # of the robot; null for that of the file
  gripper: null     # a gripper's file, for an arm that has none
  flange: null      # the arm's site that carries it; null for a known name, such as attachment_site
  ee: null          # a site between the pads, whose z axis points away from the palm; null finds one
  home: null        # posture of the arm, rad, such as home=[0,-1.57,1.57,-1.57,-1.57,0]; null finds one
  velocity: 3.14    # rad/s, for joints without a limit in the file

docs/new-robot-model.md explains what is chosen.
"""
KEYS = ("out", "name", "gripper", "flange", "ee", "home", "velocity")
WHERE = "embodied robot import"


def main(arguments: Sequence[str]) -> int:
    if {"-h", "--help"} & set(arguments) or not arguments:
        print(HELP)
        return 0
    action, *rest = [word for word in arguments if word != "--json"]
    if action != "import":
        raise ConfigError(f"unknown action {action!r}", "embodied robot", nearest(action, ["import"]))
    files = [word for word in rest if "=" not in word]
    words = {key: value for key, _, value in (word.partition("=") for word in rest if "=" in word)}
    if len(files) != 1:
        raise ConfigError(f"{len(files)} files", WHERE, f"write {WHERE} FILE key=value")
    for key in words:
        if key not in KEYS:
            raise ConfigError(f"unknown key {key!r}", WHERE, nearest(key, KEYS))
    given: dict[str, Any] = {key: value for key, value in words.items() if value not in ("", "null")}
    if "home" in given:
        given["home"] = [_number("home", part) for part in given["home"].strip("[]").split(",")]
    if (
        "velocity" in given
        and not (given := {**given, "velocity": _number("velocity", given["velocity"])})["velocity"] > 0
    ):
        raise ConfigError("velocity must be above 0", WHERE, "give rad/s")
    if "gripper" in given:
        given["gripper"] = Path(given["gripper"]).expanduser()
    out = Path(given.pop("out", "robots")).expanduser()
    from simulators.robot_import import import_robot

    told = import_robot(Path(files[0]).expanduser(), out, **given)
    if "--json" in arguments:
        print(json.dumps([choice._asdict() for choice in told]))
        return 0
    for choice in told:
        print(f"{choice.thing:<16} {choice.value}\n{'':<16}   {choice.origin}")
    name = given.get("name", Path(files[0]).stem)
    print(f"\nSee it: embodied --config-dir {out} play task=lift_cube robot={name}")
    return 0


def _number(key: str, word: str) -> float:
    try:
        return float(word)
    except ValueError:
        raise ConfigError(f"{key} has {word!r}, which is no number", WHERE, "give numbers") from None
