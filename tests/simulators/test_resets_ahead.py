import numpy as np

from embodied import noise
from simulators.make import make_env, make_task
from simulators.one_agent import OneAgentEnv
from simulators.resets_ahead import ResetsAhead


def test_initial_states_drawn_ahead_are_those_of_their_keys():
    task = make_task("reach")
    for count in (1, 3, 700):
        ahead, episode = ResetsAhead(task.initial_states, count), np.zeros(count, np.int64)
        rng = np.random.default_rng(0)
        for _ in range(40):
            ids = np.flatnonzero(rng.random(count) < 0.5).astype(np.int32)
            episode[ids] += 1
            seeds, start = ahead.take(5, ids, episode)
            keys = np.stack([np.full(len(ids), 5), ids, 0 * ids, episode[ids], 0 * ids], axis=1)
            assert np.array_equal(seeds, noise.integers(keys))
            fresh = task.initial_states(seeds)
            assert all(np.array_equal(fresh.state[name], start.state[name]) for name in fresh.state)
            assert all(np.array_equal(fresh.drawn[name], start.drawn[name]) for name in fresh.drawn)


def test_another_seed_or_a_restored_count_is_noticed():
    env = make_env("reach", 3, seed=1)
    _, first = OneAgentEnv(env).reset()
    begun = env.snapshot()
    _, second = OneAgentEnv(env).reset()
    env.restore(begun)
    assert np.array_equal(OneAgentEnv(env).reset()[1].seeds, second.seeds)
    env.restore(begun)
    env.seed = 2
    assert not np.array_equal(OneAgentEnv(env).reset()[1].seeds, second.seeds)
    assert not np.array_equal(first.seeds, second.seeds)
