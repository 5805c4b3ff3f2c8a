"""Environments of several agents: their own streams, actions and ends, and the parking of those that have ended."""

from typing import ClassVar

import numpy as np
import pytest

from embodied.data import Outcome, RewardStatus, Rule
from embodied.errors import SpecMismatch
from simulators.env import BatchEnv
from simulators.one_agent import OneAgentEnv
from simulators.randomise.ranges import Ranges
from simulators.render.cameras import Cameras, View
from simulators.replay import replay, state_hash
from tests.simulators.two_agents import AGENTS, TwoAgents, actions, make

COUNT, LIMIT = 12, 20


def arrays_of(step):
    """Every array of a step by name."""
    found = {"applied": step.applied, "hash": step.state_hash}
    for name, agent in step.agents.items():
        found |= {f"{name}/{key}": value for key, value in vars(agent).items() if isinstance(value, np.ndarray)}
        seen = agent.observation
        found |= {f"{name}/{key}": value for key, value in {**seen.streams, **seen.rows.arrays()}.items()}
        found[f"{name}/time"] = seen.time
    return found


def assert_equal(one, other):
    first, second = arrays_of(one), arrays_of(other)
    assert first.keys() == second.keys()
    for name, values in first.items():
        np.testing.assert_array_equal(values, second[name], err_msg=name)


def run(env, steps, first=0):
    return [env.step(actions(env, first + step)) for step in range(steps)]


def test_each_agent_has_its_own_streams_rows_and_actions():
    env = make(COUNT)
    seen, starts = env.reset()
    assert list(seen) == list(AGENTS) and starts.ids.tolist() == list(range(COUNT))
    step = env.step(actions(env, 0))
    for index, (name, spec) in enumerate(AGENTS.items()):
        given = step.agents[name].observation
        assert (given.rows.agent == index).all() and given.rows.env.tolist() == list(range(COUNT))
        for stream in spec.observations:
            values = given.streams[stream.name]
            assert values.shape == (COUNT, *stream.shape) and values.dtype == stream.dtype
            assert values.flags.owndata and values.flags.c_contiguous
        assert step.agents[name].active is None
    assert step.applied.shape == (COUNT, 3)
    with pytest.raises(SpecMismatch, match="2 agents"):
        OneAgentEnv(env)
    with pytest.raises(SpecMismatch, match="give a mapping of slider, crane"):
        env.step({"slider": actions(env, 0)["slider"]})
    with pytest.raises(SpecMismatch, match=r"agent crane.*\(12, 2\)"):
        env.step({name: np.zeros((COUNT, 1), np.float32) for name in AGENTS})


def test_an_ended_agent_is_parked_until_all_agents_of_its_environment_have_ended():
    env = make(COUNT)
    env.reset()
    outcomes = {name: np.zeros(COUNT, int) for name in AGENTS}
    last = {name: {} for name in AGENTS}
    parked_steps = resets = 0
    for t in range(60):
        before = {name: outcomes[name] != 0 for name in AGENTS}
        step = env.step(actions(env, t))
        restarted = np.zeros(COUNT, bool)
        if step.started is not None:
            restarted[step.started.ids] = True
            resets += len(step.started.ids)
        for name, agent in step.agents.items():
            active = np.ones(COUNT, bool) if agent.active is None else agent.active
            assert (agent.rewards[before[name]] == 0).all() and (agent.outcomes[before[name]] == 0).all()
            assert not (agent.terminated | agent.truncated)[before[name]].any()
            assert agent.ended.tolist() == np.flatnonzero(agent.outcomes).tolist()
            for at, row in enumerate(agent.ended):
                last[name][row] = {key: values[at] for key, values in agent.final.items()}
                outcomes[name][row] = agent.outcomes[row]
            for row in np.flatnonzero((outcomes[name] != 0) & ~restarted):
                assert not active[row]
                parked_steps += 1
                for key, values in last[name][row].items():
                    np.testing.assert_array_equal(agent.observation.streams[key][row], values)
            rows = agent.observation.rows
            assert active[restarted].all() and (rows.step[restarted] == 0).all()
        both = (outcomes["slider"] != 0) & (outcomes["crane"] != 0)
        np.testing.assert_array_equal(both, restarted)
        for name in AGENTS:
            outcomes[name][restarted] = 0
    assert parked_steps > 50 and resets > 10


def test_ends_differ_between_agents_and_their_last_observations_and_rewards_are_given():
    env = make(COUNT)
    env.reset()
    ends = {name: set() for name in AGENTS}
    for t in range(60):
        step = env.step(actions(env, t))
        for name, agent in step.agents.items():
            ends[name] |= set(agent.outcomes[agent.ended].tolist())
            assert (agent.reward_status[agent.ended] == RewardStatus.SCORED).all()
            for key in agent.final:
                assert len(agent.final[key]) == len(agent.ended)
        slider, crane = step.agents["slider"], step.agents["crane"]
        for at, row in enumerate(slider.ended):
            if slider.outcomes[row] == Outcome.SUCCESS:
                left = abs(slider.final["goal"][at] - slider.final["position"][at])
                assert left < 0.05 and slider.rewards[row] == pytest.approx(-left[0], abs=1e-5)
        for at, row in enumerate(crane.ended):
            if crane.outcomes[row] == Outcome.FAILURE:
                assert np.abs(crane.final["position"][at]).max() > 1.0
    assert ends["slider"] == {Outcome.SUCCESS, Outcome.TIME_LIMIT}
    assert ends["crane"] == {Outcome.FAILURE, Outcome.TIME_LIMIT}


def test_the_controls_of_a_parked_agent_are_held_and_its_actions_ignored():
    env, other = make(COUNT), make(COUNT)
    env.reset(np.arange(COUNT))
    other.reset(np.arange(COUNT))
    held = {}
    parked = np.zeros(COUNT, bool)
    for t in range(LIMIT - 1):
        acts = actions(env, t)
        one = env.step(acts)
        if parked.any():
            np.testing.assert_array_equal(one.applied[parked, 0], held["applied"][parked])
        acts["slider"] = np.where(parked[:, None], np.float32(np.nan), acts["slider"])
        assert_equal(one, other.step(acts))
        if one.started is not None:
            break
        slider = one.agents["slider"]
        parked = np.zeros(COUNT, bool) if slider.active is None else ~slider.active
        held["applied"] = one.applied[:, 0].copy()
    assert parked.any() and not env.faults


def test_a_fault_ends_all_acting_agents_of_its_environment():
    env = make(4)
    env.reset()
    for t in range(10):
        step = env.step(actions(env, t))
        if step.agents["slider"].active is not None:
            break
    parked = np.flatnonzero(~step.agents["slider"].active)[0]
    sound = np.flatnonzero(step.agents["slider"].active)[0]
    acts = actions(env, 10)
    acts["crane"][[parked, sound]] = np.nan
    step = env.step(acts)
    assert step.agents["crane"].outcomes[[parked, sound]].tolist() == [Outcome.INFRASTRUCTURE_FAULT] * 2
    assert step.agents["slider"].outcomes[sound] == Outcome.INFRASTRUCTURE_FAULT
    assert step.agents["slider"].outcomes[parked] == Outcome.RUNNING
    assert step.agents["slider"].reward_status[sound] == RewardStatus.FAILED
    assert env.faults == 2 and set(step.started.ids.tolist()) >= {parked, sound}
    assert all(np.isfinite(agent.final["position"]).all() for agent in step.agents.values())


def test_without_autoreset_environments_stay_where_all_agents_ended():
    env = make(COUNT, limit=8)
    env.autoreset = False
    env.reset(np.arange(COUNT))
    steps = run(env, 8)
    outcomes = {name: sum(step.agents[name].outcomes.astype(int) for step in steps) for name in AGENTS}
    assert all((outcomes[name] > 0).all() for name in AGENTS) and all(step.started is None for step in steps)
    state = env.batch.state.copy()
    after = env.step(actions(env, 8))
    assert np.array_equal(state, env.batch.state)
    for name, agent in after.agents.items():
        assert not agent.active.any() and not agent.outcomes.any() and not agent.rewards.any()
        for key, values in agent.observation.streams.items():
            np.testing.assert_array_equal(values, steps[-1].agents[name].observation.streams[key])


@pytest.mark.parametrize("randomise", [None, {"observation_latency": [0, 2], "action_latency": [0, 2]}])
def test_a_snapshot_continues_bit_for_bit_with_agents_parked(randomise):
    env = make(COUNT, randomise=Ranges.read(randomise))
    env.reset()
    run(env, 9)
    assert any(step.agents["slider"].active is not None for step in run(env, 1, 9))
    snapshot = env.snapshot()
    wanted = run(env, 40, 10)
    other = make(COUNT, randomise=Ranges.read(randomise))
    other.restore(snapshot)
    seen = other.observe()
    assert set(seen) == set(AGENTS)
    for one, again in zip(wanted, run(other, 40, 10), strict=True):
        assert_equal(one, again)


def test_sensor_noise_differs_between_agents_and_keeps_that_of_the_first():
    randomise = Ranges.read({"sensor_noise": {"position": 0.1}})
    clean, noisy = make(4), make(4, randomise=randomise)
    truth, seen = clean.reset(np.arange(4))[0], noisy.reset(np.arange(4))[0]
    errors = {name: (seen[name].streams["position"] - truth[name].streams["position"])[:, 0] for name in AGENTS}
    assert np.abs(errors["slider"]).min() > 0 and not np.allclose(errors["slider"], errors["crane"])
    np.testing.assert_array_equal(seen["crane"].streams["pixels"], truth["crane"].streams["pixels"])


def test_the_episode_replays_from_its_controls():
    env = make(3, limit=10)
    _, starts = env.reset()
    steps = run(env, 10)
    for row in range(3):
        applied = np.stack([step.applied[row] for step in steps])
        states = replay(TwoAgents().model, starts.state[row], applied, TwoAgents.substeps)
        np.testing.assert_array_equal(state_hash(states)[1:], [step.state_hash[row] for step in steps])


def test_expert_actions_are_given_by_agent():
    env = make(5)
    env.reset()
    given = env.expert()
    assert {name: values.shape for name, values in given.items()} == {"slider": (5, 1), "crane": (5, 2)}


def test_two_origins_give_together_the_rows_of_one():
    randomise = Ranges.read({"sensor_noise": 0.05, "observation_latency": [0, 2], "action_latency": [0, 1]})
    whole = make(COUNT, seed=5, randomise=randomise)
    parts = [make(COUNT // 2, seed=5, first=first, randomise=randomise) for first in (0, COUNT // 2)]
    halves = [slice(None, COUNT // 2), slice(COUNT // 2, None)]
    whole.reset()
    for part in parts:
        part.reset()
    for t in range(60):
        step = whole.step(actions(whole, t))
        theirs = [part.step(actions(part, t, part.first)) for part in parts]
        for half, part in zip(halves, theirs, strict=True):
            np.testing.assert_array_equal(step.applied[half], part.applied)
            np.testing.assert_array_equal(step.state_hash[half], part.state_hash)
            for name, agent in step.agents.items():
                own = part.agents[name]
                for key in ("rewards", "reward_status", "terminated", "truncated", "outcomes"):
                    np.testing.assert_array_equal(getattr(agent, key)[half], getattr(own, key))
                mine, other = agent.observation.take(half), own.observation
                for key, values in mine.streams.items():
                    np.testing.assert_array_equal(values, other.streams[key])
                for key, values in mine.rows.arrays().items():
                    np.testing.assert_array_equal(values, getattr(other.rows, key))
                np.testing.assert_array_equal(mine.time, other.time)
        for name in ("ids", "seeds", "state"):
            mine = getattr(step.started, name, np.zeros(0))
            other = [getattr(part.started, name) for part in theirs if part.started is not None]
            np.testing.assert_array_equal(mine, np.concatenate(other) if other else np.zeros(0))


def test_clipped_and_late_actions_are_told_with_their_rule():
    env = make(4)
    env.reset()
    acts = actions(env, 0)
    step = env.step(acts)
    assert all(agent.executed is None and agent.rule is None for agent in step.agents.values())
    acts["slider"][2] = 7.0
    step = env.step(acts)
    slider = step.agents["slider"]
    assert slider.rule.tolist() == [0, 0, Rule.ACTION_LIMIT, 0] and slider.executed[2] == 1.0
    np.testing.assert_array_equal(slider.executed[:2], acts["slider"][:2])
    assert step.agents["crane"].executed is None and step.agents["crane"].rule is None

    late = make(4, randomise=Ranges.read({"action_latency": [1, 1]}))
    late.reset()
    first, second = actions(late, 0), actions(late, 1)
    held = late.step(first).agents["slider"]
    assert held.rule.tolist() == [Rule.HOLD] * 4 and not held.executed.any()
    moved = late.step(second).agents["slider"]
    assert moved.rule is None
    np.testing.assert_array_equal(moved.executed, first["slider"])


def test_a_stream_that_comes_late_tells_its_own_capture_time():
    env = make(3, randomise=Ranges.read({"observation_latency": {"pixels": [2, 2]}}))
    plain = make(3)
    first = env.reset(np.arange(3))[0]
    plain.reset(np.arange(3))
    assert first["slider"].times == {} and first["crane"].times["pixels"].tolist() == [0.0] * 3
    kept = []
    for t in range(5):
        late, prompt = env.step(actions(env, t)), plain.step(actions(plain, t))
        kept.append(prompt.agents["crane"].observation.streams["pixels"])
        seen = late.agents["crane"].observation
        assert seen.time == pytest.approx(np.full(3, 0.05 * (t + 1)))
        assert seen.times["pixels"] == pytest.approx(np.full(3, 0.05 * max(t - 1, 0)))
        np.testing.assert_array_equal(seen.streams["position"], prompt.agents["crane"].observation.streams["position"])
        if t >= 2:
            np.testing.assert_array_equal(seen.streams["pixels"], kept[t - 2])


class WithCameras(TwoAgents):
    """The task whose slider senses one camera, and whose crane senses all."""

    cameras: ClassVar = {"slider": ("near",)}


def test_an_agent_senses_the_cameras_that_its_task_names():
    task = WithCameras()
    cameras = Cameras(task.model, [View(name, 16, 16, ("rgb",)) for name in ("above", "near")], "ray", 1)
    env = BatchEnv(task, 3, 1, cameras=cameras)
    pictures = {name: {"near_rgb"} if name == "slider" else {"above_rgb", "near_rgb"} for name in AGENTS}
    first, _ = env.reset(np.arange(3))
    seen = env.step(actions(env, 0)).agents
    for name, agent in AGENTS.items():
        own = {stream.name for stream in agent.observations}
        assert {stream.name for stream in env.spec.agents[name].observations} == own | pictures[name]
        assert first[name].streams.keys() == seen[name].observation.streams.keys() == own | pictures[name]
    near = [agent.observation.streams["near_rgb"] for agent in seen.values()]
    np.testing.assert_array_equal(*near)
    assert near[0] is not near[1] and near[0].std() > 0
    env.close()


def test_cameras_of_an_unknown_agent_are_refused():
    task = TwoAgents()
    task.cameras = {"slder": ("near",)}
    with pytest.raises(SpecMismatch, match="slder"):
        BatchEnv(task, 1, 1)
