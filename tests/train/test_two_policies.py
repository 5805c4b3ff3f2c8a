"""The stages of one run train two policies, each of one agent of the same environments."""

from collections import Counter
from pathlib import Path
from typing import Any

from embodied.buffer.assembler import EpisodeAssembler
from embodied.buffer.store import EpisodeStore
from embodied.client import LocalClient
from embodied.learning.ppo import PPO, PPOConfig
from embodied.monitor.timing import Stopwatch
from embodied.rewards.stage import TaskReward
from embodied.rollout.collector import Assignment, Collector
from embodied.serving.versioned_policy import VersionedPolicy
from embodied.train.keeper import Keeper
from embodied.train.mailbox import Inbox, Outbox, Stage, deliver
from embodied.train.messages import EVALUATOR, METRICS, Learned, Published, Stored
from embodied.train.publisher import Publisher
from embodied.train.rollout import Rollout
from embodied.train.scorer import Scorer
from embodied.train.trainer import Trainer
from embodied.weights.registry import Registry
from policies.mlp import MLPPolicy
from tests.rollout.pair import Pair

AGENTS = ("left", "right")
UPDATES = 3


class Sink(Stage):
    """A stage that keeps what it is sent."""

    def __init__(self, name: str) -> None:
        self.name, self.inbox, self.outbox = name, Inbox(), Outbox(name)
        self.taken: list[Any] = []

    def tick(self, now: float) -> bool:
        if (message := self.inbox.take()) is None:
            return False
        self.taken.append(message.body)
        return True


def policy(agent: str) -> MLPPolicy:
    return MLPPolicy(agent, Pair(1).spec.agents[agent], hidden=(4,))


def run(folder: Path, trained: tuple[str, ...]) -> tuple[dict[str, Stage], Registry, EpisodeStore]:
    """Run until every trained policy was updated three times."""
    env, watch, registry = Pair(4), Stopwatch(), Registry(folder / "weights", keep=20)
    clients = {agent: LocalClient(VersionedPolicy(policy(agent))) for agent in AGENTS}
    assignments = [Assignment(clients[agent], policy(agent).spec, (agent,)) for agent in AGENTS]
    collector = Collector(env, assignments, 6, 0, 0, watch)
    store = EpisodeStore(folder / "episodes", ["all"])
    made: list[Stage] = [
        Rollout(collector, 0, trained=trained), Scorer(TaskReward("pair", "dense"), 0, watch, trained),
        Keeper(EpisodeAssembler(env.spec, 0), store, 0, watch), Sink(METRICS), Sink(EVALUATOR),
    ]  # fmt: skip
    trainers = []
    for agent in trained:
        learner = PPO(policy(agent), PPOConfig(epochs=1, minibatches=1))

        def lag(older: int, newer: int, agent: str = agent) -> int | None:
            return registry.lag(agent, older, newer)

        trainers.append(Trainer(learner, 0, watch, ["sim-0"], 0, lag, UPDATES * 24, policy=agent))
        made += [trainers[-1], Publisher(registry, clients[agent], policy(agent).spec, policy=agent)]
    stages = {stage.name: stage for stage in made}
    for trainer in trainers:
        trainer.present()
    for _ in range(1000):
        deliver(stages, 0.0)
        worked = [stage.tick(0.0) for stage in stages.values()]
        if not any(worked):
            break
    assert [trainer.step for trainer in trainers] == [UPDATES] * len(trained)
    return stages, registry, store


def test_each_policy_is_trained_on_its_own_segments(tmp_path: Path) -> None:
    stages, registry, store = run(tmp_path, AGENTS)
    metrics = stages[METRICS]
    assert isinstance(metrics, Sink)
    learned = [report for report in metrics.taken if isinstance(report, Learned)]
    assert all(report.values["rollout/dropped_share"] == 0 for report in learned)
    assert Counter(type(report) for report in metrics.taken) == {Learned: 6, Stored: 6, Published: 8}
    consumed = [report.segments for report in metrics.taken if isinstance(report, Published) and report.fresh]
    assert sorted(ids for (ids,) in consumed) == [f"sim-0/0/{count:06d}" for count in range(1, 7)]
    for agent in AGENTS:
        versions = registry.versions(agent)
        assert len(versions) == UPDATES + 1
        first, last = (registry.read(agent, version.label)[1] for version in (versions[0], versions[-1]))
        assert any((first[name] != last[name]).any() for name in first)
    store.seal()
    episodes = [store.read(id) for id in store.ids()]
    assert episodes
    assert all(track.policy == agent for episode in episodes for agent, track in episode.agents.items())


def test_a_policy_that_is_not_trained_acts_and_is_stored(tmp_path: Path) -> None:
    _, registry, store = run(tmp_path, ("right",))
    assert not registry.versions("left") and len(registry.versions("right")) == UPDATES + 1
    store.seal()
    assert store.ids() and all(set(store.read(id).agents) == set(AGENTS) for id in store.ids())
