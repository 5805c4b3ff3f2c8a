"""`embodied weights`: which versions there are, which is served, and moving that: on disk, or through a server."""

import getpass
import json
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

from embodied.cli.weights_places import OnDisk, OnServer, Place, State
from embodied.errors import ConfigError, MessageError, UserError, WeightsRefused, nearest
from embodied.weights.manifest import Version
from embodied.weights.pointers import Hold
from embodied.weights.registry import Entry

HELP = """\
embodied weights ls|status|pin|unpin|rollback|resume [N] [key=value ...] [--json]

  embodied weights ls run=latest        versions kept: pinned, served, held, best, signed, step of the checkpoint, size
  embodied weights status run=latest    what is served and why, and the last switches
  embodied weights pin 12               serve version 12, whatever is published, until `unpin`
  embodied weights rollback [12]        serve an older version and hold publication: learners wait. Without a number it
                                        is that of the last checkpoint before the one served, else the one before it
  embodied weights resume               go on with what was learned since; restore=true goes back to the checkpoint of
                                        the version rolled back to instead

whose: run=latest (a name under runs/, a path, or latest)  runs=runs, or weights=FOLDER, or a server's:
       address=tcp://HOST:PORT or ipc://PATH  credentials=FOLDER  timeout_s=10
keys:  policy=NAME (where there are several)  note="why" (rollback)  restore=true (resume)
"""
ACTIONS = ("ls", "status", "pin", "unpin", "rollback", "resume")
DEFAULTS = {
    "run": "latest", "runs": "runs", "weights": "", "address": "", "credentials": "", "timeout_s": "10", "policy": "",
    "note": "", "restore": "false",
}  # fmt: skip
ONLY = {"note": "rollback", "restore": "resume"}


@dataclass(frozen=True)
class Asked:
    """Words of a command line."""

    action: str
    version: int | str | None
    options: dict[str, str]


def main(arguments: Sequence[str]) -> int:
    words = [word for word in arguments if word not in ("-h", "--help", "--json")]
    if len(words) < len(arguments) - arguments.count("--json") or not words:
        print(HELP)
        return 0
    asked, as_json = _parse(words), "--json" in arguments
    place = _place(asked)
    try:
        if asked.action == "ls":
            _show_entries(place.entries(), as_json)
        elif asked.action == "status":
            state = place.state()
            print(json.dumps(state)) if as_json else _show_state(place, state)
        else:
            before = place.state()
            state = _move(place, asked)
            print(json.dumps(state) if as_json else _said(place, asked, before, state))
    except WeightsRefused as error:
        raise UserError(error.what, error.where, error.fix) from None
    finally:
        place.close()
    return 0


def _parse(words: Sequence[str]) -> Asked:
    action, names = words[0], [word for word in words[1:] if "=" not in word]
    where = "embodied weights"
    if action not in ACTIONS:
        raise ConfigError(f"unknown action {action!r}", where, nearest(action, ACTIONS))
    if any(name.startswith("-") for name in names):
        raise ConfigError(f"unknown flag {names[0]!r}", where, "known: --json, --help")
    if len(names) > (action in ("pin", "rollback")):
        raise ConfigError(f"{action} takes no {names[-1]!r}", where, "see `embodied weights --help`")
    if action == "pin" and not names:
        raise ConfigError("pin takes a version", where, "give a number that `embodied weights ls` prints")
    given = dict(word.partition("=")[::2] for word in words[1:] if "=" in word)
    for key in given:
        if key not in DEFAULTS:
            raise ConfigError(f"unknown key {key!r}", where, nearest(key, DEFAULTS))
        if key in ONLY and action != ONLY[key]:
            raise ConfigError(f"{action} takes no {key}", key, f"it is for {ONLY[key]}")
    options = {**DEFAULTS, **given}
    whose = [key for key in ("run", "weights", "address") if given.get(key)]
    if len(whose) > 1:
        raise ConfigError(f"{' and '.join(whose)} name two places", where, "give one of them")
    if "credentials" in given and not options["address"]:
        raise ConfigError("credentials are for a server", "credentials", "give address=... too")
    if options["restore"] not in ("true", "false"):
        raise ConfigError(f"restore cannot be {options['restore']!r}", "restore", "write restore=true or leave it out")
    return Asked(action, _version(names[0]) if names else None, options)


def _version(word: str) -> int | str:
    if word.isdecimal() and len(word) <= 16:
        return int(word)
    try:
        return Version.parse(word).label
    except MessageError:
        raise ConfigError(f"no version {word[:80]!r}", "embodied weights", "give a number such as 12") from None


def _place(asked: Asked) -> Place:
    options = asked.options
    if not options["address"]:
        return OnDisk.of(options["run"], options["runs"], options["weights"], options["policy"])
    if options["restore"] == "true":
        raise ConfigError("a server has no checkpoints", "restore", "give run=NAME on the learner's machine")
    try:
        timeout_s = float(options["timeout_s"])
    except ValueError:
        timeout_s = 0.0
    if not 0 < timeout_s <= 86400:
        raise ConfigError(f"timeout_s cannot be {options['timeout_s']!r}", "timeout_s", "give seconds, such as 10")
    return OnServer(options["address"], options["credentials"] or None, options["policy"], timeout_s)


def _move(place: Place, asked: Asked) -> State:
    by = _who()
    match asked.action:
        case "pin":
            assert asked.version is not None
            return place.pin(asked.version, by)
        case "unpin":
            return place.unpin(by)
        case "rollback":
            return place.rollback(asked.version, by, asked.options["note"])
        case _:
            return place.resume(asked.options["restore"] == "true", by)


def _said(place: Place, asked: Asked, before: State, state: State) -> str:
    policy, active, was = state["policy"], state["active"], before[place.verb]
    served = f"{policy}: version {active} is {place.verb}" + (f" instead of {was}" if was not in ("", active) else "")
    resume = f"`embodied weights resume {place.words}`"
    match asked.action:
        case "pin":
            return f"{served}, and pinned: `embodied weights unpin {place.words}` lets it go"
        case "unpin":
            return served if before["pinned"] else f"{served}; nothing was pinned"
        case "rollback":
            restore = f", or {resume[:-1]} restore=true` from a checkpoint" if place.restorable() else ""
            return f"{served}; learners wait: {resume} goes on{restore}"
    if not before["held"]:
        return f"{served}; nothing was held"
    if asked.options["restore"] == "true":
        return f"{served} until the learner has gone back to the checkpoint of step {place.restorable()}"
    if state["pinned"]:
        return f"{served}; learners go on; it stays pinned, `embodied weights unpin {place.words}` lets it go"
    other = f"`embodied weights pin N {place.words}` serves another one meanwhile"
    return f"{served} until the next one is published, which may now be; {other}"


def _show_entries(entries: Sequence[Entry], as_json: bool) -> None:
    rows: list[dict[str, Any]] = [
        {
            "policy": entry.policy,
            "number": entry.version.number,
            "version": entry.version.label,
            "pinned": entry.pinned,
            "serving": entry.serving,
            "held": entry.held,
            "best": entry.best,
            "checkpoint": entry.checkpoint,
            "bytes": entry.bytes,
            "signed": entry.signed,
            "created": entry.manifest.created if entry.manifest else None,
            "damage": entry.damage,
        }
        for entry in entries
    ]
    if as_json:
        for row in rows:
            print(json.dumps(row))
        return
    table = Table("policy", "version", "", "checkpoint", "MB", "made", box=None)
    for row in rows:
        marks = [name for name in ("serving", "pinned", "held", "best", "signed") if row[name]]
        marks += ["[red]damaged[/red]"] if row["damage"] else []
        step = "-" if row["checkpoint"] is None else f"step {row['checkpoint']}"
        made = _when(row["created"]) if row["created"] is not None else "-"
        table.add_row(row["policy"], row["version"], " ".join(marks), step, f"{row['bytes'] / 1e6:.3f}", made)
    console = Console(highlight=False)
    console.print(table)
    console.print(f"{len(rows)} versions, {sum(row['bytes'] for row in rows) / 1e6:.1f} MB")
    for row in rows:
        if row["damage"]:
            console.print(f"damaged: {row['damage']}", markup=False, soft_wrap=True)


def _show_state(place: Place, state: State) -> None:
    held = Hold.from_dict(state["held"]) if state["held"] else None
    restores = "; the learner is to restore its checkpoint" if held and held.restore else ""
    lines = {
        "policy": state["policy"],
        "active": (state["active"] or "none yet") + _older(state),
        "pinned": state["pinned"] or "no",
        "held": f"{held}{restores}; `embodied weights resume {place.words}` goes on" if held else "no",
        **{name: state[name] for name in ("served", "newest", "kept", "trouble") if state.get(name)},
    }
    print("\n".join(f"{name + ':':<9}{value}" for name, value in lines.items()))
    if isinstance(state.get("upstream"), dict):
        print(f"upstream: {_upstream(state['upstream'])}")
    for follower in _followers(state.get("followers")):
        print(f"follower {follower}")
    for line in state.get("audit", ()):
        print(_event(line))


def _older(state: State) -> str:
    """Why what is active is not the newest, where no pin says it."""
    newest = state.get("newest")
    if state["pinned"] or not state["active"] or not newest or state["active"] == newest:
        return ""
    return f" ({'older, as upstream wants' if state.get('upstream') else 'rolled back'}; newest is {newest})"


def _upstream(told: dict[str, Any]) -> str:
    """Words about an edge's link, from its status."""
    words = [f"{told.get('address', '?')} {told.get('state', '?')}"]
    if told.get("state") == "cut" or not told.get("active"):
        words.append(f"silent for {told.get('silent_s', '?')} s")
    if told.get("active"):
        words.append(f"wants {told['active']}")
    pulling = told.get("pulling")
    if isinstance(pulling, dict):
        done, size, rate = (float(pulling.get(name, 0)) for name in ("bytes", "of", "mbit_s"))
        words.append(f"fetching {pulling.get('version')}: {done / 1e6:.1f} of {size / 1e6:.1f} MB at {rate:g} Mbit/s")
    if told.get("error"):
        words.append(f"last error: {told['error']}")
    return ", ".join(words)


def _followers(found: Any) -> list[str]:
    """Edges of a server and their versions, from its status."""
    if isinstance(found, dict):
        found = [
            {"name": name, **(value if isinstance(value, dict) else {"serving": value})}
            for name, value in found.items()
        ]
    return [", ".join(f"{k} {v}" for k, v in each.items()) for each in found or () if isinstance(each, dict)]


def _event(line: dict[str, Any]) -> str:
    text = f"{_when(line.get('time', 0))}  {line.get('event', '?'):<9} {line.get('version', '')}"
    extras = [f"{key} {line[key]}" for key in ("from", "why", "server", "by", "note") if line.get(key)]
    return ", ".join([text, *extras])


def _when(seconds: Any) -> str:
    try:
        return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(float(seconds)))
    except (TypeError, ValueError, OverflowError, OSError):
        return "?"


def _who() -> str:
    try:
        return f"{getpass.getuser()}@{socket.gethostname()}"
    except (KeyError, OSError):
        return socket.gethostname()
