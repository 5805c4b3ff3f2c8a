"""Where an episode came from and where it went."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from embodied.buffer.consumed import read_consumed
from embodied.buffer.store import EpisodeStore
from embodied.data import Episode, RewardStatus, Source, Track


def trace(store: EpisodeStore, id: str) -> dict[str, Any]:
    """What is known of an episode's provenance, as JSON-able values.

    Returns:
        `id, task, mode, seed, outcome, steps, policy, segments`; per agent the policy versions with their decisions
        and steps, who chose the actions, the reward's version, sum and status counts, the policy that gave the
        log-probabilities and the share of executed ones that are finite; `updates` that consumed its segments, with
        the version each published.

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
    of_steps = track.versions[track.decision]
    scored = track.rewards[track.reward_status == RewardStatus.SCORED]
    log_probs = track.log_probs[track.executed]
    return {
        "versions": [
            {"version": int(v), "decisions": int((track.versions == v).sum()), "steps": int((of_steps == v).sum())}
            for v in np.unique(track.versions)
        ],
        "sources": _counts(track.source, Source),
        "reward": {
            "version": episode.reward_version,
            "sum": float(scored.sum(dtype=np.float64)),
            "status": _counts(track.reward_status, RewardStatus),
        },
        "log_probs": {
            "policy": episode.policy,
            "finite_share": float(np.isfinite(log_probs).mean()) if log_probs.size else 0.0,
        },
        "trainable_steps": int(track.trainable.sum()),
    }


def _counts(values: NDArray[np.uint8], names: type[Source] | type[RewardStatus]) -> dict[str, int]:
    return {kind.name.lower(): int((values == kind).sum()) for kind in names if (values == kind).any()}
