"""Provenance of an episode: its policy versions, its rewards, and the updates that consumed it."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from embodied.buffer.consumed import read_consumed
from embodied.buffer.store import EpisodeStore
from embodied.data import RewardStatus, Rule, Source
from embodied.episode import Episode, Track


def trace(store: EpisodeStore, id: str) -> dict[str, Any]:
    """Provenance of an episode as JSON values.

    Returns:
        `id, task, mode, seed, outcome, steps, policy, segments`; per agent the policy, its versions with their
        decisions and steps, the outcome and length, the sources of the actions, the steps that each rule changed, the
        reward's version, sum and status counts, the policy that gave the log-probabilities and the share of executed
        ones that are finite; `updates` that consumed its segments, with the version that each published.

    Raises:
        UserError: There is no such episode.
        CorruptFile: Its file is altered.
    """
    episode = store.read(id)
    mine = set(episode.segments)
    updates = [(entry, [s for s in entry.segments if s in mine]) for entry in read_consumed(store.folder)]
    return {
        "id": episode.id,
        "task": episode.task,
        "mode": episode.mode,
        "seed": int(episode.seed),
        "outcome": episode.outcome.name.lower(),
        "steps": len(episode),
        "policy": episode.policy,
        "agents": {name: _agent(track, episode) for name, track in episode.agents.items()},
        "segments": list(episode.segments),
        "updates": [{"update": e.update, "version": e.version, "segments": s} for e, s in updates if s],
    }


def _agent(track: Track, episode: Episode) -> dict[str, Any]:
    of_steps = track.versions[track.decision[track.decision >= 0]]
    scored = track.rewards[track.reward_status == RewardStatus.SCORED]
    log_probs = track.log_probs[track.executed]
    return {
        "policy": track.policy,
        "outcome": track.outcome.name.lower(),
        "steps": len(track),
        "versions": [
            {"version": int(v), "decisions": int((track.versions == v).sum()), "steps": int((of_steps == v).sum())}
            for v in np.unique(track.versions)
        ],
        "sources": _counts(track.source, Source),
        "rules": rule_counts(track),
        "reward": {
            "version": episode.reward_version,
            "sum": float(scored.sum(dtype=np.float64)),
            "status": _counts(track.reward_status, RewardStatus),
        },
        "log_probs": {
            "policy": track.policy,
            "finite_share": float(np.isfinite(log_probs).mean()) if log_probs.size else 0.0,
        },
        "trainable_steps": int(track.trainable.sum()),
    }


def rule_counts(track: Track) -> dict[str, int]:
    """Steps whose action each rule changed."""
    return {} if track.action_rule is None else _counts(track.action_rule[track.action_rule != Rule.NONE], Rule)


def _counts(values: NDArray[np.uint8], names: type[Source] | type[RewardStatus] | type[Rule]) -> dict[str, int]:
    return {kind.name.lower(): int((values == kind).sum()) for kind in names if (values == kind).any()}
