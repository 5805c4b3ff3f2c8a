"""Instructions with another colour than the named cube's."""

import numpy as np
import pytest

from embodied.data import Outcome
from embodied.errors import ConfigError
from simulators.make import make_env
from simulators.one_agent import OneAgentEnv
from simulators.tabletop import decode_text
from simulators.tasks.reach_color import COLOURS

SEEDS = np.arange(60)


def said(observation) -> np.ndarray:
    words = [decode_text(row) for row in observation.streams["instruction"]]
    return np.array([[colour in text for colour in COLOURS].index(True) for text in words])


def test_the_instruction_alone_has_another_colour():
    seen, starts = OneAgentEnv(make_env("reach_color", len(SEEDS))).reset(SEEDS)
    other, others = OneAgentEnv(make_env("reach_color", len(SEEDS), said="other")).reset(SEEDS)
    assert np.array_equal(said(seen), starts.drawn["named"])
    assert set((said(other) - said(seen)) % 3) == {1, 2}
    for name in seen.streams.keys() - {"instruction"}:
        assert np.array_equal(seen.streams[name], other.streams[name]), name
    again, _ = OneAgentEnv(make_env("reach_color", 2, said="other")).reset(SEEDS[[7, 3]])
    assert np.array_equal(said(again), said(other)[[7, 3]])
    assert np.array_equal(starts.drawn["cubes_xy"], others.drawn["cubes_xy"])


@pytest.mark.parametrize("follows_words", [False, True])
def test_success_stays_at_the_named_cube(follows_words):
    env = make_env("reach_color", 12, said="other")
    env.autoreset = False
    seen, _ = OneAgentEnv(env).reset(SEEDS[:12])
    heard = said(seen)
    outcomes = np.zeros(12, np.uint8)
    for _ in range(env.spec.episode_steps):
        counts = env.batch.bind("userdata")[:, 1].copy()
        if follows_words:
            env.batch.bind("userdata")[:, 1] = heard
        actions = OneAgentEnv(env).expert()
        env.batch.bind("userdata")[:, 1] = counts
        result = OneAgentEnv(env).step(actions)
        outcomes[result.ended] = result.outcomes[result.ended]
    reached = Outcome.FAILURE if follows_words else Outcome.SUCCESS
    assert (outcomes == reached).sum() >= 10
    assert not (outcomes == (Outcome.SUCCESS if follows_words else Outcome.FAILURE)).any()


def test_another_word_is_named():
    with pytest.raises(ConfigError, match="did you mean other"):
        make_env("reach_color", 1, said="othr")
