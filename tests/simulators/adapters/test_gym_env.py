"""`SingleEnv`: gymnasium's own checker, seeds, endings, bad input."""

import warnings

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from embodied.errors import ConfigError, SpecMismatch
from simulators.adapters.gym_env import SingleEnv
from simulators.adapters.spaces import observation_space
from simulators.make import make_env, task_names
from simulators.one_agent import OneAgentEnv

EXPECTED = ("value is -infinity", "value is infinity", "symmetric and normalized space")
SMALL = {"width": 32, "height": 24, "render_with": "ray"}


def same(left, right):
    assert left.keys() == right.keys()
    assert all(np.array_equal(left[name], right[name]) for name in left)


@pytest.mark.parametrize("name", task_names())
def test_gymnasiums_checker_passes(name):
    env = gymnasium.make(f"simulators.adapters:embodied/{name}-v0", render_mode="rgb_array", **SMALL)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        check_env(env.unwrapped)
    said = [str(warning.message) for warning in caught]
    assert not [text for text in said if not any(part in text for part in EXPECTED)]
    env.close()


def test_a_seed_decides_its_episode_as_everywhere():
    env, native = SingleEnv("reach"), make_env("reach", 2)
    observation, info = env.reset(seed=7)
    theirs, starts = OneAgentEnv(native).reset([3, 7])
    same(observation, {name: values[1] for name, values in theirs.streams.items()})
    assert info["episode_seed"] == 7 and not info["is_success"] and info["outcome"] == "running"
    same(info["drawn"], {name: values[1] for name, values in starts.drawn.items()})
    following = [env.reset()[1]["episode_seed"] for _ in range(3)]
    env.reset(seed=7)
    assert following == [env.reset()[1]["episode_seed"] for _ in range(3)] and len(set(following)) == 3


@pytest.mark.parametrize(("expert", "outcome"), [(True, "success"), (False, "time_limit")])
def test_episodes_end(expert, outcome):
    env = SingleEnv("reach", reward="sparse")
    env.reset(seed=1)
    total, ended, steps = 0.0, False, 0
    while not ended:
        action = env.expert() if expert else np.zeros(env.action_space.shape, np.float32)
        _, reward, terminated, truncated, info = env.step(action)
        assert type(reward) is float and type(terminated) is bool and type(truncated) is bool
        total, ended, steps = total + reward, terminated or truncated, steps + 1
    assert (terminated, truncated) == (expert, not expert)
    assert info["outcome"] == outcome and info["is_success"] is expert and total == float(expert)
    assert expert or steps == env.env.spec.episode_steps
    assert isinstance(info["instruction"], str) and info["instruction"]
    with pytest.raises(ConfigError, match="outside an episode"):
        env.step(env.action_space.sample())


def test_a_fault_is_truncated_and_no_reward():
    env = SingleEnv("lift_cube")
    env.reset(seed=1)
    env.step(env.expert())
    env.env.batch.state[0, 1:] = 1e12
    observation, reward, terminated, truncated, info = env.step(env.expert())
    assert info["infrastructure_fault"] and info["outcome"] == "infrastructure_fault" and not info["is_success"]
    assert reward == 0.0 and truncated and not terminated and observation in env.observation_space


def test_actions_out_of_range_are_clipped():
    left, right = SingleEnv("reach"), SingleEnv("reach")
    left.reset(seed=1), right.reset(seed=1)
    limit = left.action_space.high
    same(left.step(limit)[0], right.step(limit * [1, 2, 3, 4, 5, 6, np.inf])[0])


@pytest.mark.parametrize(
    ("action", "said"),
    [
        (np.zeros(6), r"shape \(6,\).*give \(7,\)"),
        (np.zeros((1, 7)), r"shape \(1, 7\)"),
        ([np.nan] * 7, "NaN"),
        ("left", "cannot be str"),
        (None, r"shape \(\)"),
    ],
)
def test_a_bad_action_is_one_line(action, said):
    env = SingleEnv("reach")
    env.reset(seed=1)
    with pytest.raises(SpecMismatch, match=said):
        env.step(action)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"task": "lift_cub"}, "did you mean lift_cube"),
        ({"task": "reach", "rewrad": "dense"}, "did you mean reward"),
        ({"task": "reach", "render_mode": "rgb"}, "did you mean rgb_array"),
        ({"task": "reach", "camera": "vidoe"}, "did you mean video"),
        ({"task": "reach", "render_with": "rays"}, "did you mean ray"),
    ],
)
def test_bad_options_are_one_line(options, said):
    with pytest.raises(ConfigError, match=said):
        SingleEnv(**options)


def test_reset_takes_no_options():
    env = SingleEnv("reach")
    with pytest.raises(ConfigError, match="reset takes no option 'goal'"):
        env.reset(options={"goal": 1})


def test_pictures_show_the_camera_asked_for():
    pictures = []
    for camera in ("", "video", "front"):
        env = SingleEnv("lift_cube", "rgb_array", camera, **SMALL)
        env.reset(seed=1)
        pictures.append(env.render())
        env.close()
    assert pictures[0].shape == (24, 32, 3) and pictures[0].dtype == np.uint8
    assert np.array_equal(pictures[0], pictures[1]) and not np.array_equal(pictures[0], pictures[2])
    silent = SingleEnv("lift_cube")
    silent.reset(seed=1)
    assert silent.render() is None


def test_spaces_follow_the_streams():
    agent = make_env("reach", 1).spec.agents["robot"]
    space = observation_space(agent)
    assert set(space.spaces) == {stream.name for stream in agent.observations}
    assert all(space[s.name].shape == s.shape and space[s.name].dtype == s.dtype for s in agent.observations)


@pytest.mark.parametrize("name", ["width", "height"])
@pytest.mark.parametrize("value", [0, 1, -5, 4097, 100000, 32.0, "32", None])
def test_a_wrong_picture_size_is_refused(name, value):
    with pytest.raises(ConfigError, match=f"{name} cannot be .* from 2 to 4096"):
        SingleEnv("reach", render_mode="rgb_array", **{name: value})


@pytest.mark.parametrize("seed", [-1, 2**63, np.uint64(2**63), "abc", 1.5, [1]])
def test_a_wrong_seed_is_one_line(seed):
    env = SingleEnv("reach")
    with pytest.raises(ConfigError, match=r"the seed cannot be .* give 0 to 9223372036854775807"):
        env.reset(seed=seed)
    for good in (2**63 - 1, np.uint64(7)):
        assert env.reset(seed=good)[1]["episode_seed"] == good
