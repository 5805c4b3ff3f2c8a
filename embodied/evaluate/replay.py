"""A stored episode lived again under its run's configuration, or a changed one: where does it first differ?"""

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embodied.data import Episode, Observation, Outcome, Track
from embodied.errors import UserError
from embodied.runs.parts import make_env
from embodied.train.settings import Settings
from simulators.env import BatchEnv
from simulators.one_agent import OneAgentEnv, OneAgentStep

TASK_REWARD = "embodied.rewards.stage.TaskReward"


@dataclass
class Comparison:
    """What became of an episode.

    Attributes:
        steps: Steps compared, up to the first that differs.
        streams: Names of the streams compared.
        hashed: Whether the episode has checksums of states, so that states were compared to the bit.
        start: What of the drawn start differs; the episode was then replayed from the stored one.
        step: The first step that differs, or None.
        differs: What differs in that step, what differs most first.
        seen: Where the first stream differs, if only the state did in `step`: step and what.
    """

    steps: int
    streams: list[str]
    hashed: bool
    start: list[str] = field(default_factory=list)
    step: int | None = None
    differs: list[str] = field(default_factory=list)
    seen: tuple[int, str] | None = None

    @property
    def identical(self) -> bool:
        return self.step is None and not self.start

    def lines(self) -> list[str]:
        """What to tell a user."""
        lines = [f"the start differs: {_listed(self.start)}; replayed from the stored one"] if self.start else []
        if self.step is None:
            exact = "" if self.hashed else " (the episode has no checksums of states: streams were compared)"
            return [*lines, f"identical: {self.steps} steps, {len(self.streams)} streams{exact}"]
        lines.append(f"diverges at step {self.step}: {_listed(self.differs)}")
        if self.seen is not None:
            lines.append(f"first sensed at step {self.seen[0]}: {self.seen[1]}")
        return lines


def _listed(differences: list[str]) -> str:
    rest = [text.replace(" differs by ", " by ") for text in differences[1:3]]
    more = f" and {len(differences) - 3} more" if len(differences) > 3 else ""
    return ", ".join([differences[0], *rest]) + more


def replay_episode(settings: Settings, episode: Episode) -> Comparison:
    """Replay an episode from its stored start with its actions; what is randomised follows from its seed.

    Raises:
        UserError: These settings' environments cannot take a stored state, or the episode is of another model.
        ConfigError: As `make_env`.
    """
    env = make_env(settings.task, settings.env, 1, settings.seed, autoreset=False)
    try:
        agent = env.spec.only_agent
        if not isinstance(env, BatchEnv) or agent not in episode.agents or not len(episode.initial_state):
            fix = "replay one of a task that runs here"
            raise UserError("this episode has no simulator state to start from", f"episode {episode.id}", fix)
        if episode.initial_state.shape != (env.spec.state_size,):
            what = f"the episode has {len(episode.initial_state)} state numbers, the model {env.spec.state_size}"
            raise UserError(what, f"episode {episode.id}", "replay it with the task and code that recorded it")
        actions = episode.agents[agent].actions.shape[2]
        if actions != len(env.action_limit):
            what = f"the episode's actions have {actions} numbers, the task takes {len(env.action_limit)}"
            raise UserError(what, f"episode {episode.id}", "replay it with the control that recorded it")
        return _compare(env, episode, compare_rewards=settings.reward.get("_target_") == TASK_REWARD)
    finally:
        env.close()


def _compare(env: BatchEnv, episode: Episode, compare_rewards: bool) -> Comparison:
    agent = env.spec.only_agent
    one, track = OneAgentEnv(env), episode.agents[agent]
    seeds = np.array([episode.seed], np.int64)
    observation, starts = one.reset(seeds)
    start = _start_differences(episode, starts.drawn, starts.state[0])
    if not np.array_equal(starts.state[0], episode.initial_state):
        observation, _ = one.reset(seeds, states=episode.initial_state[None])
    units = {stream.name: stream.unit for stream in env.spec.agents[agent].observations}
    common = [name for name in track.observations if name in units]
    found = Comparison(0, common, track.state_hash is not None, start)
    first = _streams(track, observation, 0, common, units)
    if first:
        found.start += [f"{what} at first" for what in first]
    for step in range(len(track)):
        action = track.actions[track.decision[step], track.k[step]]
        result = one.step(action[None])
        streams = _streams(track, result.observation, step + 1, common, units)
        if found.step is not None:
            if streams:
                found.seen = step, streams[0]
                break
            continue
        ended = episode.outcome if step == len(track) - 1 else Outcome.RUNNING
        found.differs = streams + _rest(track, result, step, ended, compare_rewards)
        if found.differs:
            found.step = step
            if streams:
                break
        found.steps = step + (not found.differs)
    return found


def _start_differences(episode: Episode, drawn: dict[str, NDArray[Any]], state: NDArray[np.float64]) -> list[str]:
    """What of a start that was drawn now is not as it was stored."""
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


def _streams(track: Track, observation: Observation, at: int, names: list[str], units: dict[str, str]) -> list[str]:
    """The streams that differ from entry `at` of a track, what differs most first."""
    found = []
    for name in names:
        then, now = track.observations[name][at], observation.streams[name][0]
        if by := _difference(then, now, units[name]):
            found.append((_largest(then, now), f"{name} {by}"))
    return [text for _, text in sorted(found, key=lambda item: -item[0])]


def _rest(track: Track, result: OneAgentStep, step: int, ended: Outcome, compare_rewards: bool) -> list[str]:
    """What else than streams differs in a step."""
    found = []
    if track.state_hash is not None and result.state_hash is not None and track.state_hash[step] != result.state_hash:
        found.append("the state differs")
    if by := _difference(track.applied[step], result.applied[0]):
        found.append(f"the applied control {by}")
    if compare_rewards and (by := _difference(track.rewards[step], result.rewards[0])):
        found.append(f"the reward {by}")
    if (now := Outcome(int(result.outcomes[0]))) != ended:
        found.append(f"the outcome is {now.name.lower()}, was {ended.name.lower()}")
    return found


def _difference(then: Any, now: Any, unit: str = "") -> str:
    """How two arrays differ, in words; empty if they are equal to the bit or both NaN."""
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
