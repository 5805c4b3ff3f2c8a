"""Assembly of whole episodes from segments."""

from collections.abc import Collection
from dataclasses import replace
from typing import Any

import numpy as np

from embodied.buffer.assembler_state import AssemblerState, IncompleteEpisode, Key, Start, UnfinishedTrack
from embodied.buffer.track_parts import Arrays, SegmentRows, join
from embodied.data import Outcome, Segment
from embodied.episode import Episode, Track
from embodied.errors import DataError
from embodied.spec import EnvSpec

ORIGIN = "local"
"""Origin of segments that name none."""
SEEN = 4096
"""Segment ids that are remembered, to acknowledge a segment that is sent again."""
INCOMPLETE = 1024
"""Incomplete episodes of one environment at most."""
INCOMPLETE_BYTES = 2**30
"""Bytes of incomplete episodes at most."""


class EpisodeAssembler:
    """Joins what segments carry of each environment into episodes, one track per agent.

    Segments of one agent of an environment come in order; those of several policies come in any order among each
    other. A segment that is sent again is acknowledged and not taken twice. An episode is complete when all agents have
    ended. An episode whose start was not seen, or of which a part is missing, is dropped and counted. Steps between the
    end of an agent's episode and its next start belong to none.

    Args:
        spec: Of the environments; stored with every episode. All its agents have a track.
        attempt: Count of starts of the run, which keeps ids unique over resumes. A segment whose id is
            `<origin>/<attempt>/<count>` gives that attempt instead.
        omit: Names of streams that episodes lack.
        incomplete_bytes: Size of the episodes that wait for the tracks of other agents; the oldest is dropped beyond.
    """

    def __init__(
        self,
        spec: EnvSpec,
        attempt: int,
        *,
        omit: Collection[str] = (),
        incomplete_bytes: int = INCOMPLETE_BYTES,
    ) -> None:
        self.spec, self.attempt, self.incomplete_bytes = spec.to_dict(), attempt, incomplete_bytes
        self.agents, self._omit = list(spec.agents), frozenset(omit)
        self._state = AssemblerState()
        self._incomplete_bytes = 0

    @property
    def dropped(self) -> int:
        """Episodes lost so far."""
        return self._state.dropped

    def add(self, segment: Segment) -> list[Episode]:
        """Take T steps of B rows; the episodes that became complete in them, ordered by row, then time.

        Raises:
            DataError: A row names no agent of the spec, or a step a decision that neither the segment nor its carried
                decisions hold.
        """
        length, width = segment.rewards.shape
        if not length or segment.id in self._state.seen:
            return []
        _check(segment, len(self.agents))
        self._state.seen[segment.id] = None
        if len(self._state.seen) > SEEN:
            del self._state.seen[next(iter(self._state.seen))]
        if self._omit:
            streams, times = (
                {name: value for name, value in each.items() if name not in self._omit}
                for each in (segment.observations, segment.times)
            )
            segment = replace(segment, observations=streams, times=times)
        envs = segment.rows.env[0].tolist()
        agents = segment.rows.agent[0].tolist()
        events = _events(segment, envs)
        attempt = _attempt(segment.id, self.attempt)
        form = _form(segment)
        rows = SegmentRows(segment)
        origin = segment.origin or ORIGIN
        done: list[Episode] = []
        state = self._state
        for b in range(width):
            key = origin, segment.mode, envs[b], agents[b]
            if key in state.early:
                self._begin(key, segment, state.early.pop(key), attempt, form, 0, b)
            self._continue(key, segment, form, b)
            since = 0
            for t, index in events[b]:
                if index >= 0 and t == length:
                    state.early[key] = _start(segment, index)
                elif index >= 0:
                    self._begin(key, segment, _start(segment, index), attempt, form, t, b)
                    since = t
                elif (track := state.open.pop(key, None)) is not None:
                    _extend(track, segment, rows, attempt, since, t + 1, b)
                    outcome, final = Outcome(int(segment.outcomes[t, b])), -index - 1
                    last = {name: segment.final[name][final : final + 1] for name in segment.observations}
                    track.whole, track.parts = join(track.parts, last, segment.policy, outcome), []
                    if (episode := self._end(key, track)) is not None:
                        done.append(episode)
                else:
                    _, number, counted = state.numbers.get(key, (0, 0, 0))
                    self._drop(key, number - counted + int(segment.rows.episode[t, b]))
            if key in state.open:
                _extend(state.open[key], segment, rows, attempt, since, length, b)
        return done

    def _begin(
        self, key: Key, segment: Segment, start: Start, attempt: int, form: tuple[Any, ...], t: int, b: int
    ) -> None:
        """Open a track, whose episode gets the next number.

        Environments that are made anew within an attempt, such as those of another evaluation, count from 0 again;
        numbers go on.
        """
        if (lost := self._state.open.pop(key, None)) is not None:
            self._drop(key, lost.number)
        counted = int(segment.rows.episode[t, b])
        before, number, last = self._state.numbers.get(key, (attempt, -1, -1))
        if before != attempt:
            number = counted
        else:
            number += counted - last if counted > last else 1 + counted
        self._state.numbers[key] = attempt, number, counted
        self._state.open[key] = UnfinishedTrack(number, counted, form, segment.task, start, attempt)
        if len(self.agents) > 1:
            self._pass(key, number)

    def _continue(self, key: Key, segment: Segment, form: tuple[Any, ...], b: int) -> None:
        """Drop the open track of a row unless the segment goes on at the step after its last one."""
        track = self._state.open.get(key)
        if track is None:
            return
        goes_on = int(segment.rows.episode[0, b]) == track.counted
        if not goes_on or int(segment.rows.step[0, b]) != track.steps or form != track.form:
            del self._state.open[key]
            if not goes_on:  # an episode that goes on is counted at its end
                self._drop(key, track.number)

    def _end(self, key: Key, track: UnfinishedTrack) -> Episode | None:
        """The episode, if the track is the last of its agents'."""
        agent = key[3]
        if len(self.agents) == 1:
            return self._episode(key, {agent: track})
        episodes = self._state.incomplete.setdefault(key[:3], {})
        episode = episodes.setdefault(track.number, IncompleteEpisode())
        if episode.dropped:
            return None
        if agent in episode.tracks or any(other.start.seed != track.start.seed for other in episode.tracks.values()):
            self._drop(key, track.number)
            return None
        before = episode.nbytes
        episode.tracks[agent] = track
        self._incomplete_bytes += episode.nbytes - before
        if len(episode.tracks) == len(self.agents):
            self._incomplete_bytes -= episodes.pop(track.number).nbytes
            return self._episode(key, episode.tracks)
        self._bound(key)
        return None

    def _drop(self, key: Key, number: int) -> None:
        """Count an episode as lost, once, and free the tracks of it that ended."""
        if len(self.agents) > 1:
            episodes = self._state.incomplete.setdefault(key[:3], {})
            episode = episodes.setdefault(number, IncompleteEpisode())
            if episode.dropped:
                return
            self._incomplete_bytes -= episode.nbytes
            episode.tracks, episode.dropped = {}, True
        self._state.dropped += 1

    def _pass(self, key: Key, number: int) -> None:
        """Note that an agent began episode `number`: no part of an earlier one will come from it."""
        episodes = self._state.incomplete.get(key[:3], {})
        for earlier in [each for each in episodes if each < number]:
            episode = episodes[earlier]
            episode.passed.add(key[3])
            if key[3] not in episode.tracks:
                self._drop(key, earlier)
            if episode.dropped and len(episode.passed) == len(self.agents):
                del episodes[earlier]

    def _bound(self, key: Key) -> None:
        """Drop the oldest incomplete episodes beyond the bounds of count and size."""
        episodes = self._state.incomplete[key[:3]]
        while len(episodes) > INCOMPLETE:
            oldest = min(episodes)
            self._drop(key, oldest)
            del episodes[oldest]
        while self._incomplete_bytes > self.incomplete_bytes:
            waiting = ((n, env) for env, each in self._state.incomplete.items() for n, e in each.items() if e.tracks)
            number, env = min(waiting)
            self._drop((*env, 0), number)

    def _episode(self, key: Key, tracks: dict[int, UnfinishedTrack]) -> Episode:
        origin, mode, env, _ = key
        ended = [tracks[index] for index in sorted(tracks)]
        segments = list(dict.fromkeys(name for each in ended for name in each.segments))
        agents: dict[str, Track] = {}
        for index, each in zip(sorted(tracks), ended, strict=True):
            assert each.whole is not None
            agents[self.agents[index]] = each.whole
            if each is not ended[0]:
                each.whole.segment = np.array([segments.index(name) for name in each.segments], np.int32)[
                    each.whole.segment
                ]
        first = ended[0]
        return Episode(
            id=f"{origin}/{mode}/{max(each.attempt for each in ended)}-{env:04d}-{first.number:06d}",
            task=first.task,
            mode=mode,
            reward_version="+".join(dict.fromkeys(name for each in ended for name in each.reward_versions)),
            seed=first.start.seed,
            spec=self.spec,
            agents=agents,
            initial_state=first.start.state,
            drawn=first.start.drawn,
            segments=segments,
        )

    def state(self) -> Arrays:
        """The unfinished episodes and counters for a checkpoint, as `AssemblerState.pack`."""
        return self._state.pack()

    def load(self, state: Arrays) -> None:
        """Continue from what `state` gave.

        Raises:
            DataError: It is no such state.
        """
        self._state = AssemblerState.unpack(state)
        incomplete = self._state.incomplete.values()
        self._incomplete_bytes = sum(episode.nbytes for episodes in incomplete for episode in episodes.values())


def _attempt(id: str, attempt: int) -> int:
    """The attempt of a segment `<origin>/<attempt>/<count>`; `attempt` for any other id."""
    parts = id.split("/")
    return int(parts[1]) if len(parts) == 3 and parts[1].isdecimal() else attempt


def _check(segment: Segment, agents: int) -> None:
    """Raise `DataError` unless agents are known and every step's decision is in the segment or carried into it."""
    where = f"segment {segment.id}"
    if segment.rows.agent.min() < 0 or segment.rows.agent.max() >= agents:
        raise DataError(f"rows of agents beyond the {agents} of the spec", where, "count agents as EnvSpec.agents does")
    executing = (segment.k >= 0) & (segment.rows.step >= 0)
    if (executing & (segment.k > segment.rows.step)).any():
        raise DataError("a step executes a decision from before its episode", where, "decide anew at every start")
    asked = np.arange(len(segment.k))[:, None] - segment.k
    before = executing & (asked < 0)
    if before.any():
        carried = segment.carried
        held = set(zip(carried.row.tolist(), carried.t.tolist(), strict=True)) if carried is not None else set()
        at, row = np.nonzero(before)
        if not held.issuperset(zip(row.tolist(), asked[at, row].tolist(), strict=True)):
            raise DataError("a row begins within a chunk that is not carried", where, "carry the open decisions over")


def _events(segment: Segment, envs: list[int]) -> list[list[tuple[int, int]]]:
    """Per row, its starts and ends in order of time: (t, i >= 0) start i before step t; (t, -i - 1) end i with step t.

    Raises:
        DataError: An episode starts in an environment without a row.
    """
    events: list[list[tuple[int, int]]] = [[] for _ in envs]
    rows: dict[int, list[int]] = {}
    for b, env in enumerate(envs):
        rows.setdefault(env, []).append(b)
    if segment.starts is not None:
        for i, (t, env) in enumerate(zip(segment.start_at.tolist(), segment.starts.ids.tolist(), strict=True)):
            if env not in rows:
                what = f"an episode starts in environment {env}, which has no row"
                raise DataError(what, f"segment {segment.id}", "name rows")
            for b in rows[env]:
                events[b].append((t, i))
    for i, (t, b) in enumerate(segment.final_at.tolist()):
        events[b].append((t, -i - 1))
    for each in events:
        each.sort(key=lambda event: (event[0], event[1] < 0))
    return events


def _start(segment: Segment, index: int) -> Start:
    starts = segment.starts
    if starts is None:
        raise DataError("no starts", f"segment {segment.id}", "record them")
    drawn = {name: np.array(value[index]) for name, value in starts.drawn.items()}
    return Start(int(starts.seeds[index]), starts.state[index].copy(), drawn)


def _form(segment: Segment) -> tuple[Any, ...]:
    return (segment.policy, *segment.actions.shape[2:], segment.state_hash is not None, *sorted(segment.observations))


def _extend(
    track: UnfinishedTrack, segment: Segment, rows: SegmentRows, attempt: int, since: int, until: int, b: int
) -> None:
    track.parts.append(rows.part(since, until, b, track.parts, track.steps))
    track.steps += until - since
    track.attempt = attempt
    track.segments += (segment.id,)
    if segment.reward_version not in track.reward_versions:
        track.reward_versions += (segment.reward_version,)
