"""Random episodes, and segments that carry them, for the tests of this room."""

import dataclasses
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from embodied.data import Episode, Outcome, Resets, Rows, Segment, Track
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
    id: str = "train-0-0000-000000",
    *,
    steps: int = 7,
    chunk: int = 3,
    mode: str = "train",
    outcome: Outcome = Outcome.FAILURE,
    control: int = CONTROL,
    agents: tuple[str, ...] = ("robot",),
    simulated: bool = False,
) -> Episode:
    rng = np.random.default_rng(seed)

    def track() -> Track:
        k = np.arange(steps, dtype=np.int32) % chunk
        decisions = int((k == 0).sum())
        log_probs = rng.normal(size=(decisions, chunk, ACTION)).astype(np.float32)
        log_probs[0, 0, 0] = np.nan
        return Track(
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
        )

    return Episode(
        id=id,
        task="reach",
        mode=mode,
        policy="mlp",
        reward_version="sparse-1",
        seed=int(rng.integers(2**62)),
        outcome=outcome,
        spec=SPEC.to_dict(),
        agents={name: track() for name in agents},
        initial_state=rng.normal(size=STATE),
        drawn={"mass": np.array(rng.normal()), "goal": rng.normal(size=3)},
        segments=["0-000001", "0-000002"][: 1 + (steps > 4)],
    )


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
    """What one env does for all its steps, as ground truth: arrays per step, and where its episodes end."""

    lengths: list[int]
    observations: dict[str, np.ndarray]
    final: dict[str, np.ndarray]
    action: np.ndarray
    log_prob: np.ndarray
    value: np.ndarray
    version: np.ndarray
    applied: np.ndarray
    rewards: np.ndarray
    outcomes: np.ndarray
    seeds: np.ndarray
    state: np.ndarray
    mass: np.ndarray

    @property
    def steps(self) -> int:
        return len(self.rewards)


def live(seed: int, lengths: list[int], steps: int) -> Life:
    """A env whose episodes have these lengths, cut after `steps`; the last may not end."""
    rng = np.random.default_rng(seed)
    count = len(lengths)
    return Life(
        lengths,
        {spec.name: stream(rng, spec, steps) for spec in STREAMS},
        {spec.name: stream(rng, spec, count) for spec in STREAMS},
        rng.normal(size=(steps, ACTION)).astype(np.float32),
        rng.normal(size=(steps, ACTION)).astype(np.float32),
        rng.normal(size=steps).astype(np.float32),
        rng.integers(0, 99, steps),
        rng.normal(size=(steps, CONTROL)),
        rng.normal(size=steps).astype(np.float32),
        rng.integers(1, 7, count).astype(np.uint8),
        rng.integers(0, 2**62, count),
        rng.normal(size=(count, STATE)),
        rng.normal(size=count),
    )


def segments(
    lives: list[Life], cuts: list[int], chunk: int = 3, mode: str = "train", early: bool = False
) -> list[Segment]:
    """The lives, side by side, cut after the given numbers of steps.

    Args:
        early: A start at the end of a segment is told by that segment, not by the next.
    """
    made, begin = [], 0
    for number, length in enumerate(cuts):
        made.append(_segment(lives, begin, begin + length, chunk, mode, early, f"0-{number:06d}"))
        begin += length
    return made


def _segment(lives: list[Life], begin: int, end: int, chunk: int, mode: str, early: bool, id: str) -> Segment:
    t, b = end - begin, len(lives)
    rng = np.random.default_rng(begin)
    episode, step, k = np.zeros((t, b), np.int64), np.zeros((t, b), np.int32), np.zeros((t, b), np.int32)
    outcomes = np.zeros((t, b), np.uint8)
    actions = rng.normal(size=(t, b, chunk, ACTION)).astype(np.float32)
    log_probs = rng.normal(size=(t, b, chunk, ACTION)).astype(np.float32)
    executed = np.zeros((t, b, chunk), bool)
    final_at, final, starts = [], [], []
    for column, life in enumerate(lives):
        bounds = np.cumsum([0, *life.lengths])
        for step in range(begin, end):
            number = int(np.searchsorted(bounds, step, side="right")) - 1
            i, since = step - begin, max(int(bounds[number]), begin)
            episode[i, column], step[i, column] = number, step - bounds[number]
            k[i, column] = (step - since) % chunk
            decided = i - k[i, column]
            actions[decided, column, k[i, column]] = life.action[step]
            log_probs[decided, column, k[i, column]] = life.log_prob[step]
            executed[decided, column, k[i, column]] = True
            if step + 1 == bounds[number + 1]:
                outcomes[i, column] = life.outcomes[number]
                final_at.append((i, column))
                final.append({name: value[number] for name, value in life.final.items()})
        for number, at in enumerate(bounds[:-1]):
            first = begin <= at < end and not (early and begin == at > 0)
            if first or (early and at == end):
                starts.append((int(at) - begin, column, number))
    ids = np.arange(b, dtype=np.int32)
    rows = Rows(np.tile(ids, (t, 1)), np.tile(ids, (t, 1)), np.zeros((t, b), np.int32), episode, step)

    def column_of(name: str) -> np.ndarray:
        return np.stack([getattr(life, name)[begin:end] for life in lives], axis=1)

    return Segment(
        id=id,
        policy="mlp",
        agent="robot",
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
        values=column_of("value"),
        versions=column_of("version"),
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
            np.array([c for _, c, _ in starts], np.int32),
            np.array([lives[c].seeds[n] for _, c, n in starts], np.int64),
            np.stack([lives[c].state[n] for _, c, n in starts]),
            {"mass": np.array([lives[c].mass[n] for _, c, n in starts])},
        )
        if starts
        else None,
        mode=mode,
    )


def run_faults(file: str, mode: str, tmp_path: Path, *more: str) -> int:
    """Run `work` and `check` of a test file by tests/faults.py; how often the work was killed."""
    program = Path(__file__).parents[1] / "faults.py"
    command = [sys.executable, str(program), mode, file, "work", "check", str(tmp_path), *more]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parent)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return int(done.stdout.split()[-1])
