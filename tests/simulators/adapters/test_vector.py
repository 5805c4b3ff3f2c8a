"""`VectorEnv` gives what gymnasium's own vector of `SingleEnv` gives."""

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

import simulators.adapters  # noqa: F401
from embodied.errors import ConfigError, SpecMismatch
from simulators.adapters.gym_env import SingleEnv
from simulators.adapters.vector import VectorEnv

COUNT = 3


def check_same(ours, theirs, path="infos"):
    """Equal values, dtypes and nesting."""
    if isinstance(theirs, dict):
        assert isinstance(ours, dict) and ours.keys() == theirs.keys(), path
        for name in theirs:
            check_same(ours[name], theirs[name], f"{path}.{name}")
    elif theirs is None:
        assert ours is None, path
    elif isinstance(theirs, np.ndarray) and theirs.dtype == object:
        assert ours.dtype == object and ours.shape == theirs.shape, path
        for at, value in enumerate(theirs):
            check_same(ours[at], value, f"{path}[{at}]")
    else:
        assert np.array_equal(ours, theirs), path
        assert np.asarray(ours).dtype == np.asarray(theirs).dtype, path


def test_environments_of_another_range_have_their_own_seeds():
    ours, shifted = VectorEnv("reach", COUNT, num_threads=1), VectorEnv("reach", COUNT, num_threads=1, first=5)
    for seed in (7, None):
        (_, one), (_, other) = ours.reset(seed=seed), shifted.reset(seed=seed)
        assert one["episode_seed"].tolist() == other["episode_seed"].tolist()
    ours.env.close(), shifted.env.close()


RANDOMISED = {
    "randomise": {"friction": [0.8, 1.2], "mass": [0.8, 1.2], "action_latency": [0, 2], "sensor_noise": 0.01},
    "cameras": ["front"],
    "pixels": 8,
    "renderer": "ray",
}


@pytest.mark.parametrize("mode", list(AutoresetMode))
@pytest.mark.parametrize(("task", "options"), [("reach", {}), ("lift_cube", {}), ("lift_cube", RANDOMISED)])
def test_it_equals_a_sync_vector_env(task, options, mode):
    ours = VectorEnv(task, COUNT, num_threads=1, autoreset_mode=mode, **options)
    theirs = SyncVectorEnv([lambda: SingleEnv(task, **options)] * COUNT, autoreset_mode=mode)
    assert ours.metadata["autoreset_mode"] == theirs.metadata["autoreset_mode"]
    for name in ("observation_space", "action_space", "single_observation_space", "single_action_space"):
        assert getattr(ours, name) == getattr(theirs, name)
    rng, ended = np.random.default_rng(0), 0
    for seed in (5, [8, None, 2], None):
        for mine, other in zip(ours.reset(seed=seed), theirs.reset(seed=seed), strict=True):
            check_same(mine, other)
        for step in range(60):
            actions = np.stack([env.expert() for env in theirs.envs])
            np.testing.assert_array_equal(actions, ours.expert())
            # The environments differ in noise, so that they end at different steps, and one of them late.
            noise = rng.normal(0, 1, actions.shape) * ours.single_action_space.high * [[0.0], [0.4], [3.0]]
            actions = actions + noise.astype(np.float32)
            for mine, other in zip(ours.step(actions), theirs.step(actions), strict=True):
                check_same(mine, other, f"step {step}")
            over = theirs._autoreset_envs.copy()
            ended += int(over.sum())
            if mode is AutoresetMode.DISABLED and over.any():
                for own in (None, [4, None, 9]):
                    resets = [env.reset(seed=own, options={"reset_mask": over.copy()}) for env in (ours, theirs)]
                    for mine, other in zip(*resets, strict=True):
                        check_same(mine, other, f"reset after step {step}")
    assert ended >= 6


def test_the_last_of_an_episode_is_told():
    env = VectorEnv("reach", 2, num_threads=1, reward="sparse")
    env.reset(seed=[0, 1])
    for _ in range(50):
        observations, rewards, terminations, _, infos = env.step(env.expert() * [[1], [0]])
        if terminations.any():
            break
    assert terminations.tolist() == [True, False] and rewards.tolist() == [1.0, 0.0] and rewards.dtype == np.float64
    assert infos["_final_obs"].tolist() == [True, False] and infos["final_obs"][1] is None
    last = infos["final_info"]
    assert last["is_success"].tolist() == [True, False] and last["outcome"].tolist() == ["success", None]
    assert last["episode_seed"][0] == 0 and infos["episode_seed"][0] not in (0, 1)
    assert infos["outcome"].tolist() == ["running", "running"]
    assert not np.array_equal(infos["final_obs"][0]["joint_pos"], observations["joint_pos"][0])
    assert infos["final_obs"][0] in env.single_observation_space and observations in env.observation_space


def test_make_vec_and_its_pictures():
    env = gymnasium.make_vec(
        "embodied/lift_cube-v0",
        num_envs=2,
        render_mode="rgb_array",
        width=32,
        height=24,
        render_with="ray",
        num_threads=1,
    )
    assert isinstance(env, VectorEnv) and env.num_envs == 2
    env.reset(seed=1)
    pictures = env.render()
    assert len(pictures) == 2 and pictures[0].shape == (24, 32, 3) and not np.array_equal(*pictures)
    env.close()
    assert env.closed


def test_gymnasiums_wrappers_go_around_it():
    env = gymnasium.wrappers.vector.RecordEpisodeStatistics(VectorEnv("reach", 2, num_threads=1))
    env.reset(seed=1)
    lengths = []
    for _ in range(50):
        infos = env.step(env.env.expert())[-1]
        lengths += list(infos["episode"]["l"][infos["_episode"]]) if "episode" in infos else []
    assert len(lengths) >= 2 and min(lengths) > 2


def test_all_environments_may_end_at_once():
    env = VectorEnv("reach", 2, num_threads=1, autoreset_mode="next-step")
    env.reset(seed=1)
    still, steps = np.zeros(env.action_space.shape), env.env.spec.episode_steps
    for _ in range(steps):
        observations, _, _, truncations, _ = env.step(still)
    assert truncations.all()
    again, rewards, _, truncations, infos = env.step(still)
    assert not truncations.any() and not rewards.any() and infos["_episode_seed"].all()
    assert not np.array_equal(again["joint_pos"], observations["joint_pos"]) and not env.env._step.any()


@pytest.mark.parametrize("mode", ["next-step", "disabled"])
def test_wrappers_of_observations_go_around_it(mode):
    env = gymnasium.make_vec("embodied/reach-v0", num_envs=2, num_threads=1, autoreset_mode=mode)
    flat = gymnasium.wrappers.vector.FlattenObservation(env)
    if mode == "next-step":
        flat = gymnasium.wrappers.vector.NormalizeObservation(flat)
    first, _ = flat.reset(seed=1)
    assert first.shape == flat.observation_space.shape and first in flat.observation_space
    over = 0
    for _ in range(100):
        seen, _, terminations, truncations, _ = flat.step(flat.env.unwrapped.expert())
        assert seen in flat.observation_space and seen.dtype == np.float32
        ended = terminations | truncations
        over += ended.sum()
        if mode == "disabled" and ended.any():
            flat.reset(options={"reset_mask": ended})
    assert over >= 4


def test_a_masked_reset_leaves_the_others_alone():
    env = VectorEnv("reach", 3, num_threads=1)
    mask = np.array([False, True, False])
    with pytest.raises(ConfigError, match="the first reset leaves environments out"):
        env.reset(options={"reset_mask": mask})
    env.reset(seed=1)
    before, *_ = env.step(env.expert())
    after, infos = env.reset(seed=[7, 8, 9], options={"reset_mask": mask})
    assert infos["episode_seed"].tolist() == [0, 8, 0] and infos["_episode_seed"].tolist() == mask.tolist()
    assert (after["joint_pos"] == before["joint_pos"]).all(axis=1).tolist() == (~mask).tolist()
    assert env.env._step.tolist() == [1, 0, 1]
    for wrong in ([True, False, True], np.ones(2, bool), np.zeros(3, bool), np.ones(3)):
        with pytest.raises(ConfigError, match=r"reset_mask cannot be .*give a numpy array of 3 bool"):
            env.reset(options={"reset_mask": wrong})


def test_without_autoreset_a_step_after_the_end_is_refused():
    env = VectorEnv("reach", 2, num_threads=1, autoreset_mode="disabled")
    env.reset(seed=1)
    ended = np.zeros(2, bool)
    while not ended.any():
        _, _, terminations, truncations, _ = env.step(env.expert())
        ended = terminations | truncations
    for _ in range(2):
        with pytest.raises(ConfigError, match=f"environments {np.flatnonzero(ended)[0]}.* have ended.*reset_mask"):
            env.step(env.expert())
    env.reset(options={"reset_mask": ended})
    env.step(env.expert())
    with pytest.raises(ConfigError, match="autoreset_mode cannot be 'never'"):
        VectorEnv("reach", 2, autoreset_mode="never")


def test_bad_input_is_one_line():
    env = VectorEnv("reach", 2, num_threads=1)
    with pytest.raises(ConfigError, match="3 seeds for 2 environments"):
        env.reset(seed=[1, 2, 3])
    with pytest.raises(ConfigError, match="step before the first reset"):
        env.step(np.zeros((2, 7)))
    env.reset(seed=1)
    with pytest.raises(SpecMismatch, match=r"shape \(2, 6\).*give \(2, 7\)"):
        env.step(np.zeros((2, 6)))
    with pytest.raises(SpecMismatch, match="NaN"):
        env.step(np.full((2, 7), np.nan))
    with pytest.raises(ConfigError, match="num_envs cannot be 0"):
        VectorEnv("reach", 0)


@pytest.mark.parametrize(
    "seed",
    [-1, 2**63, 2**63 - 1, np.uint64(2**63), "abc", 1.5, [1, 2, 2**63], [1, None, "x"], np.full(3, 2**63, np.uint64)],
)  # fmt: skip
def test_a_wrong_seed_is_one_line(seed):
    env = VectorEnv("reach", COUNT, num_threads=1)
    with pytest.raises(ConfigError, match=r"the seed cannot be .* give 0 to 92233720368547758"):
        env.reset(seed=seed)
    for good in (2**63 - COUNT, np.arange(COUNT, dtype=np.uint64)):
        seeds = env.reset(seed=good)[1]["episode_seed"]
        assert seeds.tolist() == (np.arange(COUNT) + int(np.ravel(good)[0])).tolist()


def test_a_wrong_picture_size_is_refused():
    with pytest.raises(ConfigError, match="width cannot be 0"):
        VectorEnv("reach", COUNT, num_threads=1, width=0)
