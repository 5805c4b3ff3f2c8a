"""The whole loop under a clock of the test, over channels that drop, double, delay and reorder messages."""

import csv
import random
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from embodied.buffer.consumed import Consumed, read_consumed
from embodied.cli.compose import compose_config
from embodied.episode import Episode
from embodied.monitor.progress import Progress
from embodied.runs.settings import Settings, typed
from embodied.train.loop import Loop
from embodied.train.mailbox import Receipt, Stage, deliver
from embodied.train.parts import make_parts

UPDATES = 5
WORDS = [
    "task=reach", "policy.hidden=[8]", "rollout.num_envs=3", "rollout.steps=20", f"budget.env_steps={UPDATES * 60}",
    "evaluate.episodes=2", "evaluate.every=2", "evaluate.target=1.01", "checkpoint.every=2", "algo.epochs=1",
    "algo.minibatches=2", "episodes.keep=[all]", "env.num_threads=1", "runtime.threads=1", "seed=5",
]  # fmt: skip


class LossyChannels:
    """Channels between stages, with faults drawn from a seed; nothing is lost for good, as senders repeat.

    Attributes:
        faults: Counts of messages and acknowledgements by fault.
    """

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._flying: list[tuple[float, Any]] = []
        self.faults: Counter[str] = Counter()

    def __call__(self, stages: Mapping[str, Stage], now: float) -> None:
        for stage in stages.values():
            for sent in (*stage.outbox.due(now), *stage.inbox.receipts()):
                self._send(sent, now)
        arrived = [sent for at, sent in self._flying if at <= now]
        self._flying = [(at, sent) for at, sent in self._flying if at > now]
        sent_order = list(arrived)
        self._random.shuffle(arrived)
        self.faults["reordered"] += arrived != sent_order
        for sent in arrived:
            if isinstance(sent, Receipt):
                stages[sent.sender].outbox.acknowledge(sent)
            else:
                stages[sent.id.to].inbox.offer(sent)

    def _send(self, sent: Any, now: float) -> None:
        draw = self._random.random()
        if draw < 0.25:
            self.faults["dropped"] += 1
            return
        copies = 2 if draw < 0.5 else 1
        self.faults["doubled"] += copies - 1
        for _ in range(copies):
            delay = self._random.choice((0.0, 0.0, 1.0, 3.0, 7.0))
            self.faults["delayed"] += delay > 0
            self._flying.append((now + delay, sent))


class Clock:
    """Seconds that pass only while every stage is idle."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    def idle(self) -> None:
        self.now += 0.5
        assert self.now < 5000.0, "the loop is stuck"


class Result:
    """Products of a run of the loop: weights, rows, updates and stored episodes."""

    def __init__(self, folder: Path, channels: Any) -> None:
        folder.mkdir()
        clock = Clock()
        with Progress("lossy") as progress:
            parts = make_parts(typed(Settings, compose_config("train", WORDS)), folder, 0, progress)
            loop = Loop(parts, clock, clock.idle, channels)
            loop.publish()
            while not loop.finished:
                loop.update()
            loop.checkpoint()
            self.tensors = parts.trained.tensors()
            self.updates: list[Consumed] = read_consumed(folder / "episodes")
            stored = sorted(parts.store.iterate(), key=lambda episode: episode.id)
            self.episodes: list[Episode] = [episode for episode in stored if episode.mode == "train"]
            self.evaluated = sum(episode.mode == "evaluation" for episode in stored)
            self.versions = [v.number for v in parts.registry.versions(parts.spec.name)]
            loop.close()
        with (folder / "metrics.csv").open() as file:
            rows = list(csv.DictReader(file))
        self.rows = [{k: v for k, v in row.items() if not k.startswith(("wall/", "eval/"))} for row in rows]


@pytest.fixture(scope="module")
def faultless(tmp_path_factory: pytest.TempPathFactory) -> Result:
    return Result(tmp_path_factory.mktemp("faultless") / "run", deliver)


@pytest.mark.parametrize("seed", range(6))
def test_faults_of_channels_change_no_weight_row_or_episode(tmp_path: Path, faultless: Result, seed: int) -> None:
    channels = LossyChannels(seed)
    found = Result(tmp_path / "run", channels)
    assert all(channels.faults[kind] > 10 for kind in ("dropped", "doubled", "delayed", "reordered")), channels.faults
    assert found.tensors.keys() == faultless.tensors.keys()
    assert all(np.array_equal(array, faultless.tensors[name]) for name, array in found.tensors.items())
    assert found.rows == faultless.rows and len(found.rows) == UPDATES
    assert found.updates == faultless.updates and [u.update for u in found.updates] == list(range(1, UPDATES + 1))
    assert found.versions == faultless.versions
    assert [e.id for e in found.episodes] == [e.id for e in faultless.episodes] and found.episodes
    assert found.evaluated == faultless.evaluated == 6
    for ours, theirs in zip(found.episodes, faultless.episodes, strict=True):
        for name, track in ours.agents.items():
            assert np.array_equal(track.actions, theirs.agents[name].actions)
            assert np.array_equal(track.rewards, theirs.agents[name].rewards)
