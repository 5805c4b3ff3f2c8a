"""The engine against workers of its protocol without vLLM: real processes that die, hang, or say what is wrong."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from embodied.errors import (
    ConfigError,
    DataError,
    DeadlineExceeded,
    EmbodiedError,
    InfrastructureError,
    MessageError,
    UserError,
    WeightsRefused,
)
from embodied.wire.limits import Limits
from policies.vllm.engine import EngineSettings, VLLMEngine, settings_of
from tests.policies.vllm.fake import FAULT_SEED, FAULT_WEIGHT

FAKE = str(Path(__file__).with_name("fake.py"))
PROMPTS = np.zeros((2, 3, 4), np.float32)


def weights(first: float = 1.0) -> dict[str, NDArray[Any]]:
    return {"w": np.array([first, 2.0, 3.0], np.float32)}


class Bench:
    """An engine, and the weights it should have."""

    def __init__(self) -> None:
        self.served = weights()
        self.engine: VLLMEngine | None = None

    def make(self, fault: str = "none", how: str = "", **settings: Any) -> VLLMEngine:
        command = [sys.executable, FAKE, *([how] if how else [])]
        config = {"vocab_size": 50, "max_position_embeddings": 8, "fault": fault}
        given = EngineSettings(**{"timeout_s": 30.0, "start_s": 60.0, **settings})
        self.engine = VLLMEngine(config, lambda: self.served, given, command)
        return self.engine


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()
    yield made
    if made.engine is not None:
        made.engine.close()


def ask(engine: VLLMEngine, seed: int = 5, mode: Any = "sample") -> list[int]:
    tokens, log_probs = engine.generate(PROMPTS, np.array([seed, 6]), 2, mode)
    assert (tokens.shape, tokens.dtype, log_probs.dtype) == ((2, 2), np.int64, np.float32)
    return tokens[:, 0].tolist()


def test_a_worker_starts_when_it_is_needed_with_the_weights_served(bench: Bench) -> None:
    engine = bench.make()
    assert engine.pid is None
    assert ask(engine) == [11, 12]
    assert ask(engine, mode="mean") == [6, 6]
    first = engine.pid
    engine.load(weights(10.0))
    assert ask(engine, mode="mean") == [15, 15]
    assert engine.pid == first
    assert engine.generate(PROMPTS[:0], np.zeros(0, np.int64), 2, "mean")[0].shape == (0, 2)
    engine.close()
    assert engine.pid is None
    with pytest.raises(ProcessLookupError):
        os.kill(first or 0, 0)


@pytest.mark.parametrize(
    ("fault", "kind", "says"),
    [
        ("die", InfrastructureError, r"the vLLM worker died of SIGKILL while answering act \(process \d+\): ask again"),
        ("exit", InfrastructureError, r"exit status 7 while answering act: out of memory \(process"),
        ("hang", DeadlineExceeded, r"the vLLM worker has not ended answering act in 1 s \(process"),
        ("raise", InfrastructureError, r"RuntimeError: no kernel \(vLLM worker\)"),
        ("wide", MessageError, r"array tokens is int64 \(2, 3\)"),
        ("unknown", DataError, r"tokens or log-probabilities that do not exist"),
    ],
)
def test_a_worker_that_fails_is_named_and_the_next_has_the_weights_served(
    bench: Bench, fault: str, kind: type[EmbodiedError], says: str
) -> None:
    engine = bench.make(fault)
    engine.load(weights(7.0))
    bench.served = weights(7.0)
    assert ask(engine) == [17, 18]
    first = engine.pid
    if fault == "hang":
        engine._settings = replace(engine._settings, timeout_s=1.0)
    with pytest.raises(kind) as caught:
        ask(engine, FAULT_SEED)
    assert re.search(says, caught.value.line()), caught.value.line()
    assert engine.pid is None
    engine._settings = replace(engine._settings, timeout_s=30.0)
    assert ask(engine) == [17, 18]
    assert engine.pid != first


def test_a_worker_killed_between_two_requests_is_replaced(bench: Bench) -> None:
    engine = bench.make()
    assert ask(engine) == [11, 12]
    os.kill(engine.pid or 0, signal.SIGKILL)
    limit = time.monotonic() + 10
    while engine.pid is not None and time.monotonic() < limit:
        time.sleep(0.01)
    assert ask(engine) == [11, 12]


@pytest.mark.parametrize(
    ("fault", "says"), [("half", "RuntimeError: half of it is loaded"), ("stale", "it answered by version 1, and 2")]
)
def test_a_load_that_fails_halfway_leaves_the_old_weights(bench: Bench, fault: str, says: str) -> None:
    engine = bench.make(fault)
    engine.load(bench.served)
    first = engine.pid
    with pytest.raises(EmbodiedError, match=says):
        engine.load(weights(FAULT_WEIGHT))
    assert ask(engine) == [11, 12]
    assert engine.pid != first
    engine.load(weights(2.0))
    assert ask(engine) == [12, 13]


def test_weights_of_another_decoder_are_refused_and_nothing_changes(bench: Bench) -> None:
    engine = bench.make()
    with pytest.raises(WeightsRefused, match="tensor v is unknown"):
        engine.load(weights() | {"v": np.zeros(1, np.float32)})
    assert engine.pid is None  # it never had any
    assert ask(engine) == [11, 12]
    first = engine.pid
    with pytest.raises(WeightsRefused, match=r"tensor w is float64\[3\], not float32\[3\]"):
        engine.load({"w": np.zeros(3)})
    with pytest.raises(WeightsRefused, match="tensor w is missing"):
        engine.load({})
    assert ask(engine) == [11, 12]
    assert engine.pid == first


@pytest.mark.parametrize(
    ("how", "kind", "says"),
    [
        ("mute", DeadlineExceeded, r"has not ended starting in 2 s"),
        ("other", DataError, r"its first word is ack, not status"),
        ("garbage", MessageError, r"an answer cannot be read: .* \(vLLM worker, process \d+\)"),
        ("turn", DataError, r"hello 1 was answered with hello 2"),
        ("kind", DataError, r"hello 1 was answered with ack 1"),
    ],
)
def test_a_worker_that_speaks_otherwise_is_ended(bench: Bench, how: str, kind: type[EmbodiedError], says: str) -> None:
    engine = bench.make(how=how, start_s=2.0 if how == "mute" else 60.0)
    with pytest.raises(kind) as caught:
        ask(engine)
    assert re.search(says, caught.value.line()), caught.value.line()
    assert engine.pid is None


def test_no_memory_is_taken_for_an_answer_above_its_bound(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("policies.vllm.engine.ANSWERS", Limits(frame_bytes=1024))
    engine = bench.make()
    assert ask(engine) == [11, 12]
    engine._settings = replace(engine._settings, timeout_s=1.0)
    with pytest.raises(DeadlineExceeded, match="has not ended answering act"):
        engine.generate(PROMPTS, np.array([5, 6]), 100, "mean")
    assert engine.pid is None


def test_what_vllm_cannot_run_is_the_users_to_mend(bench: Bench) -> None:
    engine = bench.make("cannot")
    with pytest.raises(UserError) as caught:
        ask(engine)
    assert caught.value.line() == (
        "vLLM cannot run this decoder: ValueError: heads of 32 numbers are too many (vLLM worker): "
        "change the policy's sizes, or the settings of engine=vllm"
    )


def test_a_worker_ends_with_its_parent_and_leaves_no_files(tmp_path: Path) -> None:
    command = [sys.executable, FAKE, "parent"]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    assert process.stdout is not None
    worker = json.loads(process.stdout.readline())
    process.kill()
    process.communicate(timeout=10)
    limit = time.monotonic() + 20
    while Path(f"/proc/{worker}").exists() and _state(worker) != "Z" and time.monotonic() < limit:
        time.sleep(0.05)
    assert not Path(f"/proc/{worker}").exists() or _state(worker) == "Z"
    assert not list(tmp_path.iterdir())


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "Z"


def test_without_vllm_one_line_says_how_to_get_it() -> None:
    with pytest.raises(UserError) as caught:
        EngineSettings(python="/nowhere/bin/python").command()
    assert caught.value.line() == (
        "vLLM is not installed: there is no /nowhere/bin/python (engine.python): make peer-vllm"
    )


@pytest.mark.parametrize(
    ("given", "says"),
    [({"threads": 0}, "threads cannot be 0"), ({"rows": 1.5}, "rows cannot be 1.5"),
     ({"rows": True}, "rows cannot be true"), ({"timeout_s": float("nan")}, "timeout_s cannot be nan"),
     ({"timeout_s": 1e9}, "a day at most"), ({"start_s": "x"}, "start_s cannot be 'x'"), ({"thread": 1}, "thread"),
     ({"python": 5}, "python cannot be 5"), ({"python": None}, "python cannot be null"),
     ({"python": ["a"]}, "python cannot be"), (["python"], "not an engine's settings"),
     (5, "not an engine's settings")],
)  # fmt: skip
def test_settings_are_checked(given: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=says) as caught:
        settings_of(given)
    assert "\n" not in caught.value.line()


def test_a_command_that_is_none() -> None:
    engine = VLLMEngine({"max_position_embeddings": 8}, dict, EngineSettings(), ["/nowhere/python"])
    with pytest.raises(InfrastructureError, match="the vLLM worker cannot be started"):
        engine.load({})
