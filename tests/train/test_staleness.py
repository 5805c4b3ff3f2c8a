"""Staleness counts updates along the lineage of versions, though numbers jump on resume and roll back."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from embodied.data import Rows, Segment, stack_rows
from embodied.monitor.timing import Stopwatch
from embodied.rollout.staleness import drop_stale, version_lags
from embodied.train.mailbox import Outbox
from embodied.train.messages import METRICS, PUBLISHER, SCORER, TRAINER, Collected, Credit, Published
from embodied.train.trainer import Trainer
from embodied.weights.manifest import Version
from embodied.weights.registry import Registry

SPEC: dict[str, Any] = {"name": "mlp"}


class Versions:
    """A registry of one-number versions, each with the parent that is named."""

    def __init__(self, folder: Path) -> None:
        self.registry = Registry(folder, keep=50)

    def add(self, value: float, parent: int | None = None) -> int:
        number = self.registry.reserve("mlp")
        label = self.registry.find("mlp", parent).label if parent is not None else ""
        self.registry.publish("mlp", number, {"w": np.full(1, value, np.float32)}, SPEC, label)
        return number

    def lag(self, older: int, newer: int) -> int | None:
        return self.registry.lag("mlp", older, newer)


def of_versions(*versions: int) -> Segment:
    """A trainable segment of one row whose steps were decided by these versions."""
    t = len(versions)
    whole, floats = np.zeros((t, 1), np.int32), np.zeros((t, 1), np.float32)
    flags, bytes_ = np.zeros((t, 1), bool), np.zeros((t, 1), np.uint8)
    return Segment(
        id="sim-0/0/1", policy="mlp", task="reach", rows=stack_rows([Rows.of_envs(1)] * t),
        observations={}, bootstrap={}, final_at=np.zeros((0, 2), np.int32), final={}, k=whole,
        actions=np.zeros((t, 1, 1, 2), np.float32), log_probs=np.zeros((t, 1, 1, 2), np.float32),
        executed=np.ones((t, 1, 1), bool), values=floats, versions=np.array(versions, np.int64).reshape(t, 1),
        applied=np.zeros((t, 1, 2)), rewards=floats, reward_status=bytes_, reward_version="1", terminated=flags,
        truncated=flags, outcomes=bytes_, source=bytes_, trainable=np.ones((t, 1), bool),
        start_at=np.zeros(0, np.int32), starts=None,
    )  # fmt: skip


def trained(segment: Segment, lag: Any, newest: int, max_lag: int) -> list[bool]:
    lags = version_lags(segment, lambda version: lag(version, newest))
    kept: list[bool] = drop_stale(segment, lags, max_lag).trainable[:, 0].tolist()
    return kept


def test_updates_are_counted_not_numbers_after_a_resume(tmp_path: Path) -> None:
    versions = Versions(tmp_path)
    first = versions.add(1.0)
    second = versions.add(2.0, first)
    third = versions.add(3.0, second)
    versions.registry.reserve("mlp", 16)  # left unused by the killed process
    resumed = versions.add(3.0, third)  # the checkpoint's weights, published again
    assert resumed > third + 10
    segment = of_versions(first, second, third, resumed)
    assert trained(segment, versions.lag, resumed, 0) == [False, False, True, True]
    assert trained(segment, versions.lag, resumed, 1) == [False, True, True, True]
    after = versions.add(4.0, resumed)
    assert trained(segment, versions.lag, after, 1) == [False, False, True, True]


def test_versions_that_were_rolled_back_never_train(tmp_path: Path) -> None:
    versions = Versions(tmp_path)
    first = versions.add(1.0)
    second = versions.add(2.0, first)
    third = versions.add(3.0, second)
    restored = versions.add(1.0, first)  # a rollback to the first
    after = versions.add(5.0, restored)
    segment = of_versions(first, second, third, restored, after)
    assert trained(segment, versions.lag, after, 100) == [True, False, False, True, True]
    assert trained(segment, versions.lag, after, 0) == [False, False, False, False, True]
    lags = version_lags(segment, lambda version: versions.lag(version, after))
    assert lags[:, 0].tolist() == [1.0, np.inf, np.inf, 1.0, 0.0]


def test_steps_without_a_decision_do_not_lag() -> None:
    assert version_lags(of_versions(-1, 3, -1), {3: 2}.get).ravel().tolist() == [0, 2, 0]


def test_carried_decisions_may_lag_one_update_more_where_the_loss_has_a_ratio() -> None:
    segment = of_versions(5, 5, 6, 6)
    segment.k[:, 0] = 2, 3, 0, 1  # the first two steps execute a decision taken before the segment

    def kept(updates: int, corrected: bool) -> list[bool]:
        lags = version_lags(segment, {5: updates, 6: 0}.get)
        trains: list[bool] = drop_stale(segment, lags, 0, corrected).trainable[:, 0].tolist()
        return trains

    assert kept(1, corrected=True) == [True, True, True, True]
    assert kept(1, corrected=False) == kept(2, corrected=True) == [False, False, True, True]
    segment.k[1] = 0
    assert kept(1, corrected=True) == [True, False, True, True]


def test_a_segment_that_is_fresh_is_not_copied() -> None:
    segment = of_versions(7, 7)
    assert drop_stale(segment, np.zeros((2, 1)), 0) is segment


class Counting:
    """A learner that notes what would train."""

    has_ratio = False

    def __init__(self) -> None:
        self.masks: list[list[bool]] = []

    def update(self, segments: list[Segment]) -> dict[str, float]:
        self.masks += [segment.trainable[:, 0].tolist() for segment in segments]
        return {}

    def tensors(self) -> dict[str, Any]:
        return {"w": np.zeros(1, np.float32)}

    def published(self, version: Version) -> None: ...

    def load_pretrained(self, tensors: Mapping[str, Any]) -> None: ...

    def state(self) -> dict[str, Any]:
        return {}

    def load(self, state: Mapping[str, Any]) -> None: ...


def test_the_trainer_waits_for_every_origin_and_drops_stale_steps(tmp_path: Path) -> None:
    versions, learner = Versions(tmp_path), Counting()
    first = versions.add(1.0)
    newest = versions.add(2.0, first)
    trainer = Trainer(learner, 0, Stopwatch(), ["sim-0", "sim-1"], 0, versions.lag, budget=np.inf)
    scorer, publisher = Outbox(SCORER), Outbox(PUBLISHER)

    def send(outbox: Outbox, body: Any) -> list[Any]:
        outbox.put(TRAINER, body)
        for message in outbox.due(0.0):
            trainer.inbox.offer(message)
        while trainer.tick(0.0):
            pass
        sent = trainer.outbox.due(0.0)
        for message in sent:
            trainer.outbox.acknowledge(message.id)
        return [(message.id.to, message.body) for message in sent]

    asked = send(publisher, Published(0, 0, (), False, versions.registry.find("mlp", newest), 4, 0.0))
    assert asked == [("sim-0", Credit(1)), ("sim-1", Credit(1))]
    stale, fresh = of_versions(first, newest), of_versions(newest, newest)
    assert send(scorer, Collected("sim-1", 1, fresh, 0)) == [] and not learner.masks
    sent = dict(send(scorer, Collected("sim-0", 1, stale, 3)))
    assert learner.masks == [[False, True], [True, True]]  # in the order of the origins
    assert sent[PUBLISHER].step == 1 and sent[PUBLISHER].env_steps == 4
    assert sent[METRICS].values["rollout/dropped_share"] == pytest.approx(1 / 4)
    assert sent[METRICS].values["rollout/version_lag_max"] == 1 and sent[METRICS].values["rollout/faults"] == 3
    assert not trainer.served
    assert partial(versions.lag, first)(newest) == 1
