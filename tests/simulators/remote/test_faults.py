"""Environments whose workers die, hang, lie, or run something else. Real processes and sockets."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import zmq

from embodied.data import Outcome, RewardStatus
from embodied.errors import EmbodiedError, InfrastructureError, SpecMismatch
from embodied.wire.message import Message, decode, encode
from simulators.one_agent import OneAgentEnv, OneAgentStep
from simulators.remote.env import RemoteEnv
from simulators.worker.suite import load_suite, next_seed
from tests.simulators.worker.processes import HERE, PATH, TINY, end, env, start_worker, workers
from tests.simulators.worker.tiny_gym import TROUBLE

FAULT = Outcome.INFRASTRUCTURE_FAULT


@pytest.fixture
def address(tmp_path: Path) -> str:
    return f"ipc://{tmp_path}/socket"


def act(made: RemoteEnv, trouble: int | None = None) -> OneAgentStep:
    """A step, in which one row may ask for trouble."""
    actions = np.full((made.num_envs, 2), 0.1, np.float32)
    if trouble is not None:
        actions[trouble, 0] = TROUBLE
    return OneAgentEnv(made).step(actions)


def faults(result: OneAgentStep) -> list[int]:
    """The rows of a step that were faults, which never count as rewards and never train."""
    rows = np.flatnonzero(result.outcomes == FAULT)
    assert not result.rewards[rows].any() and (result.reward_status[rows] == RewardStatus.FAILED).all()
    assert result.truncated[rows].all() and not result.terminated[rows].any()
    assert all(np.isfinite(values).all() for values in result.final.values())
    return rows.tolist()


def test_an_exception_in_a_worker_ends_one_episode(address: str) -> None:
    with workers(1, address, "--option", "trouble=raise"), env(3, address, options={"trouble": "raise"}) as made:
        OneAgentEnv(made).reset()
        result = act(made, trouble=1)
        assert faults(result) == [1] and made.faults == 1
        assert result.observation.rows.step.tolist() == [1, 0, 1]
        assert faults(act(made)) == []


def test_the_rows_of_a_killed_worker_go_on_in_its_successor(address: str) -> None:
    with workers(2, address) as processes, env(4, address, num_workers=2) as made:
        OneAgentEnv(made).reset()
        act(made)
        survivor = made._parts[0].peer
        dead = next(w.pid for w in made._pool._workers.values() if w.peer != survivor)
        os.kill(dead, signal.SIGKILL)
        successors = [start_worker(address)]
        try:
            result = act(made)
            assert faults(result) == [2, 3] and made.faults == 2
            assert result.observation.rows.episode.tolist() == [0, 0, 1, 1]
            assert result.started is not None and result.started.ids.tolist() == [2, 3]
            assert made._parts[0].peer == survivor
            following = act(made)
            assert not following.outcomes.any() and following.observation.rows.step.tolist() == [3, 3, 1, 1]
        finally:
            end(successors[0])
    assert dead in [process.pid for process in processes]


@pytest.mark.parametrize("asked", ["reset", "restore"])
def test_a_worker_killed_while_it_starts_episodes_is_replaced(address: str, asked: str) -> None:
    option = ("--option", "trouble=third")
    with workers(1, address, *option) as processes, env(2, address, options={"trouble": "third"}) as made:
        OneAgentEnv(made).reset([1, 2])
        act(made)
        saved = made.snapshot()
        wanted = act(made).observation.streams

        def replace() -> None:
            os.kill(processes[0].pid, signal.SIGKILL)  # which by now hangs in its third reset, or soon will
            processes.append(start_worker(address, *option))

        timer = threading.Timer(0.5, replace)
        timer.start()
        if asked == "reset":
            OneAgentEnv(made).reset([1, 2])
            act(made)
        else:
            made.restore(saved)
        timer.join()
        result = act(made)
        assert not faults(result) and made.faults == 0 and result.observation.rows.step.tolist() == [2, 2]
        for name, values in wanted.items():
            np.testing.assert_array_equal(result.observation.streams[name], values)


def test_a_worker_without_a_replacement_is_named(address: str) -> None:
    with workers(1, address) as (process,), env(2, address, timeout_s=2.0) as made:
        OneAgentEnv(made).reset()
        process.kill()
        with pytest.raises(InfrastructureError) as caught:
            act(made)
        line = caught.value.line()
        assert "1 of 1 workers did not come within 2 s" in line and f"worker {process.pid} on" in line
        assert f"embodied sim-worker --env {TINY} --connect {address}" in line


def test_in_an_evaluation_lost_rows_are_parked_until_the_next_one(address: str) -> None:
    with workers(2, address) as processes, env(4, address, num_workers=2) as made:
        made.autoreset = False
        OneAgentEnv(made).reset([1, 2, 3, 4])
        dead = next(w.pid for w in made._pool._workers.values() if w.peer == made._parts[1].peer)
        os.kill(dead, signal.SIGKILL)
        assert faults(act(made)) == [2, 3]
        assert not act(made).outcomes.any()
        processes.append(start_worker(address))
        OneAgentEnv(made).reset([1, 2, 3, 4])
        assert not act(made).outcomes.any() and made.faults == 2


def test_a_spawned_worker_that_dies_or_hangs_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", PATH)
    for trouble in ("die", "hang"):
        with env(2, None, spawn=sys.executable, options={"trouble": trouble}) as made:
            OneAgentEnv(made).reset()
            exchange = made._pool.exchange
            made._pool.exchange = lambda asks, _, ask=exchange: ask(asks, 1.0)  # type: ignore[method-assign]
            assert faults(act(made, trouble=0)) == [0, 1]
            assert not act(made).outcomes.any()


def test_a_silent_worker_meets_a_deadline(address: str) -> None:
    with workers(1, address) as (process,), env(2, address) as made:
        OneAgentEnv(made).reset()
        made._timeout_s = 1.0
        process.send_signal(signal.SIGSTOP)
        with pytest.raises(InfrastructureError, match=f"worker {process.pid} on .* is lost"):
            act(made)
        process.send_signal(signal.SIGCONT)
        made._timeout_s = 60.0
        OneAgentEnv(made).reset()  # it is heard again, and taken again
        assert not act(made).outcomes.any()


class Liar:
    """A stranger at the address of a pool, which sends any message."""

    def __init__(self, address: str) -> None:
        self.context = zmq.Context()
        self.socket = self.context.socket(zmq.DEALER)
        self.socket.linger = 0
        self.socket.connect(address)

    def say(self, *frames: bytes) -> None:
        self.socket.send_multipart(frames)

    def hello(self, **changes: object) -> None:
        suite = load_suite(TINY, {})
        body = {"spec": suite.spec.to_dict(), "env": TINY, "options": {}, "pixels": 0, "pid": 1, "host": "liar"}
        self.say(*encode(Message("heartbeat")))
        self.say(*encode(Message("hello", body=body | changes)))

    def asked(self, kind: str) -> Message:
        """The next message of a kind."""
        limit = time.monotonic() + 60
        while time.monotonic() < limit:
            if self.socket.poll(100):
                message = decode(self.socket.recv_multipart())
                if message.kind == kind:
                    return message
        raise AssertionError(f"no {kind} came")

    def close(self) -> None:
        self.context.destroy()


@pytest.fixture
def liar(address: str) -> Iterator[Liar]:
    made = Liar(address)
    yield made
    made.close()


def test_garbage_of_strangers_does_no_harm(address: str, liar: Liar, caplog: pytest.LogCaptureFixture) -> None:
    rng = np.random.default_rng(0)
    with workers(1, address), env(2, address) as made:
        OneAgentEnv(made).reset()
        good = encode(Message("step", 1, arrays={"rewards": np.zeros(2)}))
        for turn in range(60):
            spoiled = bytearray(b"".join(bytes(frame) for frame in good))
            spoiled[rng.integers(len(spoiled))] ^= 1 << rng.integers(8)
            liar.say(*([rng.bytes(20)] * (turn % 4)), bytes(spoiled))
            liar.say(*[bytes(frame) for frame in good])
            assert not faults(act(made))
        liar.hello(spec={"task": 3})
        liar.hello(spec=load_suite(TINY, {}).spec.to_dict() | {"episode_steps": -1})
        assert not faults(act(made))
    assert "sent what is no message" in caplog.text


@pytest.mark.parametrize("lie", ["bytes", "shape", "outcome", "kind", "nan", "reward", "double"])
def test_a_worker_that_answers_nonsense_is_named_and_replaced(
    address: str, liar: Liar, lie: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Its rows end as faults, and the environment goes on with another."""
    streams = {
        f"stream/robot/{name}": np.zeros((2, 2), np.float32)
        for name in ("observation", "achieved_goal", "desired_goal")
    }
    final = {name.replace("stream", "final"): values[:0] for name, values in streams.items()}

    def be_the_liar() -> None:
        liar.hello()
        asked = liar.asked("reset")
        liar.say(*encode(Message("reset", asked.id, arrays=streams)))
        asked = liar.asked("step")
        arrays = {
            "rewards": np.zeros((2, 1), np.float32),
            "outcomes": np.full((2, 1), 77 if lie == "outcome" else 0, np.uint8),
        }
        arrays |= streams | final
        if lie == "shape":
            arrays["rewards"] = np.zeros((3, 1), np.float32)
        if lie == "reward":
            arrays["rewards"] = np.array([[0.0], [np.inf]], np.float32)
        if lie == "double":
            arrays["rewards"] = np.array([[0.0], [1e300]])
        if lie == "nan":
            arrays["stream/robot/observation"] = np.full((2, 2), np.nan, np.float32)
        answer = Message("reset" if lie == "kind" else "step", asked.id, arrays=arrays)
        answer.body = {"physics_s": 0.1, "faults": []}
        liar.say(*([b"\xc1garbage"] if lie == "bytes" else encode(answer)))

    thread = threading.Thread(target=be_the_liar)
    thread.start()
    with env(2, address) as made:
        OneAgentEnv(made).reset()
        with workers(1, address):
            assert faults(act(made)) == [0, 1]
            thread.join(60)
            assert "rows 0 to 1 of tiny lose their worker" in caplog.text
            assert not act(made).outcomes.any()


def test_a_worker_that_runs_something_else_is_refused(address: str) -> None:
    for words, suite, said in (
        (
            [],
            "gymnasium:tests.simulators.worker.tiny_gym:Odd-v0",
            "it runs env 'gymnasium:tests.simulators.worker.tiny_gym:Odd-v0'",
        ),
        (["--option", "drift=true"], TINY, "it runs options {'drift': True}"),
        (["--pixels", "8"], TINY, "it runs pixels 8"),
    ):
        with workers(1, address, *words, env=suite), pytest.raises(SpecMismatch) as caught, env(1, address):
            pass
        assert said in caught.value.line()


def test_a_worker_with_another_spec_is_refused_and_ends_nothing(address: str, liar: Liar) -> None:
    with workers(1, address), env(1, address) as made:
        OneAgentEnv(made).reset()
        liar.hello(spec=load_suite(TINY, {}).spec.to_dict() | {"control_hz": 11.0})
        said: list[str] = []
        thread = threading.Thread(target=lambda: said.append(str(liar.asked("error").body["what"])))
        thread.start()
        while thread.is_alive():
            assert not faults(act(made))
        thread.join()
        assert said == ["its control_hz differs from that of the worker before"]


def test_too_few_workers_is_an_error(address: str) -> None:
    with (
        pytest.raises(InfrastructureError, match="1 of 1 workers did not come within 0 s"),
        env(1, address, timeout_s=0.2),
    ):
        pass


def test_an_environment_that_cannot_start_is_named(address: str) -> None:
    with workers(1, address, "--option", "trouble=reset"):
        with (
            env(1, address, options={"trouble": "reset"}, timeout_s=3.0) as made,
            pytest.raises(EmbodiedError) as caught,
        ):
            OneAgentEnv(made).reset()
        assert "environment 0 cannot be started" in caught.value.line() and "the reset is broken" in caught.value.line()


def test_a_seed_whose_reset_raises_is_replaced_told_and_counted(address: str, caplog: pytest.LogCaptureFixture) -> None:
    option = ("--option", "refused=[5]")
    with workers(1, address, *option), env(2, address, options={"refused": [5]}) as made:
        _, started = OneAgentEnv(made).reset([4, 5])
        assert started.seeds.tolist() == [4, next_seed(5)] and made.faults == 1
        assert "cannot be started with seed 5: ValueError: no layout for seed 5" in caplog.text
        made._next_seeds = lambda ids: np.full(len(ids), 5)  # type: ignore[method-assign]
        started = next(result.started for _ in range(9) if (result := act(made)).started is not None)
        assert set(started.seeds.tolist()) == {next_seed(5)} and made.faults == 1 + len(started.ids)
        saved = made.snapshot()
        wanted = act(made).observation.streams
        made.restore(saved)
        for name, values in act(made).observation.streams.items():
            np.testing.assert_array_equal(values, wanted[name])


def test_a_seed_whose_reset_hangs_is_replaced_and_the_worker_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", PATH)
    with env(3, None, spawn=sys.executable, options={"hanging": [5]}) as made:
        exchange = made._pool.exchange
        made._pool.exchange = lambda asks, _, ask=exchange: ask(asks, 1.0)  # type: ignore[method-assign]
        _, started = OneAgentEnv(made).reset([4, 5, 6])
        assert started.seeds.tolist() == [4, next_seed(5), 6] and made.faults == 1
        assert not act(made).outcomes.any()


def test_episodes_that_do_not_repeat_end_as_faults(address: str, caplog: pytest.LogCaptureFixture) -> None:
    with workers(1, address, "--option", "drift=true"), env(2, address, options={"drift": True}) as made:
        OneAgentEnv(made).reset()
        act(made)
        saved = made.snapshot()
        made.restore(saved)
        result = act(made)
        assert faults(result) == [0, 1] and made.faults == 2
        np.testing.assert_array_equal(result.final["desired_goal"], saved["last/robot/desired_goal"])
        assert "do not repeat the episode" in caplog.text and "not finite" not in caplog.text
        assert not act(made).outcomes.any()


def test_a_lost_connection_costs_nothing(address: str) -> None:
    """A question that went under is asked again, and done once."""
    with workers(1, address), env(2, address) as made:
        observation, _ = OneAgentEnv(made).reset()
        part = made._parts[0]
        send, dropped = made._pool._send, []

        def drop_first(peer: bytes, frames: list) -> bool:
            if not dropped and b"step" in bytes(frames[0]):
                dropped.append(peer)
                return True
            return send(peer, frames)

        made._pool._send = drop_first  # type: ignore[method-assign]
        result = act(made)
        assert dropped == [part.peer] and not result.outcomes.any()
        moved = result.observation.streams["observation"] - observation.streams["observation"]
        np.testing.assert_allclose(moved, 0.01, rtol=1e-5)


def test_an_address_in_use(address: str) -> None:
    with workers(1, address), env(1, address):
        code = f"from tests.simulators.worker.processes import env\nwith env(1, {address!r}): pass"
        done = subprocess.run(
            [sys.executable, "-c", code], cwd=HERE.parents[2], capture_output=True, text=True, timeout=60
        )
        assert "another server listens there" in done.stderr
