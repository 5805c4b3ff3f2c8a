"""Episodes played with each way to execute chunks."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from numpy.typing import ArrayLike, NDArray

from embodied.client import Ensembling, LocalClient, RealTime, RecedingHorizon
from embodied.client.execution import Strategy
from embodied.data import ActionChunk, AgentStep, EnvStep, Observation, Outcome, Resets, RewardStatus, Rows
from embodied.errors import ConfigError
from embodied.learning.batch import check_on_policy
from embodied.rollout.driver import Driver
from embodied.rollout.play import Played, by_policy, play, play_together
from embodied.serving.versioned_policy import VersionedPolicy
from embodied.spec import DEFAULT_AGENT, AgentSpec, EnvSpec, PolicySpec, Stream
from policies.mlp import MLPPolicy
from tests.rollout.pair import LENGTHS, Pair

B, K, STEPS, DT = 3, 4, 9, 0.1
PREFIX = (Stream("action_prefix", (K, 1)), Stream("prefix_length", (1,), "int32"))


class Line:
    """B points on a line; row b's episode ends after `STEPS - b` steps, and it is parked then."""

    spec = EnvSpec("line", {DEFAULT_AGENT: AgentSpec((Stream("x", (1,)),), (Stream("dx", (1,)),))}, 1 / DT, "", STEPS)
    num_envs, autoreset, seed, physics_s, faults = B, False, 0, 0.0, 0

    def reset(self, seeds: ArrayLike | None = None) -> tuple[dict[str, Observation], Resets]:
        self.rows, self.x, self.taken = Rows.of_envs(B), np.zeros((B, 1), np.float32), list[NDArray[np.float32]]()
        starts = Resets(np.arange(B, dtype=np.int32), np.asarray(seeds, np.int64), np.zeros((B, 0)))
        return {DEFAULT_AGENT: self._observe()}, starts

    def step(self, mapping: Mapping[str, NDArray[np.float32]]) -> EnvStep:
        actions = mapping[DEFAULT_AGENT]
        before = self.rows.step < STEPS - np.arange(B)
        self.taken.append(actions[:, 0])
        self.x += np.where(before[:, None], actions, 0)
        self.rows.step += before.astype(np.int32)
        over = before & (self.rows.step >= STEPS - np.arange(B))
        ended = np.flatnonzero(over).astype(np.int32)
        outcomes = np.where(over, Outcome.TIME_LIMIT, Outcome.RUNNING).astype(np.uint8)
        status = np.full(B, RewardStatus.SCORED, np.uint8)
        nothing, final = np.zeros(B, np.float32), {"x": self.x[ended]}
        agent = AgentStep(self._observe(), nothing, status, np.zeros(B, bool), over, outcomes, ended, final)
        return EnvStep({DEFAULT_AGENT: agent}, np.zeros((B, 0)), None)

    def _observe(self) -> Observation:
        return Observation(self.rows.take(slice(None)), {"x": self.x.copy()}, self.rows.step * DT)

    def expert(self) -> dict[str, NDArray[np.float32]]:
        return {DEFAULT_AGENT: np.zeros((B, 1), np.float32)}

    def snapshot(self, ids: ArrayLike | None = None) -> dict[str, NDArray[Any]]:
        return {}

    def restore(self, snapshot: dict[str, NDArray[Any]], ids: ArrayLike | None = None) -> None: ...

    def close(self) -> None: ...


class Counting:
    """Action k of a chunk decided at step s is 100 s + k."""

    def __init__(self, prefixed: bool = False) -> None:
        agent = AgentSpec((Stream("x", (1,)), *(PREFIX if prefixed else ())), (Stream("dx", (1,)),))
        self.spec = PolicySpec("counting", agent, K, 2)

    def act(self, observation: Observation, noise_keys: NDArray[np.int64], mode: str) -> ActionChunk:
        actions = (100.0 * observation.rows.step[:, None] + np.arange(K)).astype(np.float32)[:, :, None]
        count = len(actions)
        none = np.zeros(count, np.float32)
        return ActionChunk(observation.rows, actions, actions, none, np.zeros(count, np.int64), "counting")

    def tensors(self) -> dict[str, NDArray[Any]]:
        return {}

    def load(self, tensors: Any) -> None: ...


def played(strategy: Strategy | None, prefixed: bool = False) -> tuple[Played, NDArray[np.float32]]:
    policy, env = Counting(prefixed), Line()
    decide = by_policy(LocalClient(VersionedPolicy(policy)), policy.spec, 0)
    done = play(env, decide, np.arange(B), policy.spec, id="e", mode="train", strategy=strategy)
    return done, np.array(env.taken)


def test_every_way_executes_what_it_says() -> None:
    for strategy in (None, RecedingHorizon(2)):
        _, taken = played(strategy)
        assert taken[:, 0].tolist() == [100 * (t - t % 2) + t % 2 for t in range(STEPS)]
    _, taken = played(Ensembling(0.5))
    for t in range(STEPS):
        found = [100 * s + t - s for s in range(max(0, t - K + 1), t + 1)]
        weights = np.exp(-0.5 * np.arange(len(found)))
        assert taken[t, 0] == pytest.approx((weights * found).sum() / weights.sum())
    done, taken = played(RealTime(3), prefixed=True)
    assert taken[:, 0].tolist() == [100 * (t - t % 3) + t % 3 for t in range(STEPS)]
    assert done.lengths.tolist() == [9, 8, 7] and set(done.segment.observations) == {"x"}
    assert played(None, prefixed=True)[1].tolist() == played(None)[1].tolist()


def test_on_policy_losses_refuse_what_nobody_sampled() -> None:
    done, taken = played(Ensembling())
    np.testing.assert_array_equal(done.segment.actions[:, :, 0, 0], taken)
    with pytest.raises(Exception, match="ensembled and real-time chunks have none"):
        check_on_policy(done.segment)


def test_a_policy_without_prefixes_is_refused_before_the_first_action() -> None:
    with pytest.raises(ConfigError, match="takes no action prefix"):
        played(RealTime(2))


def test_two_policies_play_the_agents_of_the_same_episodes() -> None:
    def driver(env: Pair, agent: str) -> Driver:
        policy = MLPPolicy(agent, env.spec.agents[agent], hidden=(4,))
        for parameter in policy.network.actor.parameters():
            parameter.data.fill_(0.01 * len(agent))
        decide = by_policy(LocalClient(VersionedPolicy(policy)), policy.spec, 0)
        return Driver(env.spec, env.num_envs, policy.spec, decide, (agent,))

    def run(*agents: str) -> dict[str, Played]:
        env = Pair(B, autoreset=False)
        done = play_together(env, [driver(env, agent) for agent in agents], np.arange(B), id="e", mode="evaluation")
        return dict(zip(agents, done, strict=True))

    forward, backward = run("left", "right"), run("right", "left")
    for agent, outcome in (("left", Outcome.SUCCESS), ("right", Outcome.TIME_LIMIT)):
        one = forward[agent]
        assert one.segment.id == f"e-{agent}" and one.seeds.tolist() == list(range(B))
        assert one.lengths.tolist() == [LENGTHS[agent] + env % 3 for env in range(B)]
        assert one.outcomes.tolist() == [outcome] * B
        assert one.returns.tolist() == backward[agent].returns.tolist() and one.returns.any()
        np.testing.assert_array_equal(one.segment.actions, backward[agent].segment.actions)
