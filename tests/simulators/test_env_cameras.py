"""Cameras of the batched environment: current after a step, before and after a restart, and as the spec says."""

import numpy as np
import pytest

from embodied.errors import ConfigError
from simulators.make import make_env
from simulators.one_agent import OneAgentEnv

OPTIONS = {"cameras": ["front", "wrist"], "pixels": 16, "images": ["rgb", "depth", "segmentation"], "renderer": "ray"}


def drawn_anew(env):
    """Pictures of the present states."""
    return env._cameras.render(env._senses._poses)


def test_streams_are_in_the_spec_after_the_tasks_own():
    env = make_env("reach", 2, 1, **OPTIONS)
    observation, _ = OneAgentEnv(env).reset()
    streams = env.spec.agents["robot"].observations
    assert [s.name for s in streams[-6:]] == [f"{c}_{k}" for c in ("front", "wrist") for k in OPTIONS["images"]]
    for stream in streams:
        values = observation.streams[stream.name]
        assert values.shape == (2, *stream.shape) and values.dtype == stream.dtype and values.flags.owndata
    assert observation.streams["front_rgb"].std() > 10
    assert type(env.spec).from_dict(env.spec.to_dict()) == env.spec
    env.close()


def test_pictures_are_of_the_state_after_the_step_and_of_the_new_episode_after_a_restart():
    env = make_env("reach", 6, 1, seed=3, **OPTIONS)
    OneAgentEnv(env).reset()
    ended = 0
    for _ in range(25):
        before = {name: values.copy() for name, values in env._senses.last["robot"].items()}
        result = OneAgentEnv(env).step(OneAgentEnv(env).expert())
        streams = result.observation.streams
        for name, values in drawn_anew(env).items():
            assert np.array_equal(streams[name], values), name
        for at, row in enumerate(result.ended):
            ended += 1
            # The last picture is near the one before it, and unlike that of the next start.
            step = np.abs(result.final["front_rgb"][at].astype(int) - before["front_rgb"][row]).mean()
            restart = np.abs(result.final["front_rgb"][at].astype(int) - streams["front_rgb"][row]).mean()
            assert step < restart
    assert ended >= 6


@pytest.mark.parametrize("randomise", [None, {"sensor_noise": {"wrist_depth": 0.1}, "observation_latency": [0, 2]}])
def test_parked_bodies_keep_their_last_picture_and_are_not_drawn(randomise, monkeypatch):
    env = make_env("reach", 5, 1, seed=3, randomise=randomise, **OPTIONS)
    env.autoreset = False
    OneAgentEnv(env).reset()
    asked = []
    render = env._cameras.render

    def counting(fields, ids=None, looks=None):
        asked.append(env.num_envs if ids is None else len(ids))
        return render(fields, ids, looks)

    monkeypatch.setattr(env._cameras, "render", counting)
    live, last = 5, {}
    for _ in range(40):
        result = OneAgentEnv(env).step(OneAgentEnv(env).expert())
        assert asked == [live]
        for at, row in enumerate(result.ended):
            last[row] = {name: result.final[name][at] for name in ("wrist_rgb", "wrist_depth")}
        for row, pictures in last.items():
            for name, picture in pictures.items():
                assert np.array_equal(result.observation.streams[name][row], picture)
        live -= len(result.ended)
        asked.clear()
    assert live == 0


def test_restored_bodies_are_drawn_again():
    env = make_env("reach", 4, 1, seed=3, **OPTIONS)
    env.autoreset = False
    OneAgentEnv(env).reset()
    snapshot = env.snapshot([2])
    picture = env.observe()["robot"].streams["front_rgb"][2]
    for _ in range(12):
        OneAgentEnv(env).step(OneAgentEnv(env).expert())
    env.restore(snapshot, [0])
    streams = env.observe()["robot"].streams
    assert np.array_equal(streams["front_rgb"][0], picture)
    for name, values in drawn_anew(env).items():
        assert np.array_equal(streams[name], values)


def test_a_fault_keeps_the_last_picture():
    env = make_env("reach", 3, 1, seed=3, **OPTIONS)
    OneAgentEnv(env).reset()
    last = env.observe()["robot"].streams["front_rgb"][1]
    actions = OneAgentEnv(env).expert()
    actions[1] = np.nan
    result = OneAgentEnv(env).step(actions)
    assert result.ended.tolist() == [1] and np.array_equal(result.final["front_rgb"][0], last)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"cameras": ["frnt"]}, "did you mean front"),
        ({"cameras": "front", "images": ["rgbd"]}, "did you mean rgb"),
        ({"cameras": ["front"], "pixels": 4}, "8 to"),
        ({"cameras": ["front", "front"]}, "each stream once"),
        ({"cameras": ["front"], "renderer": "rey"}, "did you mean ray"),
        ({"camera": ["front"]}, "did you mean cameras"),
        ({"rewad": "dense"}, "did you mean reward"),
    ],
)
def test_a_mistake_names_the_nearest(options, said):
    with pytest.raises(ConfigError, match=said):
        make_env("reach", 1, **options)
