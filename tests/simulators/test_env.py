import dataclasses

import mujoco
import numpy as np
import pytest

from embodied.data import Outcome, RewardStatus
from embodied.errors import ConfigError, InfrastructureError, SpecMismatch
from simulators.env import BatchEnv
from simulators.make import make_env, make_task
from simulators.one_agent import OneAgentEnv

TASKS = ("reach", "lift_cube")


def noisy(env, rng, share=0.5):
    noise = rng.normal(0, share, (env.num_envs, len(env.action_limit))) * env.action_limit
    return OneAgentEnv(env).expert() + noise.astype(np.float32)


@pytest.mark.parametrize("name", TASKS)
def test_streams_are_owned_and_as_specified(name):
    env = make_env(name, 4)
    observation, starts = OneAgentEnv(env).reset()
    result = OneAgentEnv(env).step(OneAgentEnv(env).expert())
    agent = env.spec.agents["robot"]
    assert agent.action_dim == len(env.action_limit)
    assert starts.state.shape == (4, env.spec.state_size) and starts.seeds.dtype == np.int64
    assert result.applied.shape == (4, env.spec.control_size) and result.applied.dtype == np.float64
    for given in (observation, result.observation):
        assert list(given.streams) == [stream.name for stream in agent.observations]
        for stream in agent.observations:
            values = given.streams[stream.name]
            assert values.shape == (4, *stream.shape) and values.dtype == stream.dtype
            assert values.flags.c_contiguous and values.flags.owndata
            assert np.isfinite(values).all()
    np.testing.assert_allclose(result.observation.time, 1 / env.spec.control_hz)
    assert (result.observation.rows.step == 1).all() and (result.observation.rows.episode == 0).all()


@pytest.mark.parametrize("name", TASKS)
def test_observations_are_not_a_substep_stale(name):
    env, rng = make_env(name, 3, seed=2), np.random.default_rng(0)
    OneAgentEnv(env).reset()
    model, data = env.task.model, mujoco.MjData(env.task.model)
    for _ in range(25):
        result = OneAgentEnv(env).step(noisy(env, rng))
        for row in range(3):
            mujoco.mj_setState(model, data, env.batch.state[row], mujoco.mjtState.mjSTATE_INTEGRATION)
            mujoco.mj_forward(model, data)
            fresh = {field: getattr(data, field)[None].copy() for field in env.task.fields}
            memory = env.snapshot([row])["memory"]
            for stream, values in env.task.observe(fresh, memory).items():
                assert np.array_equal(values[0], result.observation.streams[stream][row]), stream


def test_an_episodes_seed_alone_draws_its_start():
    small, large = make_env("lift_cube", 2, seed=1), make_env("lift_cube", 5, seed=9)
    first, starts = OneAgentEnv(small).reset([11, 12])
    second, others = OneAgentEnv(large).reset([0, 12, 3, 11, 4])
    assert starts.seeds.tolist() == [11, 12]
    assert np.array_equal(starts.state[[1, 0]], others.state[[1, 3]])
    assert np.array_equal(first.streams["cube_pos"][0], second.streams["cube_pos"][3])
    assert not np.array_equal(others.state[0], others.state[2])
    assert np.array_equal(starts.drawn["cube_yaw"][1], others.drawn["cube_yaw"][1])


def test_unseeded_episodes_follow_from_seed_env_and_episode():
    seeds = [make_env("reach", 3, seed=seed).reset()[1].seeds for seed in (5, 5, 6)]
    assert np.array_equal(seeds[0], seeds[1]) and not np.array_equal(seeds[0], seeds[2])
    env = make_env("reach", 3, seed=5)
    OneAgentEnv(env).reset()
    assert not np.array_equal(OneAgentEnv(env).reset()[1].seeds, seeds[0])


def test_an_ended_episode_is_followed_by_the_next_and_its_last_observation_kept():
    env = make_env("reach", 6, seed=3)
    OneAgentEnv(env).reset()
    ended = 0
    for _ in range(40):
        result = OneAgentEnv(env).step(OneAgentEnv(env).expert())
        assert (result.started is None) == (len(result.ended) == 0)
        for at, row in enumerate(result.ended):
            ended += 1
            assert result.outcomes[row] == Outcome.SUCCESS and result.terminated[row] and not result.truncated[row]
            assert np.linalg.norm(result.final["ee_to_target"][at]) < 0.02 and result.final["held"][at] == 1
            assert result.observation.rows.step[row] == 0 and result.observation.streams["held"][row] == 0
            assert np.linalg.norm(result.observation.streams["ee_to_target"][row]) > 0.02
            assert np.array_equal(result.started.ids, result.ended)
            assert np.array_equal(result.started.state[at], env.batch.state[row])
    assert ended > 12


def test_the_time_limit_truncates():
    env = make_env("reach", 2)
    OneAgentEnv(env).reset([1, 2])
    still = np.zeros((2, 7), np.float32)
    for _ in range(env.spec.episode_steps - 1):
        assert not len(OneAgentEnv(env).step(still).ended)
    result = OneAgentEnv(env).step(still)
    assert result.outcomes.tolist() == [Outcome.TIME_LIMIT] * 2
    assert result.truncated.all() and not result.terminated.any()
    assert (result.reward_status == RewardStatus.SCORED).all()


def test_without_autoreset_an_ended_row_is_parked():
    env = make_env("reach", 6, seed=3)
    env.autoreset = False
    OneAgentEnv(env).reset()
    parked = np.zeros(6, bool)
    last = {}
    for _ in range(30):
        before = env.snapshot()
        result = OneAgentEnv(env).step(OneAgentEnv(env).expert())
        after = env.snapshot()
        assert not parked[result.ended].any() and result.started is None
        for name in before:
            assert np.array_equal(before[name][parked], after[name][parked])
        assert (result.outcomes[parked] == Outcome.RUNNING).all() and (result.rewards[parked] == 0).all()
        for at, row in enumerate(result.ended):
            last[row] = result.final["joint_pos"][at]
        parked[result.ended] = True
    assert parked.all()
    assert all(np.array_equal(last[row], result.observation.streams["joint_pos"][row]) for row in range(6))
    observation, _ = OneAgentEnv(env).reset()
    assert (observation.rows.episode == 1).all() and (
        OneAgentEnv(env).step(OneAgentEnv(env).expert()).observation.rows.step == 1
    ).all()


def run(env, steps, seed):
    rng, kept = np.random.default_rng(seed), []
    for _ in range(steps):
        result = OneAgentEnv(env).step(noisy(env, rng))
        streams = result.observation.streams
        kept.append([env.batch.state.copy(), result.rewards, result.outcomes, result.applied, *streams.values()])
    return kept


@pytest.mark.parametrize("name", TASKS)
def test_branches_from_a_snapshot_continue_bit_for_bit(name):
    env = make_env(name, 4, seed=8)
    OneAgentEnv(env).reset()
    run(env, 12, 0)
    snapshot = env.snapshot()
    first = run(env, 45, 1)  # over ends of episodes
    env.restore(snapshot)
    again = run(env, 45, 1)
    other = make_env(name, 4, num_threads=1, seed=8)
    OneAgentEnv(other).reset([1, 2, 3, 4])
    other.restore(snapshot)
    elsewhere = run(other, 45, 1)
    for one, two, three in zip(first, again, elsewhere, strict=True):
        assert all(np.array_equal(a, b) and np.array_equal(a, c) for a, b, c in zip(one, two, three, strict=True))


def test_one_state_branches_into_many_environments():
    env = make_env("lift_cube", 5, seed=8)
    OneAgentEnv(env).reset()
    run(env, 10, 0)
    source = env.snapshot([3])
    env.restore({name: np.repeat(values, 3, axis=0) for name, values in source.items()}, [0, 1, 4])
    streams = env.observe()["robot"].streams
    actions = OneAgentEnv(env).expert()
    assert all(
        np.array_equal(values[0], values[3]) and np.array_equal(values[4], values[3]) for values in streams.values()
    )
    assert np.array_equal(actions[0], actions[3])
    for _ in range(6):
        result = OneAgentEnv(env).step(OneAgentEnv(env).expert())
        states = env.batch.state
        assert np.array_equal(states[0], states[3]) and np.array_equal(states[1], states[4])
        assert result.rewards[0] == result.rewards[3] == result.rewards[4]


def test_a_foreign_snapshot_or_ids_are_refused():
    env, other = make_env("reach", 3), make_env("lift_cube", 3)
    OneAgentEnv(env).reset()
    OneAgentEnv(other).reset()
    with pytest.raises(SpecMismatch, match="another task"):
        env.restore(other.snapshot())
    with pytest.raises(SpecMismatch, match="another task"):
        env.restore(env.snapshot([0]), [0, 1])
    for ids in ([3], [-1], [1, 0], [0.5]):
        with pytest.raises(ConfigError, match="ascending integers"):
            env.snapshot(ids)


@pytest.mark.parametrize("poison", ["action", "state", "raised"])
def test_a_diverged_environment_is_a_fault_and_leaves_the_others_alone(poison, monkeypatch):
    clean, env = (make_env("lift_cube", 4, seed=1) for _ in range(2))
    for one in (clean, env):
        OneAgentEnv(one).reset()
        run(one, 5, 0)
    last = {name: values[2].copy() for name, values in env.observe()["robot"].streams.items()}
    actions = OneAgentEnv(env).expert()
    wanted = OneAgentEnv(clean).step(actions.copy())
    if poison == "action":
        actions[2, 1] = np.nan
    elif poison == "state":
        env.batch.bind("qvel")[2, 3] = np.nan
    else:
        step = env.batch.step

        def raising(*args):
            from mujoco.batch import SimulationError

            step(*args)
            raise SimulationError(np.array([2]), "made up")

        monkeypatch.setattr(env.batch, "step", raising)
    result = OneAgentEnv(env).step(actions)
    assert env.faults == 1 and result.ended.tolist() == [2] and result.started.ids.tolist() == [2]
    assert result.outcomes.tolist() == [0, 0, Outcome.INFRASTRUCTURE_FAULT, 0]
    assert result.truncated.tolist() == [False, False, True, False] and not result.terminated.any()
    assert result.reward_status[2] == RewardStatus.FAILED and result.rewards[2] == 0
    assert all(np.array_equal(result.final[name][0], last[name]) for name in last)
    assert result.observation.rows.episode.tolist() == [0, 0, 1, 0]
    assert np.isfinite(env.batch.state).all()
    others = [0, 1, 3]
    assert np.array_equal(result.rewards[others], wanted.rewards[others])
    for name, values in result.observation.streams.items():
        assert np.isfinite(values).all() and np.array_equal(values[others], wanted.observation.streams[name][others])
    monkeypatch.undo()
    assert not OneAgentEnv(env).step(OneAgentEnv(env).expert()).ended.size and env.faults == 1


def test_a_fault_without_autoreset_parks_the_environment():
    env = make_env("reach", 2)
    env.autoreset = False
    OneAgentEnv(env).reset()
    last = OneAgentEnv(env).step(OneAgentEnv(env).expert()).observation.streams["joint_pos"][0]
    env.batch.bind("qpos")[0, 0] = np.inf
    result = OneAgentEnv(env).step(np.zeros((2, 7), np.float32))
    assert result.outcomes.tolist() == [Outcome.INFRASTRUCTURE_FAULT, 0] and np.array_equal(
        result.final["joint_pos"][0], last
    )
    assert OneAgentEnv(env).step(np.full((2, 7), np.nan, np.float32)).outcomes.tolist() == [
        0,
        Outcome.INFRASTRUCTURE_FAULT,
    ]
    assert env.faults == 2


def test_actions_out_of_range_are_clipped():
    env, other = make_env("lift_cube", 2, seed=1), make_env("lift_cube", 2, seed=1)
    OneAgentEnv(env).reset()
    OneAgentEnv(other).reset()
    wild = np.array([[9.0, -9.0, np.inf, -np.inf]] * 2, np.float32)
    limit = env.action_limit
    OneAgentEnv(env).step(wild)
    OneAgentEnv(other).step(np.stack([limit * [1, -1, 1, -1]] * 2).astype(np.float32))
    assert np.array_equal(env.batch.state, other.batch.state)


def test_wrong_use_is_refused_in_one_line():
    env = make_env("reach", 3)
    with pytest.raises(ConfigError, match="call reset"):
        OneAgentEnv(env).step(np.zeros((3, 7), np.float32))
    OneAgentEnv(env).reset()
    with pytest.raises(SpecMismatch, match="actions of shape"):
        OneAgentEnv(env).step(np.zeros((3, 4), np.float32))
    for seeds in ([1, 2], [1.0, 2.0, 3.0]):
        with pytest.raises(ConfigError, match="give 3 integers"):
            OneAgentEnv(env).reset(seeds)
    for count, threads in ((0, 0), (10**9, 0), (1, -1)):
        with pytest.raises(ConfigError):
            make_env("reach", count, threads)


def test_a_start_that_mujoco_refuses_is_an_infrastructure_error(monkeypatch):
    from mujoco.batch import SimulationError

    env = BatchEnv(make_task("reach"), 2)

    def raising(ids, stage):
        raise SimulationError(np.asarray(ids), "made up")

    monkeypatch.setattr(env.batch, "forward", raising)
    with pytest.raises(InfrastructureError, match="MuJoCo cannot start"):
        OneAgentEnv(env).reset()


def test_the_spec_survives_json():
    spec = make_task("lift_cube").spec
    assert type(spec).from_dict(spec.to_dict()) == dataclasses.replace(spec, agents=dict(spec.agents))
    assert spec.control_hz == pytest.approx(20.0)


def test_a_task_that_does_not_observe_its_spec_is_named():
    env = make_env("reach", 2)
    env.task.observe = lambda fields, memory: {}
    with pytest.raises(SpecMismatch, match="gives ee_pos as nothing"):
        OneAgentEnv(env).reset()


@pytest.mark.parametrize(("field", "value"), [("qpos", np.nan), ("qvel", np.nan), ("qpos", 1e30), ("qvel", 9e9)])
def test_every_divergence_of_an_environment_is_seen(field, value):
    env = make_env("lift_cube", 3)
    OneAgentEnv(env).reset([1, 2, 3])
    idle = np.zeros((3, 4), np.float32)
    for count in range(1, 4):
        env.batch.bind(field)[1, 0] = value
        result = OneAgentEnv(env).step(idle)
        assert result.outcomes.tolist() == [0, Outcome.INFRASTRUCTURE_FAULT, 0] and env.faults == count
        assert result.rewards[1] == 0 and result.reward_status[1] == RewardStatus.FAILED
        assert OneAgentEnv(env).step(idle).outcomes.tolist() == [0, 0, 0]


def test_snapshots_of_other_streams_and_impossible_ones_are_refused():
    env = make_env("lift_cube", 2, control="ee_delta")
    OneAgentEnv(env).reset()
    other = make_env("lift_cube", 2, control="ee_target")
    OneAgentEnv(other).reset()
    with pytest.raises(SpecMismatch, match="other streams"):
        env.restore(other.snapshot())
    for name, value in (("state", np.nan), ("step", -5)):
        snapshot = env.snapshot()
        snapshot[name].flat[0] = value
        with pytest.raises(SpecMismatch, match="that no environment was ever in"):
            env.restore(snapshot)
    with pytest.raises(SpecMismatch, match="step is not int32"):
        env.restore(env.snapshot() | {"step": np.array(["0", "1"])})
    states = env.batch.state.copy()
    states[1, 2] = np.inf
    with pytest.raises(SpecMismatch, match="not finite"):
        OneAgentEnv(env).reset([1, 2], states=states)


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"num_envs": 2.5}, "num_envs cannot be 2.5"),
        ({"num_envs": True}, "num_envs cannot be true"),
        ({"num_threads": None}, "num_threads cannot be null"),
        ({"seed": 1.5}, "seed cannot be 1.5"),
        ({"cameras": [None]}, "cameras cannot be"),
        ({"cameras": None}, "cameras cannot be null"),
        ({"cameras": ["front"], "images": None}, "images cannot be null"),
        ({"control": []}, r"unknown control \[\]"),
        ({"num_envs": 65536, "cameras": ["front"], "pixels": 2048}, "take 768 GiB"),
    ],
)
def test_a_wrong_type_or_size_is_named(wrong, named):
    with pytest.raises(ConfigError, match=named):
        make_env("lift_cube", **({"num_envs": 1} | wrong))
