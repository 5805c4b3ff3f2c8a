import numpy as np
import pytest

from embodied.errors import ConfigError, SpecMismatch
from simulators.make import make_env, make_task
from simulators.tabletop import TEXT_BYTES, decode_text, encode_text


def test_a_text_survives_and_is_bounded():
    assert decode_text(encode_text("lift the red cube", "x")) == "lift the red cube"
    for text in ("", "x" * (TEXT_BYTES + 1)):
        with pytest.raises(ConfigError, match="bytes"):
            encode_text(text, "task x")


def test_the_phrasing_is_drawn_by_the_seed_and_observed():
    env = make_env("lift_cube", 60)
    seen, starts = env.reset(np.arange(60))
    sentences = env.task.sentences()
    said = [decode_text(row) for row in seen.streams["instruction"]]
    assert set(said) == set(sentences) and env.spec.instruction == sentences[0]
    assert said == [sentences[i] for i in starts.drawn["sentence"]]
    again, _ = make_env("lift_cube", 3).reset([7, 59, 0])
    assert [decode_text(row) for row in again.streams["instruction"]] == [said[7], said[59], said[0]]


def test_an_arm_without_a_gripper_command_keeps_it_open():
    env = make_env("reach", 2)
    env.reset()
    result = env.step(np.zeros((2, 7), np.float32))
    assert np.allclose(result.applied[:, env.task.arm.gripper_ctrl], env.task.arm.facts.gripper_open)


def test_unknown_robots_and_rewards_are_named():
    with pytest.raises(ConfigError, match="did you mean panda"):
        make_task("lift_cube", robot="pandas")
    with pytest.raises(ConfigError, match="did you mean sparse"):
        make_task("lift_cube", reward="spars")


def test_a_task_that_draws_more_than_it_says_is_named(monkeypatch):
    task = make_task("lift_cube")
    monkeypatch.setattr(type(task), "start_draws", 2)
    with pytest.raises(SpecMismatch, match="start_draws = 2"):
        task.start(np.arange(3))
