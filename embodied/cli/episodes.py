"""`embodied episodes`: list, show, trace and replay stored episodes."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from rich.console import Console
from rich.table import Table
from yaml import YAMLError

from embodied.buffer.store import EpisodeStore
from embodied.buffer.trace import rule_counts, trace
from embodied.data import Outcome
from embodied.episode import Episode, Track
from embodied.errors import ConfigError, nearest
from embodied.runs.run_folder import resolve
from embodied.spec import AgentSpec, EnvSpec

HELP = """\
embodied episodes ls|show|trace|replay [ID] [key=value ...] [--json]

  embodied episodes ls run=latest mode=evaluation outcome=time_limit    one line per track of each stored episode
  embodied episodes show ID      per agent: policy, outcome, length, streams with rates and times, decisions, rewards,
                                 and the steps whose action was changed
  embodied episodes trace ID     the versions that made it, the sources of reward and log-probabilities, and the
                                 updates of the learner that consumed it
  embodied episodes replay ID    simulate it again from its stored start with its actions: identical to the bit, or the
                                 first step and streams that differ (exit status 2); task.KEY= and env.KEY= change the
                                 run's settings for it, such as task.reward=sparse or env.randomise.mass=[2,2]

keys: run=latest (a name under runs/, a path, or latest)  runs=runs  mode=  outcome=  limit=50 (ls; 0 for all)
"""
ACTIONS = ("ls", "show", "trace", "replay")
OVERRIDES = ("task.", "env.")
CHOICES = {
    "mode": ("train", "evaluation", "demonstration"),
    "outcome": tuple(outcome.name.lower() for outcome in Outcome),
}
DEFAULTS = {"run": "latest", "runs": "runs", "mode": "", "outcome": "", "limit": "50"}


def main(arguments: Sequence[str]) -> int:
    words = [word for word in arguments if word not in ("-h", "--help", "--json")]
    if len(words) < len(arguments) - ("--json" in arguments) or not words:
        print(HELP)
        return 0
    action, names = words[0], [word for word in words[1:] if "=" not in word]
    if action not in ACTIONS:
        raise ConfigError(f"unknown action {action!r}", "embodied episodes", nearest(action, ACTIONS))
    if any(name.startswith("-") for name in names):
        raise ConfigError(f"unknown flag {names[0]!r}", "embodied episodes", "known: --json, --help")
    if action == "ls" and names:
        raise ConfigError(f"ls takes no {names[0]!r}", "embodied episodes", "write key=value, such as mode=train")
    options = dict(DEFAULTS)
    changes = [word for word in words[1:] if action == "replay" and word.startswith(OVERRIDES)]
    for key, _, value in (word.partition("=") for word in words[1:] if "=" in word and word not in changes):
        if key not in DEFAULTS:
            raise ConfigError(f"unknown key {key!r}", "embodied episodes", nearest(key, DEFAULTS))
        if value and value not in CHOICES.get(key, (value,)):
            raise ConfigError(f"unknown {key} {value!r}", "embodied episodes", nearest(value, CHOICES[key]))
        options[key] = value
    folder = resolve(options["run"], Path(options["runs"]))
    store = EpisodeStore(folder / "episodes")
    as_json = "--json" in arguments
    if action == "ls":
        return _list(store, options, as_json)
    if len(names) != 1:
        raise ConfigError(f"{action} takes one episode", "embodied episodes", "give an ID that `episodes ls` prints")
    if action == "replay":
        return _replay(folder, store.read(names[0]), changes, as_json)
    found = trace(store, names[0]) if action == "trace" else describe(store.read(names[0]))
    print(json.dumps(found) if as_json else "\n".join(_lines(found)))
    return 0


def _list(store: EpisodeStore, options: dict[str, str], as_json: bool) -> int:
    if not options["limit"].isdecimal():
        raise ConfigError(f"limit cannot be {options['limit']!r}", "limit", "give a whole number; 0 for all")
    wanted = {key: options[key] for key in ("mode", "outcome") if options[key]}
    found = [s for s in store.summary() if all(getattr(s, key) == value for key, value in wanted.items())]
    shown = found[: int(options["limit"]) or None]
    if as_json:
        for summary in shown:
            print(json.dumps(summary.to_dict()))
        return 0
    table = Table(box=None)
    table.add_column("id", overflow="fold", min_width=max((len(line.id) for line in shown), default=2))  # to be copied
    for header in ("task", "agent", "policy", "outcome", "steps", "reward", "versions"):
        table.add_column(header)
    for s in shown:
        for n, t in enumerate(s.tracks):
            versions = str(t.version_min) if t.version_min == t.version_max else f"{t.version_min} to {t.version_max}"
            name = (s.id, s.task) if n == 0 else ("", "")
            table.add_row(*name, t.agent, t.policy, t.outcome, str(t.steps), f"{t.total_reward:.3f}", versions)
    console = Console(width=None if sys.stdout.isatty() else 160)
    console.print(table)
    more = f", {len(found) - len(shown)} more: limit=0 lists all" if len(found) > len(shown) else ""
    console.print(f"{len(found)} episodes{more}")
    for path, reason in store.corrupt:
        console.print(f"[red]damaged[/red] {path}: {reason}")
    return 0


def _replay(folder: Path, episode: Episode, changes: Sequence[str], as_json: bool) -> int:
    from embodied.evaluate.replay import replay_episode
    from embodied.runs.settings import Settings, saved_config, typed

    config = saved_config(folder)
    for word in changes:
        _change(config, word)
    found = replay_episode(typed(Settings, config), episode)
    print(json.dumps(vars(found) | {"identical": found.identical}) if as_json else "\n".join(found.lines()))
    return 0 if found.identical else 2


def _change(config: DictConfig, word: str) -> None:
    """Put one `key=value` into a configuration."""
    key, _, value = word.partition("=")
    try:
        OmegaConf.update(config, key, OmegaConf.from_dotlist([f"value={value}"])["value"], force_add=True)
    except (OmegaConfBaseException, YAMLError, ValueError) as error:
        raise ConfigError(f"{word!r} cannot be read: {str(error).splitlines()[0]}", key, "write key=value") from None


def describe(episode: Episode) -> dict[str, Any]:
    """An episode's fields and its tracks, as JSON values."""
    agents = EnvSpec.from_dict(episode.spec).agents if episode.spec.get("agents") else {}
    return {
        "id": episode.id,
        "task": episode.task,
        "mode": episode.mode,
        "seed": int(episode.seed),
        "outcome": episode.outcome.name.lower(),
        "steps": len(episode),
        "reward_version": episode.reward_version,
        "drawn": {name: _shown(value) for name, value in episode.drawn.items()},
        "initial_state": f"{len(episode.initial_state)} numbers",
        "agents": {name: _describe_track(track, agents.get(name)) for name, track in episode.agents.items()},
    }


def _describe_track(track: Track, spec: AgentSpec | None) -> dict[str, Any]:
    rates = {stream.name: stream.rate_hz for stream in spec.observations} if spec is not None else {}
    streams = {}
    for name, value in track.observations.items():
        text = f"{value.dtype} {list(value.shape)}" + (" jpeg" if name in track.jpeg else "")
        if rates.get(name):
            text += f", {rates[name]:g} Hz"
        if name in track.times and track.time is not None:
            delay = track.time - track.times[name]
            text += (
                f", captured {1000 * np.nanmean(delay):.1f} ms before the step (at most {1000 * np.nanmax(delay):.1f})"
            )
        streams[name] = text
    versions = {int(version): int((track.versions == version).sum()) for version in np.unique(track.versions)}
    return {
        "policy": track.policy,
        "outcome": track.outcome.name.lower(),
        "steps": len(track),
        "versions": ", ".join(f"{version} ({count} decisions)" for version, count in versions.items()) or "none",
        "observations": streams,
        "times": _describe_times(track),
        "actions": f"{track.actions.dtype} {list(track.actions.shape)}",
        "changed_actions": _describe_changes(track),
        "applied": f"{track.applied.dtype} {list(track.applied.shape)}",
        "decisions": len(track.step),
        "reward_sum": float(track.rewards.sum()),
        "trainable_steps": int(track.trainable.sum()),
    }


def _describe_times(track: Track) -> str:
    if track.time is None:
        return "not recorded"
    known = track.time[~np.isnan(track.time)]
    rate = (len(known) - 1) / (known[-1] - known[0]) if len(known) > 1 and known[-1] > known[0] else 0.0
    return f"{known[0]:.3f} to {known[-1]:.3f} s" + (f", {rate:.4g} steps per second" if rate else "")


def _describe_changes(track: Track) -> dict[str, Any]:
    """Counts of steps whose requested action is not the decision's, or whose executed action is not the requested one.

    The latter are counted by rule where rules are recorded.
    """
    requested, executed = track.changed_steps
    rules = rule_counts(track)
    return {"requested": int(requested.sum()), "executed": int(executed.sum())} | ({"rules": rules} if rules else {})


def _shown(drawn: np.ndarray) -> Any:
    """A drawn value, or of many numbers their shape and range."""
    if drawn.size <= 16:
        return drawn.round(4).tolist()
    return f"{list(drawn.shape)} from {drawn.min():.4g} to {drawn.max():.4g}"


def _lines(value: Any, indent: str = "") -> list[str]:
    """A nested value as indented `key: value` lines."""
    lines: list[str] = []
    for key, item in value.items():
        if isinstance(item, dict):
            lines += [f"{indent}{key}:", *_lines(item, indent + "  ")]
        elif isinstance(item, list) and item and isinstance(item[0], dict):
            lines += [f"{indent}{key}:"]
            lines += [f"{indent}  " + ", ".join(f"{k} {v}" for k, v in each.items()) for each in item]
        else:
            lines.append(f"{indent}{key}: {item}")
    return lines
