"""The episode that a journal's frames record."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embodied.buffer.journal import Frame
from embodied.buffer.layout import STEP_FIELDS
from embodied.data import Outcome, Rule
from embodied.episode import Episode, Track
from embodied.errors import CorruptFile

_FROM_META = ("decision", "k", "reward", "reward_status", "terminated", "truncated", "source", "trainable")
"""Fields of `steps` that a step's frame holds as plain values."""


def build_episode(frames: list[Frame], journal: Path) -> Episode | None:
    """The episode that frames record, or None without a step.

    An agent without an `end` frame gets the outcome `INFRASTRUCTURE_FAULT`. An agent without a step has no track.

    Raises:
        CorruptFile: The frames do not make an episode; names `journal`.
    """
    if not any(frame.kind == "step" for frame in frames):
        return None
    try:
        return _build(frames)
    except (KeyError, ValueError, ArithmeticError, TypeError, IndexError) as error:
        raise CorruptFile(f"its frames do not make an episode: {error!r}", str(journal), "keep it for a look") from None


def _build(frames: list[Frame]) -> Episode:
    meta, arrays = frames[0].meta, frames[0].arrays
    # Journals of format 1 have one agent, which frames do not name, and `seq` for the step of a decision.
    policies = meta["policies"] if "policies" in meta else {meta["agent"]: meta["policy"]}
    only = next(iter(policies))
    steps = [frame for frame in frames if frame.kind == "step"]
    segments = list(dict.fromkeys(frame.meta["segment"] for frame in steps if frame.meta["segment"]))
    tracks = {}
    for agent, policy in policies.items():
        mine: dict[str, list[Frame]] = {"decision": [], "step": [], "end": []}
        for frame in frames[1:]:
            if "seq" in frame.meta:
                frame.meta["step"] = frame.meta["seq"]
            if frame.meta.get("agent", only) == agent:
                mine[frame.kind].append(frame)
        if mine["step"]:
            tracks[agent] = _track(mine["decision"], mine["step"], mine["end"], segments)
            tracks[agent].policy = policy
    return Episode(
        **{name: meta[name] for name in ("id", "task", "mode", "reward_version", "seed", "spec")},
        agents=tracks,
        initial_state=arrays["state"],
        drawn={n.removeprefix("drawn/"): v for n, v in arrays.items() if n.startswith("drawn/")},
        segments=segments,
    )


def _track(decisions: list[Frame], steps: list[Frame], ends: list[Frame], segments: list[str]) -> Track:
    seen = [*steps, ends[0] if ends else steps[-1]]
    columns: dict[str, Any] = {
        STEP_FIELDS[name].attribute: np.array([frame.meta[name] for frame in steps], STEP_FIELDS[name].dtype)
        for name in _FROM_META
    }
    decision, k = columns["decision"], columns["k"]
    # A decision that no step came to execute may answer an observation that is not in the episode.
    used = int(decision.max()) + 1
    decisions = [d for n, d in enumerate(decisions) if n < used or d.meta["step"] < len(steps)]
    # The actions of a track without decisions, such as a person's, are as long as those requested.
    size = max(len(frame.arrays.get("requested", ())) for frame in steps)
    chunk = decisions[0].arrays["actions"].shape if decisions else (1, size)
    executed = np.zeros((len(decisions), chunk[0]), bool)
    executed[decision[decision >= 0], k[decision >= 0]] = True
    if not ends:
        columns["truncated"][-1], columns["trainable"][-1] = True, False
    for name in ("actions", "log_probs"):
        values = [frame.arrays[name] for frame in decisions]
        columns[name] = np.array(values, np.float32).reshape(len(decisions), *chunk)
    time, times = _times(seen)
    index = {name: n for n, name in enumerate(segments)}
    track = Track(
        observations={name: np.stack(values) for name, values in _streams(seen, "obs/").items()},
        applied=np.stack([frame.arrays["applied"] for frame in steps]),
        segment=np.array([index.get(frame.meta["segment"], -1) for frame in steps], np.int32),
        step=np.array([frame.meta["step"] for frame in decisions], np.int32),
        executed=executed,
        values=np.array([frame.meta["value"] for frame in decisions], np.float32),
        versions=np.array([frame.meta["version"] for frame in decisions], np.int64),
        outcome=Outcome(ends[0].meta["outcome"]) if ends else Outcome.INFRASTRUCTURE_FAULT,
        time=None if np.isnan(time).all() else time,
        times=times,
        jpeg={name: [file.tobytes() for file in files] for name, files in _streams(seen, "jpeg/").items()},
        **columns,
    )
    requested, rule = track.decided, np.array([frame.meta.get("rule", Rule.NONE) for frame in steps], np.uint8)
    for n, frame in enumerate(steps):
        requested[n] = frame.arrays.get("requested", requested[n])
    obeyed = np.stack([frame.arrays.get("executed", own) for frame, own in zip(steps, requested, strict=True)])
    track.set_actions(requested, obeyed, rule)
    return track


def _streams(frames: list[Frame], prefix: str) -> dict[str, list[NDArray[Any]]]:
    names = [name for name in frames[0].arrays if name.startswith(prefix)]
    return {name.removeprefix(prefix): [frame.arrays[name] for frame in frames] for name in names}


def _times(frames: list[Frame]) -> tuple[NDArray[np.float64], dict[str, NDArray[np.float64]]]:
    """Capture times of observations, and of streams captured at another time; the last is unknown without an end."""
    time = [float(frame.meta.get("time", np.nan)) for frame in frames]
    given = [frame.meta.get("times", {}) for frame in frames]
    if frames[-1] is frames[-2]:
        time[-1], given[-1] = np.nan, {}
    names = dict.fromkeys(name for each in given for name in each)
    times = {name: np.array([each.get(name, t) for each, t in zip(given, time, strict=True)]) for name in names}
    return np.array(time), times
