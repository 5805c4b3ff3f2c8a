"""Whole episodes, each of a given seed exactly once: evaluation and demonstrations."""

from collections.abc import Callable, Collection
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from embodied.client import ChunkCursor, Executor, PolicyClient
from embodied.client.execution import Strategy, no_prefix
from embodied.data import ActionChunk, Observation, Outcome, Segment, Source
from embodied.rollout.env import Env
from embodied.rollout.segment_recorder import SegmentRecorder
from embodied.spec import PolicySpec

Decide = Callable[[Observation], ActionChunk]


class Counts:
    """What outcomes come to.

    Attributes:
        outcomes: [N] uint8 of `Outcome`.
    """

    outcomes: NDArray[np.uint8]

    @property
    def successes(self) -> int:
        return int((self.outcomes == Outcome.SUCCESS).sum())

    @property
    def counted(self) -> int:
        """Episodes that say something of the policy: all but infrastructure faults."""
        return int((self.outcomes != Outcome.INFRASTRUCTURE_FAULT).sum())


@dataclass
class Played(Counts):
    """N episodes.

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
    agent: str = "robot",
    strategy: Strategy | None = None,
    record: Collection[str] | None = None,
) -> Played:
    """One episode of each seed on `env`, whose `num_envs` is the number of seeds and which must not auto-reset.

    Args:
        env: Plays.
        decide: Answers observations.
        seeds: One per env.
        policy: Spec of what decides.
        id, mode, source, agent: Of the segment.
        strategy: How chunks are executed; None for the policy's own `execute`. With one, the segment holds what was
            executed as chunks of one action without log-probabilities.
        record: Names of the streams that the segment holds, such as none of the pictures; None for all.

    Raises:
        ConfigError: The policy cannot do what the strategy needs.
    """
    seeds = np.asarray(seeds, np.int64)
    count = env.num_envs
    recorder = SegmentRecorder(
        env.spec.episode_steps, count, policy.chunk, policy.agent.action_dim, env.spec.control_size
    )
    executor = Executor(count, policy, strategy) if strategy is not None else None
    cursor = ChunkCursor(count, policy.chunk, policy.execute, policy.agent.action_dim)
    outcomes = np.zeros(count, np.uint8)
    lengths = np.zeros(count, np.int32)
    returns = np.zeros(count, np.float32)
    observations, starts = env.reset(seeds)
    observation = observations[agent]
    recorder.start(starts)
    for _ in range(env.spec.episode_steps):
        live = outcomes == Outcome.RUNNING
        if not live.any():
            break
        if executor is not None:
            decided = _execute(executor, observation, decide)
            recorder.decide(np.arange(count), decided)
            actions, k = decided.actions[:, 0], np.zeros(count, np.int32)
        else:
            due = np.flatnonzero(cursor.due(observation.rows))
            if len(due):
                chunk = decide(observation if len(due) == count else observation.take(due))
                recorder.decide(due, chunk)
                cursor.accept(due, chunk)
            actions, k = cursor.next()
        result = env.step({agent: actions})
        observation.rows.step = np.where(live, observation.rows.step, -1).astype(np.int32)
        recorder.step(_only(observation, record), k, result, agent)
        own = result.agents[agent]
        outcomes[own.ended] = own.outcomes[own.ended]
        lengths += live
        returns += np.where(live, own.rewards, 0).astype(np.float32)
        observation = own.observation
    segment = recorder.finish(
        _only(observation, record),
        id=id,
        policy=policy.name if source is Source.POLICY else source.name.lower(),
        agent=agent,
        task=env.spec.task,
        mode=mode,
        source=source,
    )
    return Played(segment, seeds, outcomes, lengths, returns)


def _only(observation: Observation, names: Collection[str] | None) -> Observation:
    if names is None:
        return observation
    streams = {name: values for name, values in observation.streams.items() if name in names}
    return Observation(observation.rows, streams, observation.time)


def _execute(executor: Executor, observation: Observation, decide: Decide) -> ActionChunk:
    """One step of all rows, of chunks decided without delay."""
    rows, time = observation.rows, observation.time
    due = np.flatnonzero(executor.due(rows, time))
    if len(due):
        asked = observation.take(due)
        asked.streams |= executor.ask(due, rows, time)
        executor.accept(due, decide(asked), asked.time)
    return executor.next(rows, time).as_chunk(rows, executor.policy.name)


def by_policy(client: PolicyClient, policy: PolicySpec, seed: int, episodes: NDArray[np.int64] | None = None) -> Decide:
    """Decisions of a policy server, the mode of its distribution.

    Args:
        client: Of the server.
        policy: Its spec.
        seed: Of the noise.
        episodes: [B] seeds of the envs' episodes. Noise is then keyed by them instead of by the env and how many
            episodes it had, so that it does not depend on which env plays an episode.
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

    def decide(seen: Observation) -> ActionChunk:
        actions = env.expert()[env.spec.only_agent][:, None]
        none = np.full(actions.shape, np.nan, np.float32)
        count = len(actions)
        return ActionChunk(seen.rows, actions, none, none[:, 0, 0], np.zeros(count, np.int64), policy.name)

    return decide
