import numpy as np
import pytest

from embodied.data import Outcome
from embodied.errors import ConfigError
from simulators.make import make_env, make_task, task_names

TASKS = task_names()


def expert_episodes(env, seeds, noise=0.0):
    """Outcomes, rewards summed and lengths of one episode per body."""
    env.autoreset = False
    env.reset(seeds)
    rng = np.random.default_rng(0)
    outcomes, returns, lengths = (np.zeros(len(seeds)) for _ in range(3))
    for step in range(env.spec.episode_steps):
        scale = noise * env.action_limit
        result = env.step(env.expert() + (rng.normal(size=(len(seeds), len(scale))) * scale).astype(np.float32))
        returns += result.rewards
        outcomes[result.ended], lengths[result.ended] = result.outcomes[result.ended], step + 1
    return outcomes, returns, lengths


@pytest.mark.parametrize("name", TASKS)
def test_the_expert_succeeds(name):
    outcomes, returns, lengths = expert_episodes(make_env(name, 200), np.arange(200))
    assert (outcomes == Outcome.SUCCESS).mean() >= 0.95
    assert returns[outcomes == Outcome.SUCCESS].min() > 0 and lengths.max() < make_task(name).spec.episode_steps


@pytest.mark.parametrize("name", TASKS)
def test_the_sparse_reward_is_one_for_success(name):
    outcomes, returns, _ = expert_episodes(make_env(name, 20, reward="sparse"), np.arange(20), noise=0.2)
    assert np.array_equal(returns, (outcomes == Outcome.SUCCESS).astype(float))


@pytest.mark.parametrize("name", TASKS)
def test_the_dense_reward_prefers_success(name):
    _, returns, _ = expert_episodes(make_env(name, 20), np.arange(20))
    _, noisy, _ = expert_episodes(make_env(name, 20), np.arange(20), noise=5.0)
    assert (returns > noisy).all()


def test_the_targets_leash_holds():
    env = make_env("lift_cube", 4)
    env.reset()
    rng = np.random.default_rng(0)
    for _ in range(40):
        before = env.observe().streams["ee_pos"]
        actions = (rng.choice([-1.0, 1.0], (4, 4)) * env.action_limit).astype(np.float32)
        rows = env.step(actions)
        going = ~np.isin(np.arange(4), rows.ended)
        target = rows.observation.streams["ee_pos"] + rows.observation.streams["ee_target_offset"]
        assert (np.linalg.norm(target - before, axis=1)[going] <= 0.08 + 1e-5).all()
        low, high = env.task.arm.chain.lower, env.task.arm.chain.upper
        assert ((rows.applied[:, :7] >= low) & (rows.applied[:, :7] <= high)).all()


def test_a_cube_off_the_table_is_a_failure():
    env = make_env("lift_cube", 2, seed=1)
    env.reset()
    snapshot = env.snapshot([1])
    at = env.task.model.joint("cube").qposadr[0] + 1  # time is the first number of a state row
    snapshot["state"][0, at : at + 3] = [1.5, 0.0, -0.04]
    env.restore(snapshot, [1])
    for _ in range(3):
        result = env.step(np.zeros((2, 4), np.float32))
        if len(result.ended):
            break
    assert result.outcomes.tolist() == [Outcome.RUNNING, Outcome.FAILURE] and result.terminated.tolist() == [
        False,
        True,
    ]


def test_tasks_are_found_by_module_name():
    assert {"reach", "lift_cube"} <= set(task_names())
    with pytest.raises(ConfigError, match="did you mean lift_cube"):
        make_task("lift_cub")
    with pytest.raises(ConfigError, match="did you mean reward"):
        make_task("reach", rewards="dense")
    with pytest.raises(ConfigError, match="did you mean dense"):
        make_task("reach", reward="dens")
