"""Whole episodes, each of a given seed exactly once: evaluation and demonstrations."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from embodied.client import PolicyClient
from embodied.client.execution import Strategy, no_prefix
from embodied.data import ActionChunk, AgentStep, Observation, Outcome, Segment, Source
from embodied.rollout.driver import Decide, Driver
from embodied.rollout.env import Env
from embodied.spec import PolicySpec


class Counts:
    """Episode outcome counts.

    Attributes:
        outcomes: [N] uint8 of `Outcome`.
    """

    outcomes: NDArray[np.uint8]

    @property
    def successes(self) -> int:
        return int((self.outcomes == Outcome.SUCCESS).sum())

    @property
    def counted(self) -> int:
        """Episodes that tell something of the policy: all but infrastructure faults."""
        return int((self.outcomes != Outcome.INFRASTRUCTURE_FAULT).sum())


@dataclass
class Played(Counts):
    """Episodes of N rows: the agents of one policy, agent after agent, the environments of each in order.

    Attributes:
        segment: All their steps, [T, N]; a row's steps after its end have `rows.step == -1` and belong to no episode.
        seeds: [N].
        outcomes: [N] uint8 of `Outcome`.
        lengths: [N] steps.
        returns: [N] sums of rewards.
    """

    segment: Segment
    seeds: NDArray[np.int64]
    outcomes: NDArray[np.uint8]
    lengths: NDArray[np.int32]
    returns: NDArray[np.float32]


def play(
    env: Env,
    decide: Decide,
    seeds: ArrayLike,
    policy: PolicySpec,
    *,
    id: str,
    mode: str,
    source: Source = Source.POLICY,
    agents: Sequence[str] | None = None,
    strategy: Strategy | None = None,
    record: Collection[str] | None = None,
) -> Played:
    """One episode of each seed on `env`, all of whose agents one policy drives.

    Args:
        env: The environments, one per seed, which must not auto-reset.
        decide: Answers observations.
        seeds: [B], one per environment.
        policy: Spec of the policy that decides.
        id, mode, source: Of the segment.
        agents, strategy, record: As of `Driver`. Evaluation records no pictures, for example.

    Raises:
        SpecMismatch: The environments lack an agent, or have several and none is named.
        ConfigError: The policy cannot do what the strategy needs.
    """
    driver = Driver(env.spec, env.num_envs, policy, decide, agents, strategy, record)
    return play_together(env, [driver], seeds, id=id, mode=mode, source=source)[0]


def play_together(
    env: Env, drivers: Sequence[Driver], seeds: ArrayLike, *, id: str, mode: str, source: Source = Source.POLICY
) -> list[Played]:
    """One episode of each seed on `env`, whose agents are driven by several policies; the episodes of each policy.

    Args:
        env, seeds, mode, source: As of `play`.
        drivers: One per policy; every agent is driven by one.
        id: Of the segment; the agents' names are appended where there are several.
    """
    seeds = np.asarray(seeds, np.int64)
    observations, starts = env.reset(seeds)
    runs = [Running(driver.count) for driver in drivers]
    for driver in drivers:
        driver.begin(env.spec.episode_steps, starts)
    for _ in range(env.spec.episode_steps):
        actions: dict[str, NDArray[np.float32]] = {}
        for driver, run in zip(drivers, runs, strict=True):
            driver.active = run.active
            actions |= driver.act(observations)
        result = env.step(actions)
        for driver, run in zip(drivers, runs, strict=True):
            run.count(driver.record(result))
        observations = {agent: step.observation for agent, step in result.agents.items()}
        if not any((run.outcomes == Outcome.RUNNING).any() for run in runs):
            break
    done = []
    for driver, run in zip(drivers, runs, strict=True):
        name = id if len(drivers) == 1 else f"{id}-{'+'.join(driver.agents)}"
        driver.active = run.active
        segment = driver.finish(observations, name, mode, source)
        done.append(Played(segment, np.tile(seeds, len(driver.agents)), run.outcomes, run.lengths, run.returns))
    return done


class Running:
    """Outcomes, lengths and returns of rows while they play their only episode."""

    def __init__(self, rows: int) -> None:
        self.outcomes = np.zeros(rows, np.uint8)
        self.lengths = np.zeros(rows, np.int32)
        self.returns = np.zeros(rows, np.float32)

    @property
    def active(self) -> NDArray[np.bool_] | None:
        """[R] rows whose episode has not ended; None for all."""
        live = self.outcomes == Outcome.RUNNING
        return None if live.all() else live

    def count(self, step: AgentStep) -> None:
        """Count a step of all rows."""
        live = self.outcomes == Outcome.RUNNING
        self.outcomes[step.ended] = step.outcomes[step.ended]
        self.lengths += live
        self.returns += np.where(live, step.rewards, 0).astype(np.float32)


def by_policy(client: PolicyClient, policy: PolicySpec, seed: int, episodes: NDArray[np.int64] | None = None) -> Decide:
    """Decisions of a policy server, the mode of its distribution.

    Args:
        client: Of the server.
        policy: Its spec.
        seed: Of the noise.
        episodes: [B] seeds of the environments' episodes. Noise is then keyed by them instead of by the environment and
            its count of episodes, so that it does not depend on the environment that plays an episode.
    """
    names = [stream.name for stream in policy.agent.observations]

    def decide(seen: Observation) -> ActionChunk:
        streams = no_prefix(policy, len(seen.rows)) | seen.streams
        asked = Observation(seen.rows, {name: streams[name] for name in names}, seen.time)
        keys = seen.rows.noise_keys(seed)
        if episodes is not None:
            # Keys are read as 32 bits each.
            own = episodes[seen.rows.env]
            keys[:, 1], keys[:, 3] = own & 0xFFFFFFFF, own >> 32
        return client.act(asked, keys, "mean")

    return decide


def by_expert(env: Env, policy: PolicySpec) -> Decide:
    """Decisions of the task's scripted expert, as chunks of one action."""
    agents = list(env.spec.agents)

    def decide(seen: Observation) -> ActionChunk:
        found, rows = env.expert(), seen.rows
        chosen = [found[agents[agent]][index] for agent, index in zip(rows.agent, rows.env - env.first, strict=True)]
        actions = np.array(chosen, np.float32).reshape(len(rows), 1, -1)
        none = np.full(actions.shape, np.nan, np.float32)
        return ActionChunk(rows, actions, none, none[:, 0, 0], np.zeros(len(rows), np.int64), policy.name)

    return decide
