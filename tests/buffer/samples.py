"""Random episodes, and segments that carry them, for the tests of this room."""

import dataclasses
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from embodied.data import CarriedDecisions, Outcome, Resets, Rows, Rule, Segment
from embodied.episode import Episode, Track
from embodied.spec import AgentSpec, EnvSpec, Stream

STREAMS = (Stream("joint_pos", (3,), unit="rad"), Stream("camera", (4, 4, 3), "uint8"), Stream("count", (), "int32"))
ACTION, CONTROL, STATE = 2, 3, 5
SPEC = EnvSpec(
    "reach", {"robot": AgentSpec(STREAMS, (Stream("delta", (ACTION,)),))}, 20.0, "reach the point", 50, STATE, CONTROL
)


def stream(rng: np.random.Generator, spec: Stream, *lead: int) -> np.ndarray:
    values = (
        rng.integers(0, 256, (*lead, *spec.shape)) if spec.dtype != "float32" else rng.normal(size=(*lead, *spec.shape))
    )
    return values.astype(spec.dtype)


def make_episode(
    seed: int,
    id: str = "sim-0/train/0-0000-000000",
    *,
    steps: int = 7,
    chunk: int = 3,
    mode: str = "train",
    outcome: Outcome = Outcome.FAILURE,
    control: int = CONTROL,
    agents: tuple[str, ...] = ("robot",),
    simulated: bool = False,
    timed: bool = False,
    changed: bool = False,
) -> Episode:
    """A random episode.

    Args:
        timed: With capture times of steps and of the camera, which is late.
        changed: With steps whose requested or executed action is not the decision's, and one without a decision.
    """
    rng = np.random.default_rng(seed)

    def track() -> Track:
        k = np.arange(steps, dtype=np.int32) % chunk
        decisions = int((k == 0).sum())
        log_probs = rng.normal(size=(decisions, chunk, ACTION)).astype(np.float32)
        log_probs[0, 0, 0] = np.nan
        made = Track(
            observations={spec.name: stream(rng, spec, steps + 1) for spec in STREAMS},
            decision=np.cumsum(k == 0, dtype=np.int32) - 1,
            k=k,
            rewards=rng.normal(size=steps).astype(np.float32),
            reward_status=rng.integers(0, 3, steps).astype(np.uint8),
            terminated=np.arange(steps) == steps - 1,
            truncated=np.zeros(steps, bool),
            source=rng.integers(0, 3, steps).astype(np.uint8),
            trainable=rng.random(steps) < 0.5,
            applied=rng.normal(size=(steps, control)),
            segment=np.minimum(np.arange(steps) // 4, 1).astype(np.int32),
            step=np.flatnonzero(k == 0).astype(np.int32),
            actions=rng.normal(size=(decisions, chunk, ACTION)).astype(np.float32),
            log_probs=log_probs,
            executed=np.arange(chunk) < np.minimum(steps - np.flatnonzero(k == 0)[:, None], chunk),
            values=rng.normal(size=decisions).astype(np.float32),
            versions=rng.integers(0, 2**40, decisions),
            state_hash=rng.integers(0, 2**63, steps, np.uint64) if simulated else None,
            policy="mlp",
            outcome=outcome,
        )
        if timed:
            made.time = np.arange(steps + 1) / 20 + 100.0
            made.times = {"camera": made.time - 0.02}
        if changed:
            change(made)
        return made

    return Episode(
        id=id,
        task="reach",
        mode=mode,
        reward_version="sparse-1",
        seed=int(rng.integers(2**62)),
        spec=SPEC.to_dict(),
        agents={name: track() for name in agents},
        initial_state=rng.normal(size=STATE),
        drawn={"mass": np.array(rng.normal()), "goal": rng.normal(size=3)},
        segments=["0-000001", "0-000002"][: 1 + (steps > 4)],
    )


def change(track: Track) -> None:
    """Let the last step hold without a decision, one be requested by a person, and one be changed by a rule."""
    steps = len(track)
    track.decision[-1], track.k[-1] = -1, -1
    track.executed[...] = False
    track.executed[track.decision[:-1], track.k[:-1]] = True
    requested = track.decided
    requested[steps // 2] = 0.5
    executed = requested.copy()
    executed[-1] = 0.0
    executed[0] /= 2
    track.action_requested, track.action_executed = requested, executed
    track.action_rule = np.zeros(steps, np.uint8)
    track.action_rule[0], track.action_rule[-1] = Rule.VELOCITY, Rule.HOLD


def assert_same(a: Any, b: Any, where: str = "") -> None:
    """Equal to the bit, with dtypes; dataclasses and dictionaries field by field."""
    if isinstance(a, np.ndarray):
        assert a.dtype == b.dtype and a.shape == b.shape, (where, a.dtype, b.dtype, a.shape, b.shape)
        assert a.tobytes() == b.tobytes(), where
    elif dataclasses.is_dataclass(a):
        assert type(a) is type(b), where
        for field in dataclasses.fields(a):
            assert_same(getattr(a, field.name), getattr(b, field.name), f"{where}.{field.name}")
    elif isinstance(a, dict):
        assert a.keys() == b.keys(), where
        for name in a:
            assert_same(a[name], b[name], f"{where}[{name}]")
    else:
        assert a == b, (where, a, b)


@dataclass
class Life:
    """All steps of one agent of an environment, as ground truth: arrays per step, and the ends of its episodes.

    Attributes:
        lengths: Of the environment's episodes.
        ends: Of the agent's part of each; it is parked for the rest.
    """

    lengths: list[int]
    ends: list[int]
    observations: dict[str, np.ndarray]
    final: dict[str, np.ndarray]
    action: np.ndarray
    log_prob: np.ndarray
    value: np.ndarray
    version: np.ndarray
    applied: np.ndarray
    rewards: np.ndarray
    time: np.ndarray
    outcomes: np.ndarray
    seeds: np.ndarray
    state: np.ndarray
    mass: np.ndarray

    @property
    def steps(self) -> int:
        return len(self.rewards)


def live(seed: int, lengths: list[int], steps: int, ends: list[int] | None = None) -> Life:
    """An environment whose episodes have these lengths, cut after `steps`; the last may not end."""
    rng = np.random.default_rng(seed)
    count = len(lengths)
    return Life(
        lengths,
        ends or lengths,
        {spec.name: stream(rng, spec, steps) for spec in STREAMS},
        {spec.name: stream(rng, spec, count) for spec in STREAMS},
        rng.normal(size=(steps, ACTION)).astype(np.float32),
        rng.normal(size=(steps, ACTION)).astype(np.float32),
        rng.normal(size=steps).astype(np.float32),
        rng.integers(0, 99, steps),
        rng.normal(size=(steps, CONTROL)),
        rng.normal(size=steps).astype(np.float32),
        np.arange(steps) / 20.0,
        rng.integers(1, 7, count).astype(np.uint8),
        rng.integers(0, 2**62, count),
        rng.normal(size=(count, STATE)),
        rng.normal(size=count),
    )


def live_together(seed: int, lengths: list[int], ends: list[list[int]], steps: int) -> list[Life]:
    """Agents of one environment, each with its own ends."""
    lives = [live(seed * 10 + n, lengths, steps, own) for n, own in enumerate(ends)]
    for life in lives[1:]:
        life.seeds, life.state, life.mass = lives[0].seeds, lives[0].state, lives[0].mass
        life.applied = lives[0].applied
    return lives


@dataclass
class Cutting:
    """Options of segments.

    Attributes:
        early: A start at the end of a segment is told by that segment, not by the next.
        carry: Chunks go on over the ends of segments.
        late: Steps after which answers come, less than a chunk has; nothing is executed before the first.
        timed: With capture times, and those of the camera.
        changed: With requested and executed actions and rules, in every second segment.
    """

    chunk: int = 3
    mode: str = "train"
    early: bool = False
    carry: bool = False
    late: int = 0
    timed: bool = False
    changed: bool = False
    policy: str = "mlp"
    origin: str = "sim-0"


def segments(
    lives: list[Life], cuts: list[int], rows: list[tuple[int, int]] | None = None, **options: Any
) -> list[Segment]:
    """The lives, side by side, cut after the given numbers of steps.

    Args:
        rows: Environment and agent of each life; each is an environment of its own if not given.
        options: Of `Cutting`.
    """
    made, begin = [], 0
    for number, length in enumerate(cuts):
        cutting = Cutting(**options)
        id = f"{cutting.mode}-{cutting.policy}-{number:06d}"
        made.append(_segment(lives, rows or [(b, 0) for b in range(len(lives))], begin, begin + length, cutting, id))
        if cutting.changed and number % 2 == 0:
            _changes(made[-1])
        begin += length
    return made


def _changes(segment: Segment) -> None:
    """Let every third step be changed by a rule, and every fourth requested by a person."""
    place = np.arange(segment.k.size).reshape(segment.k.shape)
    asked = np.arange(len(segment.k))[:, None] - segment.k
    rows = np.arange(segment.k.shape[1])
    decided = segment.actions[np.clip(asked, 0, len(asked) - 1), rows, segment.k]
    if segment.carried is not None:
        for n, (row, t) in enumerate(zip(segment.carried.row, segment.carried.t, strict=True)):
            held = asked[:, row] == t
            decided[held, row] = segment.carried.actions[n, segment.k[held, row]]
    decided[segment.k < 0] = np.nan
    segment.action_requested = decided
    segment.action_requested[place % 4 == 3] = 0.25
    segment.action_executed = segment.action_requested.copy()
    segment.action_executed[place % 3 == 2] = -0.5
    segment.action_rule = np.where(place % 3 == 2, Rule.POSITION, Rule.NONE).astype(np.uint8)


def _segment(
    lives: list[Life], places: list[tuple[int, int]], begin: int, end: int, cutting: Cutting, id: str
) -> Segment:
    t, b, chunk = end - begin, len(lives), cutting.chunk
    rng = np.random.default_rng(begin)
    episode, step, k = np.zeros((t, b), np.int64), np.full((t, b), -1, np.int32), np.full((t, b), -1, np.int32)
    outcomes = np.zeros((t, b), np.uint8)
    actions = rng.normal(size=(t, b, chunk, ACTION)).astype(np.float32)
    log_probs = rng.normal(size=(t, b, chunk, ACTION)).astype(np.float32)
    executed = np.zeros((t, b, chunk), bool)
    versions, values = np.zeros((t, b), np.int64), rng.normal(size=(t, b)).astype(np.float32)
    carried: dict[tuple[int, int], tuple[np.ndarray, np.ndarray, float, int]] = {}
    final_at, final, starts = [], [], []
    for column, life in enumerate(lives):
        bounds = np.cumsum([0, *life.lengths])
        for at in range(begin, end):
            number = int(np.searchsorted(bounds, at, side="right")) - 1
            i, since = at - begin, int(bounds[number]) if cutting.carry else max(int(bounds[number]), begin)
            episode[i, column] = number
            offset = at - bounds[number]
            if offset >= life.ends[number]:
                continue
            step[i, column] = offset
            every = chunk - cutting.late  # steps between questions
            if at - since >= cutting.late:
                asked = since + (at - since - cutting.late) // every * every
                k[i, column] = at - asked
                versions[i, column] = life.version[asked]
                ahead = np.minimum(np.arange(asked, asked + chunk), life.steps - 1)
                if asked >= begin:
                    place = asked - begin
                    actions[place, column], log_probs[place, column] = life.action[ahead], life.log_prob[ahead]
                    values[place, column] = life.value[asked]
                    executed[place, column, k[i, column]] = True
                else:
                    held = life.action[ahead], life.log_prob[ahead], life.value[asked], life.version[asked]
                    carried[column, asked - begin] = held
            if offset + 1 == life.ends[number]:
                outcomes[i, column] = life.outcomes[number]
                final_at.append((i, column))
                final.append({name: value[number] for name, value in life.final.items()})
        if places[column][0] in [env for env, _ in places[:column]]:
            continue  # an environment starts once, whatever the number of its agents
        for number, at in enumerate(bounds[:-1]):
            first = begin <= at < end and not (cutting.early and begin == at > 0)
            if first or (cutting.early and at == end):
                starts.append((int(at) - begin, column, number))
    envs, agents = (np.array(each, np.int32) for each in zip(*places, strict=True))
    rows = Rows(np.tile(envs, (t, 1)), np.tile(agents, (t, 1)), episode, step)

    def column_of(name: str) -> np.ndarray:
        return np.stack([getattr(life, name)[begin:end] for life in lives], axis=1)

    order = sorted(carried)
    time = column_of("time")
    return Segment(
        id=id,
        policy=cutting.policy,
        task="reach",
        rows=rows,
        observations={
            s.name: np.stack([life.observations[s.name][begin:end] for life in lives], axis=1) for s in STREAMS
        },
        bootstrap={s.name: np.zeros((b, *s.shape), s.dtype) for s in STREAMS},
        final_at=np.array(final_at, np.int32).reshape(-1, 2),
        final={s.name: np.array([f[s.name] for f in final], s.dtype).reshape(-1, *s.shape) for s in STREAMS},
        k=k,
        actions=actions,
        log_probs=log_probs,
        executed=executed,
        values=values,
        versions=versions,
        applied=column_of("applied"),
        state_hash=column_of("applied")[..., 0].copy().view(np.uint64),
        rewards=column_of("rewards"),
        reward_status=np.zeros((t, b), np.uint8),
        reward_version="sparse-1",
        terminated=(outcomes == 1) | (outcomes == 2),
        truncated=outcomes > 2,
        outcomes=outcomes,
        source=np.zeros((t, b), np.uint8),
        trainable=outcomes != Outcome.INFRASTRUCTURE_FAULT,
        start_at=np.array([at for at, _, _ in starts], np.int32),
        starts=Resets(
            np.array([places[c][0] for _, c, _ in starts], np.int32),
            np.array([lives[c].seeds[n] for _, c, n in starts], np.int64),
            np.stack([lives[c].state[n] for _, c, n in starts]),
            {"mass": np.array([lives[c].mass[n] for _, c, n in starts])},
        )
        if starts
        else None,
        mode=cutting.mode,
        origin=cutting.origin,
        time=time if cutting.timed else None,
        times={"camera": time - 0.02} if cutting.timed else {},
        carried=CarriedDecisions(
            np.array([row for row, _ in order], np.int32),
            np.array([at for _, at in order], np.int32),
            {},
            np.stack([carried[each][0] for each in order]),
            np.stack([carried[each][1] for each in order]),
            np.zeros((len(order), chunk), bool),
            np.array([carried[each][2] for each in order], np.float32),
            np.array([carried[each][3] for each in order], np.int64),
        )
        if order
        else None,
    )


def run_faults(file: str, mode: str, tmp_path: Path, *more: str) -> int:
    """Run `work` and `check` of a test file by tests/faults.py; how often the work was killed."""
    program = Path(__file__).parents[1] / "faults.py"
    command = [sys.executable, str(program), mode, file, "work", "check", str(tmp_path), *more]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return int(done.stdout.split()[-1])
