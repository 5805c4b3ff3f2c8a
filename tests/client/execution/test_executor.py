"""Strategies against slow references: answers come some steps late, episodes end, chunks expire."""

import math
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from embodied.client import Ensembling, Executor, RealTime, RecedingHorizon
from embodied.client.execution.executor import Strategy
from embodied.data import ActionChunk, Rows
from embodied.errors import ConfigError, DataError
from embodied.spec import AgentSpec, PolicySpec, Stream

B, D = 3, 2
DT = 0.1


def spec(chunk: int, prefixed: bool = False) -> PolicySpec:
    client = (Stream("action_prefix", (chunk, D)), Stream("prefix_length", (), "int32")) if prefixed else ()
    return PolicySpec("p", AgentSpec((Stream("x", (1,)), *client), (Stream("a", (D,)),)), chunk)


def answer(rows: Rows, chunk: int, valid_s: float = math.inf) -> ActionChunk:
    """Chunks whose numbers say body, episode, step of the observation and index."""
    k = np.arange(chunk)[None, :, None]
    first, second = rows.env * 1000.0 + rows.episode, rows.step * 1000.0
    actions = np.concatenate(
        [np.broadcast_to(first[:, None, None], (len(rows), chunk, 1)), second[:, None, None] + k], axis=2
    ).astype(np.float32)
    none = np.full(actions.shape, np.nan, np.float32)
    return ActionChunk(rows, actions, none, none[:, 0, 0], rows.step.astype(np.int64), "p", valid_s)


@dataclass
class Reference:
    """One row, with lists: the chunks of this episode as (step, actions, expiry)."""

    chunks: list[tuple[int, NDArray, float]] = field(default_factory=list)

    def candidates(self, step: int, time: float) -> list[NDArray]:
        """Actions for a step, those of the oldest chunk first."""
        return [
            actions[step - start]
            for start, actions, until in self.chunks
            if step - start < len(actions) and time <= until
        ]

    def coming(self, step: int, time: float) -> NDArray:
        """The rest of the newest chunk."""
        start, actions, until = self.chunks[-1] if self.chunks else (0, np.zeros((0, D)), 0.0)
        return actions[step - start :] if time <= until else actions[:0]


def expected(strategy: Strategy, found: list[NDArray]) -> NDArray:
    if not found:
        return np.full(D, np.nan)
    if not isinstance(strategy, Ensembling):
        return found[-1]
    weights = [math.exp(-strategy.decay * i) for i in range(len(found))]
    return sum(w * a.astype(float) for w, a in zip(weights, found, strict=True)) / sum(weights)


@st.composite
def strategies(draw: st.DrawFn, chunk: int) -> Strategy:
    execute = draw(st.integers(1, chunk))
    decay = draw(st.floats(0, 2))
    return draw(st.sampled_from([RecedingHorizon(execute), Ensembling(decay, execute), RealTime(execute)]))


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_rows_do_as_three_lists_would(data: st.DataObject) -> None:
    chunk = data.draw(st.integers(1, 6))
    strategy = data.draw(strategies(chunk))
    valid_s = data.draw(st.sampled_from([math.inf, 2.5 * DT]))
    executor = Executor(B, spec(chunk, strategy.prefixed), strategy)
    rows, time = Rows.of_envs(B), np.zeros(B)
    references, inbox = [Reference() for _ in range(B)], list[tuple[int, int, ActionChunk, float]]()
    merged = [np.zeros((chunk, D), np.float32) for _ in range(B)]
    resumed = data.draw(st.integers(0, 25))
    for now in range(data.draw(st.integers(1, 25))):
        if now == resumed:
            state, executor = executor.state(), Executor(B, spec(chunk, strategy.prefixed), strategy)
            executor.load(state)
        due = np.flatnonzero(executor.due(rows, time))
        streams = executor.ask(due, rows, time)
        for i, row in enumerate(due):
            asked = answer(rows.take([row]), chunk, valid_s)
            merged[row] = asked.actions[0].copy()
            if isinstance(strategy, RealTime):  # this policy ignores its prefix; what was promised is executed
                promised = references[row].coming(int(rows.step[row]), time[row])[: executor.delay]
                given, length = streams["action_prefix"][i], int(streams["prefix_length"][i])
                assert length == len(promised) and not given[length:].any()
                if length:
                    np.testing.assert_array_equal(given[:length], promised)
                merged[row][:length] = given[:length]
            inbox.append((now + data.draw(st.integers(0, 3)), row, asked, time[row]))
        for item in [item for item in inbox if item[0] <= now]:
            inbox.remove(item)
            _, row, chunks, captured = item
            of_use = bool(executor.accept([row], chunks, np.array([captured]))[0])
            assert of_use == (chunks.rows.episode[0] == rows.episode[row])
            if of_use:
                kept = references[row].chunks if isinstance(strategy, Ensembling) else []
                references[row].chunks = [*kept, (int(chunks.rows.step[0]), merged[row], captured + valid_s)]
        step = executor.next(rows, time)
        for row in range(B):
            found = references[row].candidates(int(rows.step[row]), time[row])
            np.testing.assert_allclose(step.actions[row], expected(strategy, found), rtol=1e-5)
            assert step.ready[row] == bool(found) == np.isfinite(step.actions[row]).all()
            if found:
                assert step.actions[row, 0] == row * 1000 + rows.episode[row]
        rows.step, time = rows.step + np.int32(1), time + DT
        for row in np.flatnonzero(data.draw(st.lists(st.sampled_from([0, 0, 0, 1]), min_size=B, max_size=B))):
            rows.episode[row] += 1
            rows.step[row] = 0
            references[row] = Reference()


@settings(max_examples=80, deadline=None)
@given(
    st.integers(0, 2**32), st.integers(2, 10), st.integers(1, 4), st.lists(st.integers(0, 4), min_size=4, max_size=8)
)
def test_real_time_chunks_join_without_a_jump(seed: int, chunk: int, execute: int, delays: list[int]) -> None:
    """A policy whose actions move by at most 1 a step from its prefix on gives a sequence that does so everywhere."""
    execute, slowest = min(execute, chunk), max(delays)
    executor = Executor(B, spec(chunk, True), RealTime(execute, delay=slowest))
    draw, rows, time = np.random.default_rng(seed), Rows.of_envs(B), np.zeros(B)
    last = np.full((B, D), np.nan)
    for delay in delays:
        due = np.flatnonzero(executor.due(rows, time))
        asked, captured, first, steps = rows.take(due), time[due].copy(), False, 1
        if len(due):
            steps += delay
            given = executor.ask(due, rows, time)
            prefix, length = given["action_prefix"], given["prefix_length"]
            assert prefix.shape == (len(due), chunk, D) and prefix.dtype == np.float32 and length.dtype == np.int32
            assert (length <= slowest).all()
            first = not length.all()  # nothing to continue
            moves = draw.uniform(-1, 1, (len(due), chunk, D)).astype(np.float32)
            actions = prefix.copy()
            for b in range(len(due)):
                for k in range(length[b], chunk):
                    actions[b, k] = moves[b, k] + (actions[b, k - 1] if k else 0)
        for n in range(steps):
            if len(due) and n == delay:
                assert executor.accept(due, replace(answer(asked, chunk), actions=actions), captured).all()
            step = executor.next(rows, time)
            if not first and step.ready.all() and np.isfinite(last).all():
                assert np.abs(step.actions - last).max() <= 1 + 1e-4
            last = step.actions
            rows.step, time = rows.step + np.int32(1), time + DT


def test_late_answers_leave_the_rest_of_the_chunk_and_then_nothing() -> None:
    executor, rows, time = Executor(1, spec(3), RecedingHorizon(1)), Rows.of_envs(1), np.zeros(1)
    executor.ask([0], rows, time)
    executor.accept([0], answer(rows.take([0]), 3), time)
    seen = []
    for step in range(5):
        rows.step[:] = step
        if executor.due(rows, time).any():
            executor.ask([0], rows, time)
        seen.append(executor.next(rows, time))
    assert [step.actions[0, 1] for step in seen[:3]] == [0, 1, 2]
    assert [int(step.k[0]) for step in seen] == [0, 1, 2, -1, -1]
    assert np.isnan(seen[3].actions).all() and seen[3].versions.tolist() == [-1]
    rows.step[:] = 5
    assert not executor.due(rows, time).any()
    executor.failed([0])
    assert executor.due(rows, time).all()


def test_expired_actions_are_not_executed() -> None:
    executor, rows = Executor(1, spec(5), RecedingHorizon(5)), Rows.of_envs(1)
    executor.ask([0], rows, np.zeros(1))
    executor.accept([0], answer(rows.take([0]), 5, valid_s=0.25), np.zeros(1))
    ready = []
    for step in range(4):
        rows.step[:] = step
        ready.append(bool(executor.next(rows, np.full(1, step * DT)).ready[0]))
    assert ready == [True, True, True, False] and executor.due(rows, np.full(1, 0.3)).all()


def test_prefixes_last_as_long_as_the_slowest_of_the_last_answers() -> None:
    executor, rows, time = Executor(1, spec(8, True), RealTime(3)), Rows.of_envs(1), np.zeros(1)
    assert executor.ask([0], rows, time)["prefix_length"].tolist() == [0]
    executor.accept([0], answer(rows.take([0]), 8), time)
    for step in range(3):
        rows.step[:] = step
        executor.next(rows, time)
    rows.step[:] = 3
    asked = rows.take([0])
    assert executor.ask([0], rows, time)["prefix_length"].tolist() == [0]
    for step in (3, 4):
        rows.step[:] = step
        executor.next(rows, time)
    executor.accept([0], answer(asked, 8), time)
    assert executor.delay == 2
    rows.step[:] = 6
    given = executor.ask([0], rows, time)
    assert given["prefix_length"].tolist() == [2]
    assert given["action_prefix"][0, :3, 1].tolist() == [3003, 3004, 0]


def test_answers_nobody_waits_for_are_not_taken() -> None:
    executor, rows, time = Executor(2, spec(3), RecedingHorizon(2)), Rows.of_envs(2), np.zeros(2)
    executor.ask([0, 1], rows, time)
    asked = rows.take([0, 1])
    rows.episode[1] = 1
    assert executor.due(rows, time).tolist() == [False, True]
    assert executor.accept([0, 1], answer(asked, 3), time).tolist() == [True, False]
    assert executor.accept([0, 1], answer(asked, 3), time).tolist() == [False, False]
    executor.reset([0])
    assert executor.due(rows, time).all() and not executor.next(rows, time).ready.any()


def test_actions_nobody_may_execute_are_refused() -> None:
    executor, rows, time = Executor(1, spec(3), RecedingHorizon(2)), Rows.of_envs(1), np.zeros(1)
    executor.ask([0], rows, time)
    bad = answer(rows, 3)
    bad.actions[0, 2] = np.inf
    with pytest.raises(DataError, match="not finite"):
        executor.accept([0], bad, time)
    with pytest.raises(DataError, match=r"\(3, 2\)"):
        executor.accept([0], answer(rows, 4), time)


def test_what_a_policy_cannot_do_is_said_before_the_first_action() -> None:
    with pytest.raises(ConfigError, match="takes no action prefix"):
        Executor(1, spec(3), RealTime(1))
    with pytest.raises(ConfigError, match="a chunk of policy p has 3"):
        Executor(1, spec(3), RecedingHorizon(4))
    with pytest.raises(ConfigError, match="decay"):
        Ensembling(-1.0)
    with pytest.raises(ConfigError, match="delay"):
        RealTime(1, -1)
    for strategy in (RecedingHorizon, Ensembling, RealTime):
        for wrong in (0, True, 1.5, np.nan):
            with pytest.raises(ConfigError, match="execute"):
                strategy(execute=wrong)  # type: ignore[arg-type]
    agent = spec(3, True).agent
    wrong_shape = replace(spec(3), agent=replace(agent, observations=agent.observations[:2]))
    with pytest.raises(Exception, match="prefix_length"):
        Executor(1, wrong_shape, RealTime(1))


def test_only_receding_horizon_is_on_policy() -> None:
    assert [s.on_policy for s in (RecedingHorizon(1), Ensembling(), RealTime(1))] == [True, False, False]
    executor, rows, time = Executor(2, spec(3), Ensembling()), Rows.of_envs(2), np.zeros(2)
    executor.ask([0, 1], rows, time)
    executor.accept([0, 1], answer(rows, 3), time)
    chunk = executor.next(rows, time).as_chunk(rows, "p")
    assert chunk.actions.shape == (2, 1, D) and np.isnan(chunk.log_probs).all() and chunk.versions.tolist() == [0, 0]
