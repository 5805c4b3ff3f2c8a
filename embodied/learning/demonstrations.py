"""Demonstrated observations of episodes, and the chunks of actions that followed them."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embodied.data import Source
from embodied.episode import Episode, Track
from embodied.errors import DataError, nearest


@dataclass
class Demonstrations:
    """N decisions to imitate.

    Attributes:
        streams: Name to [N, *shape].
        actions: [N, K, D] float32, executed from there on.
        mask: [N, K] bool, those that a demonstrator chose.
    """

    streams: dict[str, NDArray[Any]]
    actions: NDArray[np.float32]
    mask: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.mask)


def demonstrated(track: Track) -> NDArray[np.bool_]:
    """[L] steps that a human or a script chose, and that may train."""
    return track.trainable & np.isin(track.source, (Source.HUMAN, Source.SCRIPT))


def windows(track: Track, chunk: int) -> tuple[NDArray[np.intp], NDArray[np.float32], NDArray[np.bool_]]:
    """Actions that were executed from each demonstrated step on, across the chunks in which they were decided.

    Args:
        track: L steps.
        chunk: K.

    Returns:
        Steps [N], actions [N, K, D] and mask [N, K]: true up to the episode's end, or to the first step that was not
        demonstrated.
    """
    mask = demonstrated(track)
    length = len(mask)
    executed = track.requested
    steps = np.flatnonzero(mask)
    ahead = steps[:, None] + np.arange(chunk)
    inside = np.minimum(ahead, max(length - 1, 0))
    chosen = np.logical_and.accumulate((ahead < length) & mask[inside], axis=1)
    return steps, np.where(chosen[..., None], executed[inside], 0.0).astype(np.float32), chosen


def gather(
    episodes: Iterable[Episode],
    names: Sequence[str],
    chunk: int,
    agent: str | None = None,
    critic: Collection[str] = (),
) -> Demonstrations:
    """All demonstrated steps of episodes.

    Args:
        episodes: Read one by one.
        names: Streams to keep.
        chunk: K.
        agent: Name of the track of an episode; None for the only one.
        critic: Those of `names` that only a critic reads; a robot's recordings lack what a simulator knows.

    Raises:
        DataError: An episode lacks the agent or a stream, has one of another form than the first, or no step was
            demonstrated.
    """
    streams: dict[str, list[NDArray[Any]]] = {name: [] for name in names}
    actions, masks = list[NDArray[Any]](), list[NDArray[Any]]()
    for episode in episodes:
        track = _track(episode, agent)
        steps, chosen, mask = windows(track, chunk)
        for name in names:
            if name not in track.observations:
                known = nearest(name, track.observations)
                fix = "only the critic reads it, so give policy.critic=[]" if name in critic else known
                raise DataError(f"no stream {name} in it", f"episode {episode.id}", fix)
            seen = track.observations[name][steps]
            if streams[name] and (seen.shape[1:], seen.dtype) != (streams[name][0].shape[1:], streams[name][0].dtype):
                what = f"stream {name} is {seen.dtype} {seen.shape[1:]}, unlike that of the episodes before"
                raise DataError(what, f"episode {episode.id}", "use episodes of one env")
            streams[name].append(seen)
        actions.append(chosen)
        masks.append(mask)
    if not sum(len(mask) for mask in masks):
        raise DataError("no step that a human or a script chose", "demonstrations", "record demonstrations first")
    return Demonstrations({name: _joined(parts) for name, parts in streams.items()}, _joined(actions), _joined(masks))


def _track(episode: Episode, agent: str | None) -> Track:
    names = list(episode.agents)
    if agent is None and len(names) != 1:
        what, fix = f"it has {len(names)} agents", f"give agent: one of {', '.join(names)}"
        raise DataError(what, f"episode {episode.id}", fix[:200])
    if agent is not None and agent not in episode.agents:
        raise DataError(f"no agent {agent} in it", f"episode {episode.id}", nearest(agent, names))
    return episode.agents[names[0] if agent is None else agent]


def _joined(parts: list[NDArray[Any]]) -> NDArray[Any]:
    """All parts in one array; each is freed as it is copied, so that they never take their memory twice."""
    whole = np.empty((sum(map(len, parts)), *parts[0].shape[1:]), parts[0].dtype)
    parts.reverse()
    first = 0
    while parts:
        part = parts.pop()
        whole[first : first + len(part)] = part
        first += len(part)
    return whole
