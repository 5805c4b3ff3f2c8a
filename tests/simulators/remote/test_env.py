"""An environment whose environments run in real worker processes equals one with the environments in this process."""

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from embodied.data import Outcome
from embodied.errors import ConfigError, SpecMismatch, UserError
from embodied.wire.addresses import create_credentials
from simulators.one_agent import OneAgentEnv, OneAgentStep
from simulators.remote.env import RemoteEnv
from simulators.worker.rows import EnvRows
from simulators.worker.suite import load_suite
from tests.simulators.worker.processes import PATH, TINY, end, env, start_worker, workers
from tests.simulators.worker.tiny_gym import STEPS

TCP = "tcp://127.0.0.1:47631"


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Two workers that serve every test of this module, one after the other."""
    there = f"ipc://{tmp_path_factory.mktemp('worker')}/socket"
    with workers(2, there):
        yield there


def actions(count: int, step: int) -> np.ndarray:
    return np.random.default_rng(step).uniform(-1, 1, (count, 2)).astype(np.float32)


def roll(made: RemoteEnv, steps: int, first: int = 0) -> list[OneAgentStep]:
    return [OneAgentEnv(made).step(actions(made.num_envs, first + step)) for step in range(steps)]


def same(one: OneAgentStep, other: OneAgentStep) -> None:
    for name in ("rewards", "outcomes", "terminated", "truncated", "applied", "ended", "reward_status"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name), err_msg=name)
    for name, values in one.observation.streams.items():
        np.testing.assert_array_equal(values, other.observation.streams[name], err_msg=name)
        np.testing.assert_array_equal(one.final[name], other.final[name], err_msg=name)
    for name, rows in one.observation.rows.arrays().items():
        np.testing.assert_array_equal(rows, other.observation.rows.arrays()[name], err_msg=name)
    np.testing.assert_array_equal(one.observation.time, other.observation.time)


@pytest.mark.parametrize("num_workers", [1, 2])
def test_rows_are_those_of_a_local_run(address: str, num_workers: int) -> None:
    local = EnvRows(load_suite(TINY, {}), 5)
    with env(5, address, num_workers=num_workers) as made:
        assert made.spec.task == "tiny" and made.spec.agents["robot"].action_dim == 2
        observation, starts = OneAgentEnv(made).reset()
        assert starts.ids.tolist() == list(range(5)) and starts.state.shape == (5, 0)
        seen = local.reset(range(5), starts.seeds.tolist())
        episode, taken = np.zeros(5, int), np.zeros(5, int)
        count = 0
        for step in range(4 * STEPS):
            for name, values in seen.items():
                np.testing.assert_array_equal(observation.streams[name.removeprefix("robot/")], values)
            result = OneAgentEnv(made).step(actions(5, step))
            mine = local.step(range(5), actions(5, step))
            np.testing.assert_array_equal(result.rewards, mine.rewards[:, 0])
            np.testing.assert_array_equal(result.outcomes, mine.outcomes[:, 0])
            ended = np.flatnonzero(mine.outcomes[:, 0])
            np.testing.assert_array_equal(result.ended, ended)
            np.testing.assert_array_equal(result.applied, actions(5, step).astype(float))
            taken += 1
            for name, values in mine.final.items():
                np.testing.assert_array_equal(result.final[name.removeprefix("robot/")], values)
            if len(ended):
                assert result.started is not None and result.started.ids.tolist() == ended.tolist()
                local.reset(ended.tolist(), result.started.seeds.tolist())
                episode[ended] += 1
                taken[ended] = 0
                count += len(ended)
            seen = local._seen(range(5))
            observation = result.observation
            assert (
                observation.rows.episode.tolist() == episode.tolist()
                and observation.rows.step.tolist() == taken.tolist()
            )
            np.testing.assert_allclose(observation.time, taken / 10)
        assert count >= 15 and made.physics_s > 0 and made.faults == 0


def test_seeds_alone_decide(address: str) -> None:
    with env(3, address) as one, env(5, address, num_workers=2) as other:  # at one address, with the same workers
        first, starts = OneAgentEnv(one).reset([7, 8, 9])
        second, _ = OneAgentEnv(other).reset([9, 1, 7, 2, 8])
        for name, values in first.streams.items():
            np.testing.assert_array_equal(values, second.streams[name][[2, 4, 0]])
        assert starts.seeds.tolist() == [7, 8, 9]
        assert OneAgentEnv(one).reset()[1].seeds.tolist() != OneAgentEnv(one).reset()[1].seeds.tolist()
    with env(3, address) as again, env(3, address, seed=4) as stranger:
        OneAgentEnv(again).reset()
        assert OneAgentEnv(again).reset()[1].seeds.tolist() != OneAgentEnv(stranger).reset()[1].seeds.tolist()


def test_ended_rows_are_parked_without_autoreset(address: str) -> None:
    with env(4, address, num_workers=2) as made:
        made.autoreset = False
        OneAgentEnv(made).reset(np.arange(4))
        steps = roll(made, STEPS + 2)
        outcomes = np.array([step.outcomes for step in steps])
        assert ((outcomes != 0).sum(axis=0) == 1).all() and all(step.started is None for step in steps)
        assert not steps[-1].outcomes.any() and not steps[-1].rewards.any() and not len(steps[-1].ended)
        for name, values in steps[STEPS - 1].observation.streams.items():
            np.testing.assert_array_equal(values, steps[-1].observation.streams[name])
        OneAgentEnv(made).reset(np.arange(4))
        for one, other in zip(steps[:STEPS], roll(made, STEPS), strict=True):
            np.testing.assert_array_equal(one.rewards, other.rewards)


def test_a_snapshot_goes_on_bit_for_bit(address: str) -> None:
    with env(4, address, num_workers=2) as made:
        OneAgentEnv(made).reset()
        roll(made, 8)
        saved = made.snapshot()
        wanted = roll(made, 9, first=8)
        made.restore(saved)
        for one, other in zip(wanted, roll(made, 9, first=8), strict=True):
            same(one, other)
    with env(4, address) as resumed:  # other workers, in the place of those of a run that ended
        resumed.restore(saved)
        for one, other in zip(wanted, roll(resumed, 9, first=8), strict=True):
            same(one, other)
        OneAgentEnv(resumed).reset()
        roll(resumed, 2)
        branch = resumed.snapshot([1])
        resumed.restore(branch, [3])
        result = OneAgentEnv(resumed).step(np.full((4, 2), 0.25, np.float32))
        for values in result.observation.streams.values():
            np.testing.assert_array_equal(values[1], values[3])
        with pytest.raises(SpecMismatch, match="another task or count"):
            resumed.restore(branch)


def test_actions_are_clipped_and_nan_is_a_fault(address: str) -> None:
    with env(2, address) as made:
        _, starts = OneAgentEnv(made).reset()
        wild = np.array([[5, -5], [np.nan, 0]], np.float32)
        result = OneAgentEnv(made).step(wild)
        np.testing.assert_allclose(result.observation.streams["observation"][0], [0.1, -0.1], rtol=1e-6)
        assert result.outcomes.tolist() == [Outcome.RUNNING, Outcome.INFRASTRUCTURE_FAULT]
        assert result.reward_status.tolist() == [0, 2] and result.truncated.tolist() == [False, True]
        assert result.applied.tolist() == [[1, -1], [0, 0]] and made.faults == 1
        assert result.started is not None and result.started.seeds[0] != starts.seeds[1]
        assert result.observation.rows.episode.tolist() == [0, 1]


def test_a_users_mistakes_get_one_line(address: str) -> None:
    with env(2, address) as made:
        with pytest.raises(ConfigError, match="step before the first reset"):
            OneAgentEnv(made).step(np.zeros((2, 2), np.float32))
        OneAgentEnv(made).reset()
        with pytest.raises(SpecMismatch, match=r"actions of shape \(2, 3\)"):
            OneAgentEnv(made).step(np.zeros((2, 3), np.float32))
        with pytest.raises(ConfigError, match="seeds of shape"):
            OneAgentEnv(made).reset([1, 2, 3])
        with pytest.raises(ConfigError, match="integers from 0 to 9223372036854775807"):
            OneAgentEnv(made).reset(np.array([1, 2**63], np.uint64))
        with pytest.raises(ConfigError, match="no scripted expert"):
            OneAgentEnv(made).expert()
        with (
            pytest.raises(ConfigError, match=r"already run .* for this process"),
            env(1, address, options={"drift": 1}),
        ):
            pass
    for wrong, said in (
        ({"num_workers": 0}, "num_workers cannot be 0 .*from 1 to 1024"),
        ({"num_workers": "two"}, "num_workers cannot be 'two'"),
        ({"timeout_s": 0.0}, "timeout_s"),
        ({"env": ""}, "need a name"),
        ({"spawn": "/no/python"}, "no Python interpreter"),
    ):
        with pytest.raises(ConfigError, match=said), env(1, f"{address}-other", **wrong):
            pass
    with pytest.raises(UserError, match="mkdir -p /nonexistent/dir"), env(1, "ipc:///nonexistent/dir/x"):
        pass


def test_one_worker_serves_two_pools_one_after_the_other_and_ends_politely() -> None:
    with workers(1, TCP) as (process,):
        seen = []
        for _ in range(2):
            with env(2, TCP) as made:
                seen.append(OneAgentEnv(made).reset()[0].streams["desired_goal"])
        np.testing.assert_array_equal(*seen)
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
        assert f"{TINY} waits for a pool at {TCP}" in end(process)[0]


def test_a_worker_ends_without_a_pool(tmp_path: Path) -> None:
    process = start_worker(f"ipc://{tmp_path}/nobody", "--idle", "0.3")
    assert process.wait(60) == 0


def test_credentials_admit_known_workers(tmp_path: Path) -> None:
    create_credentials(tmp_path / "keys")
    there = "tcp://127.0.0.1:47632"
    with (
        workers(1, there, "--credentials", str(tmp_path / "keys")),
        env(1, there, credentials=str(tmp_path / "keys")) as made,
    ):
        OneAgentEnv(made).reset()


def test_spawned_workers_come_and_go_with_their_environments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", PATH)
    with env(4, None, spawn=sys.executable, num_workers=2) as made:
        OneAgentEnv(made).reset()
        started = [child.pid for child in made._pool.spawner._running]  # type: ignore[union-attr]
        assert len(started) == 2 and not roll(made, 3)[-1].outcomes.any()
        socket = Path(made._pool.address.removeprefix("ipc://"))
        assert socket.exists()
    assert not socket.parent.exists()
    for pid in started:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    with pytest.raises(ConfigError, match=r"the worker ended with status 2: .*did you mean Tiny-v0"):  # noqa: SIM117
        with env(1, None, spawn=sys.executable, env="gymnasium:tests.simulators.worker.tiny_gym:Tini-v0"):
            pass
