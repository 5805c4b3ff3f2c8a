import numpy as np
import pytest

from embodied.errors import DataError
from simulators.make import make_env, make_task
from simulators.one_agent import OneAgentEnv
from simulators.replay import replay


@pytest.mark.parametrize("name", ["reach", "lift_cube"])
def test_recorded_episodes_replay_bit_for_bit(name):
    env = make_env(name, 5, num_threads=2, seed=4)
    rng = np.random.default_rng(0)
    _, starts = OneAgentEnv(env).reset()
    begin = starts.state.copy()
    applied, states = [], [env.batch.state.copy()]
    alive = np.ones(5, bool)
    lengths = np.zeros(5, int)
    for _ in range(30):
        noise = rng.normal(0, 0.3, (5, len(env.action_limit))) * env.action_limit
        result = OneAgentEnv(env).step(OneAgentEnv(env).expert() + noise.astype(np.float32))
        alive[result.ended] = False
        lengths[alive] += 1
        applied.append(result.applied)
        states.append(env.batch.state.copy())
    assert lengths.max() >= 6
    for env_id in range(5):
        length = lengths[env_id]
        controls = np.stack([row[env_id] for row in applied[:length]])
        again = replay(env.task.model, begin[env_id], controls, env.task.substeps)
        assert np.array_equal(again, np.stack([row[env_id] for row in states[: length + 1]]))


def test_an_episode_started_by_autoreset_replays_too():
    env = make_env("reach", 3, num_threads=1)
    OneAgentEnv(env).reset()
    starts, applied = {}, {}
    for _ in range(60):
        result = OneAgentEnv(env).step(OneAgentEnv(env).expert())
        for env_id in applied:
            applied[env_id].append(result.applied[env_id])
            if env_id in result.ended:
                final = replay(env.task.model, starts[env_id], np.stack(applied[env_id]), env.task.substeps)[-1]
                at = list(result.ended).index(env_id)
                assert np.array_equal(final[1:8].astype(np.float32), result.final["joint_pos"][at])
                return
        if result.started is not None:
            for at, env_id in enumerate(result.started.ids):
                starts[env_id], applied[env_id] = result.started.state[at], []
    raise AssertionError("no second episode ended")


def test_another_model_is_refused():
    task = make_task("reach")
    with pytest.raises(DataError, match="use the task that was recorded"):
        replay(task.model, np.zeros(7), np.zeros((3, task.model.nu)), 10)
