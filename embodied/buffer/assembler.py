"""Whole episodes out of segments."""

import json
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embodied.buffer.cut import Arrays, Cut, Piece, join
from embodied.buffer.packing import pack_arrays, unpack_arrays
from embodied.data import Episode, Outcome, Segment, Track
from embodied.errors import DataError
from embodied.spec import EnvSpec

_STREAM, _DRAWN = "obs/", "drawn/"
_SAVED = (
    "mode", "env", "number", "counted", "policy", "agent", "task", "seed", "reward_versions", "segments",
)  # fmt: skip


@dataclass
class _Open:
    """An episode whose end has not been seen. Its pieces are one per segment."""

    mode: str
    env: int
    number: int
    counted: int
    policy: str
    agent: str
    task: str
    seed: int
    state: NDArray[np.float64]
    drawn: Arrays
    reward_versions: list[str] = field(default_factory=list)
    segments: list[str] = field(default_factory=list)
    steps: int = 0
    decisions: int = 0
    pieces: list[Piece] = field(default_factory=list)


class EpisodeAssembler:
    """Joins what segments carry of each env into episodes.

    Segments of one env and mode come in order. An episode whose start was not seen, or of which a part is missing, is
    dropped and counted. What a env does between the end of an episode and the next start belongs to none.

    Args:
        spec: Of the envs; stored with every episode.
        attempt: Which start of the run this is; keeps ids unique over resumes.

    Attributes:
        dropped: Episodes lost so far.
    """

    def __init__(self, spec: EnvSpec, attempt: int) -> None:
        self.spec, self.attempt = spec.to_dict(), attempt
        self.dropped = 0
        self._open: dict[tuple[str, int], _Open] = {}
        self._last: dict[tuple[str, int], int] = {}
        self._early: dict[tuple[str, int], tuple[int, NDArray[np.float64], Arrays]] = {}

    def add(self, segment: Segment) -> list[Episode]:
        """Take T steps of B rows; the episodes that ended in them, ordered by row, then time.

        Raises:
            DataError: A row or an episode begins without a decision, so that its steps point outside.
        """
        length, width = segment.rewards.shape
        if not length:
            return []
        envs = segment.rows.env[0].tolist()
        events = _events(segment, envs)
        if segment.k[0].any() or any(
            i >= 0 and t < length and segment.k[t, b] for b, e in enumerate(events) for t, i in e
        ):
            raise DataError("a row begins within a chunk", f"segment {segment.id}", "begin segments with a decision")
        cut = Cut(segment)
        done: list[Episode] = []
        for b in range(width):
            key = segment.mode, envs[b]
            if key in self._early:
                self._begin(key, segment, self._early.pop(key), 0, b)
            self._continue(key, segment, b)
            since = 0
            for t, index in events[b]:
                if index >= 0 and t == length:
                    self._early[key] = _start(segment, index)
                elif index >= 0:
                    self._begin(key, segment, _start(segment, index), t, b)
                    since = t
                elif (episode := self._open.pop(key, None)) is not None:
                    _extend(episode, segment, cut, since, t + 1, b)
                    done.append(self._finish(episode, segment, Outcome(int(segment.outcomes[t, b])), -index - 1))
                else:
                    self.dropped += 1
            if key in self._open:
                _extend(self._open[key], segment, cut, since, length, b)
        return done

    def _begin(self, key: tuple[str, int], segment: Segment, start: tuple[int, Any, Arrays], t: int, b: int) -> None:
        if self._open.pop(key, None) is not None:
            self.dropped += 1
        # Environments that are made anew, such as those of another evaluation, count from 0 again; ids must not.
        counted = int(segment.rows.episode[t, b])
        number = max(counted, self._last.get(key, -1) + 1)
        self._last[key] = number
        seed, state, drawn = start
        self._open[key] = _Open(*key, number, counted, segment.policy, segment.agent, segment.task, seed, state, drawn)

    def _continue(self, key: tuple[str, int], segment: Segment, b: int) -> None:
        """Drop the open episode of a env unless the segment goes on where the last one stopped."""
        episode = self._open.get(key)
        if episode is None:
            return
        goes_on = int(segment.rows.episode[0, b]) == episode.counted
        fits = goes_on and int(segment.rows.step[0, b]) == episode.steps and episode.agent == segment.agent
        if episode.pieces:
            fits &= episode.pieces[-1].fits(segment)
        if not fits:
            del self._open[key]
            self.dropped += not goes_on  # one that goes on is counted at its end

    def _finish(self, episode: _Open, segment: Segment, outcome: Outcome, final: int) -> Episode:
        last = {name: segment.final[name][final : final + 1] for name in segment.observations}
        whole = join(episode.pieces, last)
        columns: dict[str, Any] = whole.columns
        return Episode(
            id=f"{episode.mode}-{self.attempt}-{episode.env:04d}-{episode.number:06d}",
            task=episode.task,
            mode=episode.mode,
            policy=episode.policy,
            reward_version="+".join(episode.reward_versions),
            seed=episode.seed,
            outcome=outcome,
            spec=self.spec,
            agents={episode.agent: Track(observations=whole.streams, **columns)},
            initial_state=episode.state,
            drawn=episode.drawn,
            segments=episode.segments,
        )

    def state(self) -> Arrays:
        """The open episodes and counters for a checkpoint: arrays of bytes, `data` and `meta`, which is JSON."""
        arrays: Arrays = {}
        opened, early = [], []
        for n, episode in enumerate(self._open.values()):
            if episode.pieces:
                whole = join(episode.pieces)
                arrays |= {f"{n}/{name}": value for name, value in whole.columns.items()}
                arrays |= {f"{n}/{_STREAM}{name}": value for name, value in whole.streams.items()}
            arrays |= {f"{n}/state": episode.state} | {f"{n}/drawn/{k}": v for k, v in episode.drawn.items()}
            opened.append({name: getattr(episode, name) for name in _SAVED})
        for n, (key, (seed, state, drawn)) in enumerate(self._early.items()):
            early.append([*key, seed])
            arrays |= {f"early/{n}/state": state} | {f"early/{n}/drawn/{k}": v for k, v in drawn.items()}
        table, data = pack_arrays(arrays)
        last = [[*key, number] for key, number in self._last.items()]
        meta = {"open": opened, "early": early, "last": last, "dropped": self.dropped, "arrays": table}
        return {
            "meta": np.frombuffer(json.dumps(meta).encode(), np.uint8).copy(),
            "data": np.frombuffer(data, np.uint8).copy(),
        }

    def load(self, state: Arrays) -> None:
        """Take up what `state` gave; the ids of another attempt number anew.

        Raises:
            DataError: It is not such a state.
        """
        try:
            meta = json.loads(np.asarray(state["meta"], np.uint8).tobytes())
            arrays = _nested(unpack_arrays(meta["arrays"], np.asarray(state["data"], np.uint8).tobytes()))
            opened = [_Open(**row, **_restored(arrays[f"{n}"])) for n, row in enumerate(meta["open"])]
            early = {}
            for n, (mode, env, seed) in enumerate(meta["early"]):
                start = _restored(arrays[f"early/{n}"])
                early[mode, env] = seed, start["state"], start["drawn"]
            last = {(mode, env): number for mode, env, number in meta["last"]}
            dropped = int(meta["dropped"])
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(f"no state of an episode assembler: {error}", "checkpoint", "resume from another") from None
        self._open = {(episode.mode, episode.env): episode for episode in opened}
        self._early, self._last, self.dropped = early, last, dropped


def _events(segment: Segment, envs: list[int]) -> list[list[tuple[int, int]]]:
    """Per row, in order of time, what happens: (t, i >= 0) start i before step t; (t, -i - 1) end i with step t."""
    events: list[list[tuple[int, int]]] = [[] for _ in envs]
    row = {env: b for b, env in enumerate(envs)}
    if segment.starts is not None:
        for i, (t, env) in enumerate(zip(segment.start_at.tolist(), segment.starts.ids.tolist(), strict=True)):
            if env not in row:
                raise DataError(
                    f"an episode starts on env {env}, which has no row", f"segment {segment.id}", "name rows"
                )
            events[row[env]].append((t, i))
    for i, (t, b) in enumerate(segment.final_at.tolist()):
        events[b].append((t, -i - 1))
    for each in events:
        each.sort(key=lambda event: (event[0], event[1] < 0))
    return events


def _start(segment: Segment, index: int) -> tuple[int, NDArray[np.float64], Arrays]:
    starts = segment.starts
    if starts is None:
        raise DataError("no starts", f"segment {segment.id}", "record them")
    return (
        int(starts.seeds[index]),
        starts.state[index].copy(),
        {n: np.array(v[index]) for n, v in starts.drawn.items()},
    )


def _extend(episode: _Open, segment: Segment, cut: Cut, since: int, until: int, b: int) -> None:
    if segment.id not in episode.segments:
        episode.segments.append(segment.id)
    if segment.reward_version not in episode.reward_versions:
        episode.reward_versions.append(segment.reward_version)
    piece = cut.piece(since, until, b, episode.steps, episode.decisions, len(episode.segments) - 1)
    episode.pieces.append(piece)
    episode.steps += piece.steps
    episode.decisions += piece.decisions


def _nested(arrays: Arrays) -> dict[str, Arrays]:
    """Arrays by their episode: `7/k` and `early/7/state` belong to `7` and `early/7`."""
    out: dict[str, Arrays] = {}
    for name, value in arrays.items():
        parts = name.split("/")
        depth = 2 if parts[0] == "early" else 1
        out.setdefault("/".join(parts[:depth]), {})["/".join(parts[depth:])] = value
    return out


def _restored(arrays: Arrays) -> dict[str, Any]:
    """The arrays of one episode as arguments of `_Open`."""
    drawn = {name.removeprefix(_DRAWN): arrays.pop(name) for name in list(arrays) if name.startswith(_DRAWN)}
    streams = {name.removeprefix(_STREAM): arrays.pop(name) for name in list(arrays) if name.startswith(_STREAM)}
    out: dict[str, Any] = {"state": arrays.pop("state"), "drawn": drawn}
    if arrays:
        piece = Piece(arrays, streams)
        out |= {"pieces": [piece], "steps": piece.steps, "decisions": piece.decisions}
    return out
