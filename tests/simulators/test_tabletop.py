import numpy as np
import pytest

from embodied.errors import ConfigError, SpecMismatch
from simulators.make import make_env, make_task
from simulators.one_agent import OneAgentEnv
from simulators.tabletop import TEXT_BYTES, decode_text, encode_text


def test_a_text_survives_and_is_bounded():
    assert decode_text(encode_text("lift the red cube", "x")) == "lift the red cube"
    for text, said in (("", "is empty"), (" \t", "is empty"), ("x" * (TEXT_BYTES + 1), "65 bytes")):
        with pytest.raises(ConfigError, match=said):
            encode_text(text, "task x")


def test_the_phrasing_is_drawn_by_the_seed_and_observed():
    env = make_env("lift_cube", 60)
    seen, starts = OneAgentEnv(env).reset(np.arange(60))
    sentences = env.task.sentences()
    said = [decode_text(row) for row in seen.streams["instruction"]]
    assert set(said) == set(sentences) and env.spec.instruction == sentences[0]
    assert said == [sentences[i] for i in starts.drawn["sentence"]]
    again, _ = OneAgentEnv(make_env("lift_cube", 3)).reset([7, 59, 0])
    assert [decode_text(row) for row in again.streams["instruction"]] == [said[7], said[59], said[0]]


def test_an_arm_without_a_gripper_command_keeps_it_open():
    env = make_env("reach", 2)
    OneAgentEnv(env).reset()
    result = OneAgentEnv(env).step(np.zeros((2, 7), np.float32))
    assert np.allclose(result.applied[:, env.task.arm.gripper_ctrl], env.task.arm.facts.gripper_open)


def test_unknown_robots_and_rewards_are_named():
    with pytest.raises(ConfigError, match="did you mean panda"):
        make_task("lift_cube", robot="pandas")
    with pytest.raises(ConfigError, match="did you mean sparse"):
        make_task("lift_cube", reward="spars")


def test_a_task_that_draws_more_than_it_says_is_named(monkeypatch):
    task = make_task("lift_cube")
    monkeypatch.setattr(type(task), "reset_draws", 2)
    with pytest.raises(SpecMismatch, match="reset_draws = 2"):
        task.initial_states(np.arange(3))


def test_phrasings_held_out_are_never_drawn_in_training():
    seeds = np.arange(200)
    count = len(make_task("reach_color").instructions)
    starts = {
        which: make_task("reach_color", phrasings=which).initial_states(seeds) for which in ("all", "train", "unseen")
    }
    drawn = {which: set(start.drawn["sentence"] % count) for which, start in starts.items()}
    assert drawn == {"all": {0, 1, 2, 3, 4, 5}, "train": {0, 1, 2, 3}, "unseen": {4, 5}}
    for start in starts.values():
        assert np.array_equal(start.state["qpos"], starts["all"].state["qpos"])
        assert np.array_equal(start.drawn["named"], starts["all"].drawn["named"])
    assert np.array_equal(
        make_task("reach_color").initial_states(seeds).drawn["sentence"], starts["all"].drawn["sentence"]
    )


def test_unknown_phrasings_are_named(monkeypatch):
    with pytest.raises(ConfigError, match="did you mean unseen"):
        make_task("lift_cube", phrasings="unsen")
    with pytest.raises(ConfigError, match="draws no phrasings"):
        make_task("reach_pair", phrasings="train")
    task = make_task("lift_cube")
    monkeypatch.setattr(type(task), "instructions", ("lift it",))
    task.draw_phrasings("train")
    with pytest.raises(ConfigError, match="holds none out"):
        task.draw_phrasings("unseen")
