"""The episode that a journal's frames record."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embodied.buffer.journal import Frame
from embodied.data import Outcome, Rule
from embodied.episode import Episode, Track, decided_actions
from embodied.errors import CorruptFile

_STEP_TYPES = {
    "decision": np.int32, "k": np.int32, "reward": np.float32, "reward_status": np.uint8, "terminated": np.bool_,
    "truncated": np.bool_, "source": np.uint8, "trainable": np.bool_,
}  # fmt: skip


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
    except (KeyError, ValueError, TypeError, IndexError) as error:
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
    last = ends[0] if ends else steps[-1]
    columns: dict[str, Any] = {
        name: np.array([frame.meta[name] for frame in steps], kind) for name, kind in _STEP_TYPES.items()
    }
    decision, k = columns["decision"], columns["k"]
    # A decision that no step came to execute may answer an observation that is not in the episode.
    used = int(decision.max()) + 1
    decisions = [d for n, d in enumerate(decisions) if n < used or d.meta["step"] < len(steps)]
    chunk = decisions[0].arrays["actions"].shape if decisions else (1, _action_size(steps))
    executed = np.zeros((len(decisions), chunk[0]), bool)
    executed[decision[decision >= 0], k[decision >= 0]] = True
    if not ends:
        columns["truncated"][-1], columns["trainable"][-1] = True, False
    track = Track(
        observations=_streams([*steps, last], "obs/"),
        decision=decision,
        k=k,
        rewards=columns["reward"],
        **{name: columns[name] for name in ("reward_status", "terminated", "truncated", "source", "trainable")},
        applied=np.stack([frame.arrays["applied"] for frame in steps]),
        segment=np.array([_index(segments, frame.meta["segment"]) for frame in steps], np.int32),
        step=np.array([frame.meta["step"] for frame in decisions], np.int32),
        actions=_stack([frame.arrays["actions"] for frame in decisions], chunk),
        log_probs=_stack([frame.arrays["log_probs"] for frame in decisions], chunk),
        executed=executed,
        values=np.array([frame.meta["value"] for frame in decisions], np.float32),
        versions=np.array([frame.meta["version"] for frame in decisions], np.int64),
        outcome=Outcome(ends[0].meta["outcome"]) if ends else Outcome.INFRASTRUCTURE_FAULT,
        jpeg={n: [f.tobytes() for f in files] for n, files in _frames([*steps, last], "jpeg/").items()},
    )
    _set_times(track, [*steps, last])
    _set_actions(track, steps)
    return track


def _action_size(steps: list[Frame]) -> int:
    """Numbers of one action of a track without decisions, such as a person's."""
    return max(len(frame.arrays.get("requested", ())) for frame in steps)


def _stack(arrays: list[NDArray[np.float32]], shape: tuple[int, ...]) -> NDArray[np.float32]:
    return np.stack(arrays) if arrays else np.zeros((0, *shape), np.float32)


def _frames(frames: list[Frame], prefix: str) -> dict[str, list[NDArray[Any]]]:
    names = [name for name in frames[0].arrays if name.startswith(prefix)]
    return {name.removeprefix(prefix): [frame.arrays[name] for frame in frames] for name in names}


def _streams(frames: list[Frame], prefix: str) -> dict[str, NDArray[Any]]:
    return {name: np.stack(values) for name, values in _frames(frames, prefix).items()}


def _set_times(track: Track, frames: list[Frame]) -> None:
    """Set capture times; the last of an agent without an end is unknown."""
    time = np.array([frame.meta.get("time", np.nan) for frame in frames], np.float64)
    names = dict.fromkeys(name for frame in frames for name in frame.meta.get("times", ()))
    times = {
        name: np.array([frame.meta.get("times", {}).get(name, t) for frame, t in zip(frames, time, strict=True)])
        for name in names
    }
    if frames[-1] is frames[-2]:
        for array in (time, *times.values()):
            array[-1] = np.nan
    if not np.isnan(time).all():
        track.time = time
    track.times = times


def _set_actions(track: Track, steps: list[Frame]) -> None:
    """Set requested and executed actions and rules where any step has one."""
    rule = np.array([frame.meta.get("rule", Rule.NONE) for frame in steps], np.uint8)
    if rule.any():
        track.action_rule = rule
    decided = decided_actions(track.actions, track.decision, track.k)
    requested = np.stack([frame.arrays.get("requested", own) for frame, own in zip(steps, decided, strict=True)])
    executed = np.stack([frame.arrays.get("executed", own) for frame, own in zip(steps, requested, strict=True)])
    if any("requested" in frame.arrays for frame in steps):
        track.action_requested = requested
    if any("executed" in frame.arrays for frame in steps):
        track.action_executed = executed


def _index(segments: list[str], name: str) -> int:
    return segments.index(name) if name else -1
