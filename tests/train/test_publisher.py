"""A learner that is held waits, serves what was rolled back to, and goes on as it is told."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from embodied.client import LocalClient
from embodied.data import ActionChunk, Observation
from embodied.errors import InfrastructureError, WeightsHeld
from embodied.serving.versioned_policy import VersionedPolicy
from embodied.spec import AgentSpec, PolicySpec, Stream
from embodied.train.mailbox import Outbox
from embodied.train.messages import KEEPER, PUBLISHER, TRAINER, Published, Update
from embodied.train.publisher import RETRY_S, HoldWait, Publisher, RestoreAsked
from embodied.weights.manifest import Version
from embodied.weights.pointers import Hold
from embodied.weights.registry import Registry

SPEC = PolicySpec("mlp", AgentSpec((Stream("x", (1,)),), (Stream("u", (1,)),)), chunk=1, execute=1)


class Plain:
    """A policy, and a learner, of one number."""

    spec = SPEC

    def __init__(self, value: float = 0.0) -> None:
        self.value = value
        self.version: Version | None = None

    def act(self, observation: Observation, noise_keys: Any, mode: str) -> ActionChunk:
        raise NotImplementedError

    def tensors(self) -> dict[str, np.ndarray]:
        return {"w": np.full(3, self.value, np.float32)}

    def load(self, tensors: Mapping[str, np.ndarray]) -> None:
        self.value = float(tensors["w"][0])

    def published(self, version: Version) -> None:
        self.version = version


class Sim:
    """A run's publisher under a clock of its own; between two attempts the next call of a script is made."""

    def __init__(self, folder: Path, limit_s: float = 3600.0) -> None:
        self.registry = Registry(folder, keep=20)
        self.policy, self.learner = Plain(), Plain()
        self.host = VersionedPolicy(self.policy)
        self.client = LocalClient(self.host)
        self.now, self.said = 0.0, list[str]()
        self.script: list[Callable[[], object]] = []
        self.updates = Outbox(TRAINER)
        self.publisher = Publisher(
            self.registry, self.client, SPEC, hold_wait=HoldWait("run=runs/a", limit_s, self.said.append)
        )

    def publish(self, value: float, restored: Hold | None = None, parent: int | None = None) -> int:
        """Number of the version of an update, once it is served."""
        self.learner.value = value
        self.updates.put(PUBLISHER, Update(0, 0, self.learner.tensors(), restored=restored, parent=parent))
        for message in self.updates.due(self.now):
            self.publisher.inbox.offer(message)
        while not (published := self.served()):
            if not self.publisher.tick(self.now):
                self.now += RETRY_S
                if self.script:
                    self.script.pop(0)()
        self.learner.published(published.version)
        return published.version.number

    def served(self) -> Published | None:
        """The report of a publication, of the copies for all stages the trainer's."""
        messages = self.publisher.outbox.due(self.now)
        for message in messages:
            self.publisher.outbox.acknowledge(message.id)
        assert {message.id.to for message in messages} >= {TRAINER, KEEPER} or not messages
        return next((message.body for message in messages if message.id.to == TRAINER), None)


def test_it_serves_what_was_rolled_back_to_until_told_to_go_on(tmp_path: Path) -> None:
    run = Sim(tmp_path)
    assert [run.publish(value) for value in (1.0, 2.0, 3.0)] == [1, 2, 3]
    assert run.learner.version == run.host.version
    run.publisher.pair(10, {10})
    run.registry.rollback("mlp", 2, by="anna", note="drops it")
    seen = []

    def look() -> None:
        seen.append((run.host.version.number, run.policy.value))

    run.script = [look, look, lambda: run.registry.rollback("mlp", 1), look, look, lambda: run.registry.resume("mlp")]
    assert run.publish(4.0) == 4
    assert seen == [(2, 2.0), (2, 2.0), (1, 1.0), (1, 1.0)]
    assert (run.host.version.number, run.policy.value, run.publisher.number) == (4, 4.0, 4)
    assert len(run.said) == 1
    assert "anna" in run.said[0] and "drops it" in run.said[0] and "\n" not in run.said[0]
    assert "`embodied weights resume run=runs/a`" in run.said[0] and run.publisher.waited_s == 6 * RETRY_S
    switches = [(line["from"][:2], line["version"][:2], line["why"]) for line in run.registry.audit()
                if line["event"] == "switch"]  # fmt: skip
    assert switches == [("3-", "2-", "rollback"), ("2-", "1-", "rollback")]
    assert run.publish(5.0) == 5 and len(run.said) == 1


def test_a_restore_is_raised_and_its_version_ends_the_hold(tmp_path: Path) -> None:
    run = Sim(tmp_path)
    run.publish(1.0)
    run.publisher.pair(10, {10})
    run.publish(2.0)
    run.registry.rollback("mlp")
    run.script = [lambda: run.registry.resume("mlp", restore=True)]
    with pytest.raises(RestoreAsked):
        run.publish(3.0)
    assert "restore=true` from the checkpoint of step 10" in run.said[0]
    held = run.registry.held("mlp")
    with pytest.raises(RestoreAsked):
        run.publish(3.0)
    assert run.learner.version is not None and run.learner.version.number == 2
    again = Sim(tmp_path)  # a run starts anew from the checkpoint
    number = again.publish(1.0, held)
    assert number > 2 and again.registry.held("mlp") is None
    assert again.registry.active("mlp") == again.learner.version == again.host.version


def test_it_gives_up_in_the_end_and_says_how_to_resume(tmp_path: Path) -> None:
    run = Sim(tmp_path, limit_s=5.0)
    run.publish(1.0)
    run.publish(2.0)
    run.registry.rollback("mlp")
    with pytest.raises(InfrastructureError, match=r"held publication for 5 s.*train resume=runs/a") as caught:
        run.publish(3.0)
    assert not isinstance(caught.value, WeightsHeld) and run.now == 5.0
    assert [v.number for v in run.registry.versions("mlp")] == [1, 2]


def test_an_interrupt_ends_the_wait(tmp_path: Path) -> None:
    run = Sim(tmp_path)
    run.publish(1.0)
    run.publish(2.0)
    run.registry.rollback("mlp")

    def interrupt() -> None:
        raise KeyboardInterrupt

    run.script = [interrupt]
    with pytest.raises(KeyboardInterrupt):
        run.publish(3.0)


def test_pairs_follow_the_checkpoints(tmp_path: Path) -> None:
    run = Sim(tmp_path)

    def pairs() -> dict[int, int]:
        return {version.number: step for version, step in run.registry.pointers("mlp").paired.items()}

    for step in (0, 10, 20):
        run.publish(step)
        run.publisher.pair(step, {0, 10, 20})
    assert pairs() == {1: 0, 2: 10, 3: 20}
    run.publish(30)
    run.publisher.pair(30, {10, 20, 30})
    assert pairs() == {2: 10, 3: 20, 4: 30}
    run.publish(20)  # the run went back to step 10, and made step 20 again
    run.publisher.pair(20, {10, 20})
    assert pairs() == {2: 10, 5: 20}
    (tmp_path / "active.json").write_text("{")
    run.publisher.pair(30, {20, 30})
    assert "active.json" in run.said[-1]


class FarServer:
    """The client of a server with a registry of its own; `held` as its registry says."""

    def __init__(self, folder: Path) -> None:
        self.registry, self.host = Registry(folder, keep=20), VersionedPolicy(Plain())
        self.pushed: list[int] = []

    def push(self, manifest: Any, tensors: Any, back: bool = False, signature: str = "") -> tuple[int, str]:
        self.registry.adopt(manifest, tensors, signature)
        self.pushed.append(manifest.number)
        active = self.registry.active("mlp")
        assert active is not None
        served: Version = self.host.switch(*self.registry.read("mlp", active.label), back=True)
        return served

    def version(self) -> tuple[int, str]:
        return self.host.version

    def tick(self) -> None: ...


def far(tmp_path: Path) -> tuple[Sim, FarServer]:
    run, server = Sim(tmp_path / "run"), FarServer(tmp_path / "server")
    run.publisher._client = server  # type: ignore[assignment]
    for value in (1.0, 2.0, 3.0):
        run.publish(value)
        run.publisher.pair(int(value), {1, 2, 3})
    server.registry.rollback("mlp", 2, by="ben")
    server.host.switch(*server.registry.read("mlp", 2), back=True)
    return run, server


def test_a_server_that_is_held_holds_the_run_until_it_takes_versions_again(tmp_path: Path) -> None:
    run, server = far(tmp_path)
    run.script = [lambda: None, lambda: None, lambda: server.registry.resume("mlp")]
    assert run.publish(4.0) == 4
    assert server.pushed == [1, 2, 3, 4] and server.host.version.number == 4
    assert run.registry.held("mlp") is None
    held = next(line for line in run.registry.audit() if line["event"] == "rollback")
    assert held["by"] == "the policy server" and held["version"].startswith("2-")
    assert run.publish(5.0) == 5 and run.registry.active("mlp") == run.registry.find("mlp", 5)
    assert len(run.said) == 1 and "version 2-" in run.said[0]


def test_a_run_held_by_its_server_can_go_back_to_a_checkpoint(tmp_path: Path) -> None:
    run, server = far(tmp_path)
    run.script = [lambda: run.registry.resume("mlp", restore=True)]
    with pytest.raises(RestoreAsked):
        run.publish(4.0)
    assert server.pushed == [1, 2, 3]
    assert run.registry.restorable("mlp")[0][1] == 2


def test_a_rollback_of_the_run_reaches_its_server(tmp_path: Path) -> None:
    run, server = far(tmp_path)
    server.registry.resume("mlp")
    run.publish(4.0)
    run.registry.rollback("mlp", 1)
    pushed: list[tuple[int, bool]] = []
    push = server.push
    server.push = lambda m, t, back=False, signature="": (pushed.append((m.number, back)), push(m, t, back))[1]  # type: ignore[method-assign]
    run.script = [lambda: None, lambda: run.registry.resume("mlp")]
    assert run.publish(5.0) == 5
    assert pushed == [(1, True), (5, False)]


def test_versions_name_the_version_they_were_trained_from(tmp_path: Path) -> None:
    run = Sim(tmp_path)
    for value in (1.0, 2.0, 3.0):
        run.publish(value)
    run.registry.rollback("mlp", 2)
    run.script = [lambda: run.registry.resume("mlp")]
    run.publish(4.0)  # goes on with what was learned since
    assert run.registry.lag("mlp", 1, 4) == 3 and run.registry.lag("mlp", 3, 4) == 1
    resumed = Sim(tmp_path)
    number = resumed.publish(2.0, parent=2)
    assert number > 5 and resumed.registry.lag("mlp", 2, number) == 0
    assert resumed.registry.lag("mlp", 4, number) is None and resumed.registry.lag("mlp", 1, resumed.publish(5.0)) == 2


def test_a_resumed_run_publishes_nothing_that_did_not_change(tmp_path: Path) -> None:
    run = Sim(tmp_path)
    for value in (1.0, 2.0):
        number = run.publish(value)
    resumed = Sim(tmp_path)
    assert resumed.publish(2.0, parent=number) == number
    assert resumed.client.version() == resumed.registry.active("mlp")
    assert [version.number for version in resumed.registry.versions("mlp")] == [1, 2]
    assert resumed.publish(3.0) > number
    assert Sim(tmp_path).publish(2.0, parent=number) > number + 1  # a newer version is there
