"""Randomised environments: the same seed gives the same episode anywhere, latency, noise, branches and replay."""

import numpy as np
import pytest

from embodied.errors import ConfigError, SpecMismatch
from simulators.make import make_env
from simulators.one_agent import OneAgentEnv
from simulators.replay import replay, state_hash
from tests.simulators.randomise.test_randomise import ALL

CAMERAS = {"cameras": ["wrist"], "pixels": 16, "images": ["rgb", "depth"], "renderer": "ray"}


def actions_of(env, step):
    """[B, D] actions of a step that depend on the episode only."""
    wave = np.sin(np.arange(len(env.action_limit)) + 0.7 * step).astype(np.float32)
    return np.tile(wave * env.action_limit, (env.num_envs, 1))


def run(env, steps, start=0):
    """Records of each step: streams, states, rewards, applied controls, times."""
    kept = []
    for step in range(start, start + steps):
        result = OneAgentEnv(env).step(actions_of(env, step))
        kept.append({
            **result.observation.streams, "/state": env.batch.state.copy(), "/reward": result.rewards,
            "/applied": result.applied, "/time": result.observation.time, "/hash": result.state_hash,
        })  # fmt: skip
    return kept


def assert_same(first, second, rows, others):
    for one, two in zip(first, second, strict=True):
        for name in one:
            assert np.array_equal(one[name][rows], two[name][others]), name


def test_a_seed_gives_the_same_episode_in_any_environment_and_batch():
    options = {**CAMERAS, "randomise": ALL}
    small, large = make_env("lift_cube", 2, 1, seed=3, **options), make_env("lift_cube", 5, 2, seed=4, **options)
    first, starts = OneAgentEnv(small).reset([11, 12])
    second, others = OneAgentEnv(large).reset([0, 12, 7, 11, 5])
    for name in starts.drawn:
        assert np.array_equal(starts.drawn[name], others.drawn[name][[3, 1]]), name
    assert_same([first.streams], [second.streams], [0, 1], [3, 1])
    assert_same(run(small, 8), run(large, 8), [0, 1], [3, 1])
    assert not np.array_equal(others.drawn["mass"][0], others.drawn["mass"][1])


def test_episodes_drawn_ahead_are_those_of_their_seeds():
    env, other = (make_env("reach", 3, 1, seed=2, randomise=ALL) for _ in range(2))
    _, ahead = OneAgentEnv(env).reset()
    _, given = OneAgentEnv(other).reset(ahead.seeds)
    assert all(np.array_equal(ahead.drawn[name], given.drawn[name]) for name in given.drawn)
    assert_same(run(env, 5), run(other, 5), slice(None), slice(None))


def test_physics_acts_and_replays_bit_for_bit():
    env = make_env("lift_cube", 4, 2, randomise={"mass": [0.5, 2.0], "friction": [0.5, 1.5], "gains": [0.7, 1.3]})
    plain = make_env("lift_cube", 4, 2)
    _, starts = OneAgentEnv(env).reset([1, 2, 3, 4])
    OneAgentEnv(plain).reset([1, 2, 3, 4])
    kept, others = run(env, 12), run(plain, 12)
    assert not np.array_equal(kept[-1]["/state"], others[-1]["/state"])
    for row in range(4):
        applied = np.stack([step["/applied"][row] for step in kept])
        drawn = {name: values[row] for name, values in starts.drawn.items()}
        states = replay(env.task.model, starts.state[row], applied, env.task.substeps, drawn)
        assert np.array_equal(states[1:], np.stack([step["/state"][row] for step in kept]))
        assert np.array_equal(state_hash(states)[1:], np.stack([step["/hash"][row] for step in kept]))


def test_a_change_of_state_changes_its_hash():
    rng = np.random.default_rng(0)
    states = rng.normal(size=(200, 40))
    hashes = state_hash(states)
    assert len(set(hashes.tolist())) == 200 and np.array_equal(state_hash(states[3:4]), hashes[3:4])
    for change in (np.nextafter(states, np.inf), -states, np.roll(states, 1, axis=1), np.roll(states, 1, axis=0)):
        assert (state_hash(np.ascontiguousarray(change)) != hashes).all()


def test_actions_come_late():
    late, prompt = (make_env("reach", 3, 1, randomise={"action_latency": [n, n]}) for n in (2, 0))
    _, starts = OneAgentEnv(late).reset([5, 6, 7])
    OneAgentEnv(prompt).reset([5, 6, 7])
    held = late.batch.bind("ctrl").copy()
    assert starts.drawn["action_latency"].tolist() == [2, 2, 2]
    first = run(late, 2)
    assert np.array_equal(first[0]["/applied"], held) and np.array_equal(first[1]["/applied"], held)
    # From here on both start alike but for the two steps of waiting, so the same actions ask for the same joints.
    step = OneAgentEnv(late).step(actions_of(late, 2))
    q = first[1]["/state"][:, 1:8]
    arm = late.task.arm
    wanted = np.clip(q + actions_of(late, 0), arm.chain.lower, arm.chain.upper)
    np.testing.assert_allclose(step.applied[:, :7], wanted, atol=1e-6)


def test_late_observations_carry_their_capture_times():
    late = make_env("reach", 3, 1, randomise={"observation_latency": [2, 2]}, **CAMERAS)
    prompt = make_env("reach", 3, 1, **CAMERAS)
    first, _ = OneAgentEnv(late).reset([5, 6, 7])
    now, _ = OneAgentEnv(prompt).reset([5, 6, 7])
    seen, happened = [first.streams, *run(late, 6)], [now.streams, *run(prompt, 6)]
    for step in range(7):
        for name in now.streams:
            assert np.array_equal(seen[step][name], happened[max(step - 2, 0)][name]), (step, name)
    np.testing.assert_allclose([step["/time"][0] for step in seen[1:]], [0, 0, 0.05, 0.1, 0.15, 0.2])
    assert np.array_equal(seen[-1]["/reward"], happened[-1]["/reward"])


@pytest.mark.parametrize("noise", [{"joint_pos": 0.01, "ee_pos": 0.002}, 0.05])
def test_sensors_are_noisy_and_nothing_else_is(noise):
    noisy, clean = make_env("reach", 64, 1, randomise={"sensor_noise": noise}), make_env("reach", 64, 1)
    seeds = np.arange(64)
    (first, _), (truth, _) = OneAgentEnv(noisy).reset(seeds), OneAgentEnv(clean).reset(seeds)
    for step in range(3):
        for name, values in truth.streams.items():
            error = (first.streams[name] - values) if values.dtype != np.uint8 else first.streams[name] != values
            size = noise.get(name, 0.0) if isinstance(noise, dict) else noise
            if values.dtype == np.uint8 or not size:
                assert not error.any(), name
            elif isinstance(noise, dict):
                assert 0.8 * size < error.std() < 1.2 * size, name
            elif np.abs(values).min() > 0.01:
                assert 0.8 * size < (error / values).std() < 1.2 * size, name
        again = noisy.observe()["robot"].streams
        assert all(np.array_equal(again[name], values) for name, values in first.streams.items())
        assert np.array_equal(noisy.batch.state, clean.batch.state)
        first, truth = (
            OneAgentEnv(noisy).step(actions_of(noisy, step)).observation,
            OneAgentEnv(clean).step(actions_of(clean, step)).observation,
        )


@pytest.mark.parametrize("randomise", [None, ALL])
def test_branches_continue_bit_for_bit_in_other_environments(randomise):
    options = {**CAMERAS, "randomise": randomise}
    env, other = make_env("lift_cube", 8, 2, seed=1, **options), make_env("lift_cube", 3, 1, seed=9, **options)
    OneAgentEnv(env).reset()
    OneAgentEnv(other).reset()
    run(env, 6)
    source = env.snapshot([3])
    env.restore(source, [7])
    env.restore({name: np.repeat(values, 2, axis=0) for name, values in source.items()}, [0, 4])
    other.restore(source, [1])
    streams = env.observe()["robot"].streams
    for row in (7, 0, 4):
        assert_same([streams], [streams], [3], [row])
    assert_same([streams], [other.observe()["robot"].streams], [3], [1])
    kept, elsewhere = run(env, 10, start=6), run(other, 10, start=6)
    for row in (7, 0, 4):
        assert_same(kept, kept, [3], [row])
    assert_same(kept, elsewhere, [3], [1])


def test_a_snapshot_continues_across_ends_of_episodes():
    env = make_env("reach", 4, 2, seed=1, randomise=ALL)
    OneAgentEnv(env).reset()
    run(env, 45)
    snapshot = env.snapshot()
    first = run(env, 20, start=45)
    env.restore(snapshot)
    assert_same(first, run(env, 20, start=45), slice(None), slice(None))
    assert env.snapshot()["episode"].tolist() == [1] * 4


def test_a_snapshot_of_environments_randomised_otherwise_is_refused():
    plain, env = make_env("reach", 2, 1), make_env("reach", 2, 1, randomise={"mass": [0.9, 1.1]})
    OneAgentEnv(plain).reset()
    OneAgentEnv(env).reset()
    for one, two in ((plain, env), (env, plain)):
        with pytest.raises(SpecMismatch, match="snapshot drawn/mass"):
            one.restore(two.snapshot())


def test_the_next_episode_is_drawn_anew():
    env = make_env("reach", 2, 1, randomise={"mass": [0.5, 2.0], "observation_latency": [3, 3]})
    _, starts = OneAgentEnv(env).reset()
    still = np.zeros((2, 7), np.float32)
    for _ in range(50):
        result = OneAgentEnv(env).step(still)
    assert result.ended.tolist() == [0, 1]
    assert not np.array_equal(result.started.drawn["mass"], starts.drawn["mass"])
    np.testing.assert_allclose(env.batch.expand("body_mass"), env.task.model.body_mass * result.started.drawn["mass"])
    assert (result.observation.time == 0).all()
    assert np.array_equal(result.observation.streams["target_pos"], result.started.drawn["mocap_pos"][:, 0].astype("f"))


def test_unfit_randomisation_is_refused_at_construction(monkeypatch):
    with pytest.raises(ConfigError, match="did you mean joint_pos"):
        make_env("reach", 2, randomise={"sensor_noise": {"joint_poz": 0.1}})
    with pytest.raises(ConfigError, match="smaller latency"):
        make_env("reach", 600, randomise={"observation_latency": [0, 20]}, cameras=["front"], pixels=512)
    env = make_env("reach", 1)
    start = env.task.initial_states(np.zeros(1, np.int64))
    start.drawn["mass"] = np.zeros(1)
    monkeypatch.setattr(type(env.task), "initial_states", lambda self, seeds: start)
    with pytest.raises(SpecMismatch, match="draws mass"):
        make_env("reach", 1)
