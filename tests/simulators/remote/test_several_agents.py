"""Environments of several agents in workers."""

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from embodied.data import EnvStep, Outcome, Rule
from embodied.errors import SpecMismatch
from simulators.worker.rows import EnvRows
from simulators.worker.suite import load_suite
from tests.simulators.worker.pairs import AGENTS, STEPS
from tests.simulators.worker.processes import env, workers

PAIR = "tests.simulators.worker.pairs:pair"
Actions = dict[str, NDArray[np.float32]]


@pytest.fixture
def address(tmp_path: Path) -> str:
    return f"ipc://{tmp_path}/w"


def actions(count: int, step: int, first: int = 0) -> Actions:
    """Some reach their ends early, others late or never."""
    at = first + np.arange(count, dtype=np.float32)
    walk = np.where(at % 2 == 0, 0.9, 0.1)[:, None]
    gaze = np.stack([np.where(at % 3 == 0, 0.25, 0.01), 0.01 * np.cos(at + step)], axis=1)
    return {"walker": walk.astype(np.float32), "watcher": gaze.astype(np.float32)}


def same(one: EnvStep, other: EnvStep, rows: slice = slice(None)) -> None:
    for name, agent in one.agents.items():
        own = other.agents[name]
        for key in ("rewards", "outcomes", "terminated", "truncated", "reward_status"):
            np.testing.assert_array_equal(getattr(agent, key)[rows], getattr(own, key))
        mine = agent.observation.take(rows)
        for key, values in mine.streams.items():
            np.testing.assert_array_equal(values, own.observation.streams[key])
        for key, values in mine.rows.arrays().items():
            np.testing.assert_array_equal(values, getattr(own.observation.rows, key))


def test_agents_end_apart_and_their_environment_starts_anew_together(address: str) -> None:
    with workers(2, address, env=PAIR), env(6, address, env=PAIR, num_workers=2) as made:
        seen, _ = made.reset()
        assert list(seen) == list(AGENTS) and [rows.rows.agent[0] for rows in seen.values()] == [0, 1]
        ended = {name: np.zeros(6, bool) for name in AGENTS}
        ends = {name: set() for name in AGENTS}
        parked = 0
        for t in range(4 * STEPS):
            result = made.step(actions(6, t))
            started = np.zeros(6, bool)
            if result.started is not None:
                started[result.started.ids] = True
            for name, agent in result.agents.items():
                assert not agent.outcomes[ended[name]].any() and not agent.rewards[ended[name]].any()
                ends[name] |= set(agent.outcomes[agent.ended].tolist())
                assert {key: len(values) for key, values in agent.final.items()} == dict.fromkeys(
                    agent.final, len(agent.ended)
                )
                ended[name][agent.ended] = True
                active = np.ones(6, bool) if agent.active is None else agent.active
                np.testing.assert_array_equal(active, ~ended[name] | started)
                parked += int((~active).sum())
            np.testing.assert_array_equal(started, ended["walker"] & ended["watcher"])
            for name in AGENTS:
                ended[name][started] = False
        assert parked > 20 and ends["walker"] == {Outcome.SUCCESS, Outcome.TIME_LIMIT}
        assert ends["watcher"] == {Outcome.FAILURE, Outcome.TIME_LIMIT} and made.faults == 0
        with pytest.raises(SpecMismatch, match="give a mapping of walker, watcher"):
            made.step({"walker": np.zeros((6, 1), np.float32)})


def test_two_origins_give_together_the_rows_of_one(address: str) -> None:
    with (
        workers(1, address, env=PAIR),
        env(6, address, env=PAIR) as whole,
        env(3, address, env=PAIR) as low,
        env(3, address, env=PAIR, first=3) as high,
    ):
        for made in (whole, low, high):
            made.reset()
        for t in range(3 * STEPS):
            step = whole.step(actions(6, t))
            parts = [low.step(actions(3, t)), high.step(actions(3, t, 3))]
            same(step, parts[0], slice(None, 3))
            same(step, parts[1], slice(3, None))
            ids = [part.started.ids for part in parts if part.started is not None]
            assert (step.started is None) == (not ids)
            if step.started is not None:
                np.testing.assert_array_equal(step.started.ids, np.concatenate(ids))


def test_a_snapshot_continues_with_agents_parked(address: str) -> None:
    with workers(1, address, env=PAIR), env(6, address, env=PAIR) as made, env(6, address, env=PAIR) as other:
        made.reset()
        for t in range(4):
            result = made.step(actions(6, t))
        assert result.agents["walker"].active is not None or result.agents["watcher"].active is not None
        snapshot = made.snapshot()
        other.restore(snapshot)
        for t in range(4, 3 * STEPS):
            same(made.step(actions(6, t)), other.step(actions(6, t)))


def test_a_fault_ends_the_acting_agents_and_clipped_actions_are_told(address: str) -> None:
    with workers(1, address, env=PAIR), env(2, address, env=PAIR) as made:
        made.reset()
        given = actions(2, 0)
        given["watcher"][1, 0] = -0.375
        given["walker"][0] = 5.0
        result = made.step(given)
        walker, watcher = result.agents["walker"], result.agents["watcher"]
        assert walker.outcomes.tolist() == watcher.outcomes.tolist() == [0, Outcome.INFRASTRUCTURE_FAULT]
        assert made.faults == 1 and result.started is not None and result.started.ids.tolist() == [1]
        assert walker.rule is not None and walker.rule.tolist() == [Rule.ACTION_LIMIT, 0]
        assert walker.executed is not None and walker.executed[0, 0] == 1.0 and watcher.rule is None


def test_rows_of_a_worker_hold_the_agents_apart() -> None:
    rows = EnvRows(load_suite(PAIR, {}), 1)
    start = rows.reset([0], [1])
    assert set(start) == {"walker/at", "walker/goal", "watcher/seen"}
    first = rows.step([0], np.array([[0.0, 0.5, 0.0]], np.float32))
    second = rows.step([0], np.array([[0.0, 0.5, 0.0]], np.float32))
    assert first.outcomes.tolist() == [[0, 0]] and second.outcomes.tolist() == [[0, Outcome.FAILURE]]
    third = rows.step([0], np.array([[1.0, np.nan, 0.0]], np.float32))
    assert third.outcomes.tolist() == [[0, 0]] and third.rewards[0, 1] == 0
    np.testing.assert_array_equal(third.streams["watcher/seen"], second.final["watcher/seen"])
