"""Exact replay of stored episodes under a configuration, and the first step that differs."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from embodied.data import AgentStep, EnvStep, Observation, Outcome, Resets
from embodied.episode import Episode, Track
from embodied.errors import UserError
from embodied.runs.parts import make_env
from embodied.runs.settings import Settings
from embodied.spec import EnvSpec
from simulators.env import BatchEnv

TASK_REWARD = "embodied.rewards.stage.TaskReward"


class ReplayEnv(Protocol):
    """The part of an environment that replays an episode: one that starts from a given simulator state."""

    spec: EnvSpec

    def reset(
        self, seeds: ArrayLike | None = None, states: NDArray[np.float64] | None = None
    ) -> tuple[dict[str, Observation], Resets]:
        """Start an episode of `seeds` [1] from `states` [1, S], or from the start that the seed draws."""
        ...

    def step(self, actions: Mapping[str, NDArray[np.float32]]) -> EnvStep:
        """As `embodied.rollout.env.Env.step`; an ended episode is not followed by the next."""
        ...


@dataclass
class Comparison:
    """Result of a replay. Where several agents were compared, names of streams and differences begin with the agent.

    Attributes:
        steps: Steps compared, up to the first that differs.
        streams: Names of the streams compared.
        hashed: Whether the episode has checksums of states, so that states were compared to the bit.
        start: Differences of the drawn start; the episode was then replayed from the stored one.
        step: The first step that differs, or None.
        differs: Differences in that step, the largest first.
        seen: Step and difference of the first stream that differs, if only the state did in `step`.
        agents: Names of the agents compared.
    """

    steps: int
    streams: list[str]
    hashed: bool
    start: list[str] = field(default_factory=list)
    step: int | None = None
    differs: list[str] = field(default_factory=list)
    seen: tuple[int, str] | None = None
    agents: list[str] = field(default_factory=list)

    @property
    def identical(self) -> bool:
        return self.step is None and not self.start

    def lines(self) -> list[str]:
        """The result in words, one finding a line."""
        lines = [f"the start differs: {_listed(self.start)}; replayed from the stored one"] if self.start else []
        if self.step is None:
            exact = "" if self.hashed else " (the episode has no checksums of states: streams were compared)"
            agents = f" of {len(self.agents)} agents" if len(self.agents) > 1 else ""
            return [*lines, f"identical: {self.steps} steps, {len(self.streams)} streams{agents}{exact}"]
        lines.append(f"diverges at step {self.step}: {_listed(self.differs)}")
        if self.seen is not None:
            lines.append(f"first sensed at step {self.seen[0]}: {self.seen[1]}")
        return lines


def _listed(differences: list[str]) -> str:
    rest = [text.replace(" differs by ", " by ") for text in differences[1:3]]
    more = f" and {len(differences) - 3} more" if len(differences) > 3 else ""
    return ", ".join([differences[0], *rest]) + more


def replay_episode(settings: Settings, episode: Episode) -> Comparison:
    """Replay an episode from its stored start with its actions; randomisation follows from its seed.

    Raises:
        UserError: These settings' environments cannot take a stored state, or the episode is of another model.
        ConfigError: As `make_env`.
    """
    env = make_env(settings.task, settings.env, 1, settings.seed, autoreset=False)
    try:
        if not isinstance(env, BatchEnv) or not len(episode.initial_state):
            fix = "replay one of a task that runs here"
            raise UserError("this episode has no simulator state to start from", f"episode {episode.id}", fix)
        return compare(env, episode, compare_rewards=settings.reward.get("_target_") == TASK_REWARD)
    finally:
        env.close()


def compare(env: ReplayEnv, episode: Episode, compare_rewards: bool = True) -> Comparison:
    """Replay an episode on one environment and compare every track.

    Raises:
        UserError: The environment is of another model or has other agents or actions.
    """
    _check(env, episode)
    tracks = episode.agents
    seeds = np.array([episode.seed], np.int64)
    observations, starts = env.reset(seeds)
    start = _start_differences(episode, starts.drawn, starts.state[0])
    if not np.array_equal(starts.state[0], episode.initial_state):
        observations, _ = env.reset(seeds, states=episode.initial_state[None])
    parts = [_TrackComparison(env.spec, name, track, len(tracks) > 1) for name, track in tracks.items()]
    hashed = all(track.state_hash is not None for track in tracks.values())
    found = Comparison(0, [name for part in parts for name in part.shown], hashed, start, agents=list(tracks))
    found.start += [f"{text} at first" for part in parts for text in part.streams(observations[part.agent], 0)]
    for step in range(len(episode)):
        result = env.step({part.agent: part.action(step) for part in parts})
        running = [part for part in parts if step < len(part.track)]
        streams = [text for part in running for text in part.streams(result.agents[part.agent].observation, step + 1)]
        if found.step is not None:
            if streams:
                found.seen = step, streams[0]
                break
            continue
        rest = [text for part in running for text in part.rest(result, step, compare_rewards)]
        found.differs = list(dict.fromkeys(streams + rest))
        if found.differs:
            found.step = step
            if streams:
                break
        found.steps = step + (not found.differs)
    return found


def _check(env: ReplayEnv, episode: Episode) -> None:
    where = f"episode {episode.id}"
    if episode.agents.keys() != env.spec.agents.keys():
        what = f"the episode has the agents {', '.join(episode.agents)}, the task {', '.join(env.spec.agents)}"
        raise UserError(what, where, "replay it with the task that recorded it")
    if episode.initial_state.shape != (env.spec.state_size,):
        what = f"the episode has {len(episode.initial_state)} state numbers, the model {env.spec.state_size}"
        raise UserError(what, where, "replay it with the task and code that recorded it")
    for name, track in episode.agents.items():
        actions, size = track.actions.shape[2], env.spec.agents[name].action_dim
        if actions != size:
            what = f"the episode's actions have {actions} numbers, the task takes {size}"
            raise UserError(what, where, "replay it with the control that recorded it")


class _TrackComparison:
    """Comparison of one agent's track with what the environment gives now."""

    def __init__(self, spec: EnvSpec, agent: str, track: Track, several: bool) -> None:
        self.agent, self.track = agent, track
        self._prefix = f"{agent}: " if several else ""
        self._units = {stream.name: stream.unit for stream in spec.agents[agent].observations}
        self._names = [name for name in track.observations if name in self._units]
        self._requested = track.requested

    @property
    def shown(self) -> list[str]:
        """Names of the streams compared."""
        return [f"{self._prefix}{name}" for name in self._names]

    def action(self, step: int) -> NDArray[np.float32]:
        """[1, D] the action that was requested; zeros once the agent has ended."""
        return self._requested[step][None] if step < len(self.track) else np.zeros_like(self._requested[:1])

    def streams(self, observation: Observation, at: int) -> list[str]:
        """The streams that differ from entry `at` of the track, the largest difference first."""
        found = []
        for name in self._names:
            then, now = self.track.observations[name][at], observation.streams[name][0]
            if by := _difference(then, now, self._units[name]):
                found.append((_largest(then, now), f"{self._prefix}{name} {by}"))
        return [text for _, text in sorted(found, key=lambda item: -item[0])]

    def rest(self, result: EnvStep, step: int, compare_rewards: bool) -> list[str]:
        """Differences of a step besides those of streams. The state and the applied control are all agents'."""
        track, own = self.track, result.agents[self.agent]
        joint, found = [], []
        hashes = track.state_hash
        if hashes is not None and result.state_hash is not None and hashes[step] != result.state_hash[0]:
            joint.append("the state differs")
        if by := _difference(track.applied[step], result.applied[0]):
            joint.append(f"the applied control {by}")
        if by := self._executed(own, step):
            found.append(f"the executed action {by}")
        if compare_rewards and (by := _difference(track.rewards[step], own.rewards[0])):
            found.append(f"the reward {by}")
        ended = track.outcome if step == len(track) - 1 else Outcome.RUNNING
        if (now := Outcome(int(own.outcomes[0]))) != ended:
            found.append(f"the outcome is {now.name.lower()}, was {ended.name.lower()}")
        return joint + [f"{self._prefix}{text}" for text in found]

    def _executed(self, own: AgentStep, step: int) -> str:
        """Difference of the executed action, where both the track and the environment have one."""
        if self.track.action_executed is None or own.executed is None:
            return ""
        return _difference(self.track.action_executed[step], own.executed[0])


def _start_differences(episode: Episode, drawn: dict[str, NDArray[Any]], state: NDArray[np.float64]) -> list[str]:
    """Differences between the start that is drawn now and the stored one."""
    differences = []
    for name in sorted(drawn.keys() | episode.drawn.keys()):
        now, then = drawn.get(name), episode.drawn.get(name)
        if now is None or then is None:
            differences.append(f"{name} was {'not drawn' if then is None else 'drawn'}")
        elif by := _difference(np.asarray(then), np.asarray(now[0])):
            differences.append(f"{name} {by}")
    if not differences and (by := _difference(episode.initial_state, state)):
        differences.append(f"state {by}")
    return differences


def _difference(then: Any, now: Any, unit: str = "") -> str:
    """The difference of two arrays in words; empty if they are equal to the bit or both NaN."""
    then, now = np.asarray(then), np.asarray(now)
    if then.shape != now.shape:
        return f"has shape {now.shape}, had {then.shape}"
    if np.array_equal(then, now, equal_nan=then.dtype.kind == "f" and now.dtype.kind == "f"):
        return ""
    return f"differs by {_largest(then, now):.2g}{f' {unit}' if unit not in ('', '1') else ''}"


def _largest(then: NDArray[Any], now: NDArray[Any]) -> float:
    if then.shape != now.shape:
        return math.inf
    largest = np.nanmax(np.abs(np.asarray(then, np.float64) - np.asarray(now, np.float64)), initial=0.0)
    return float(largest)
