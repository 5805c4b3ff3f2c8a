"""The expert of a task of one's own, tested with this project's own environments."""

import numpy as np

from embodied.data import Outcome
from simulators.make import make_env
from simulators.one_agent import OneAgentEnv


def test_the_expert_touches_the_post() -> None:
    env = make_env("my_lab.touch_post", 100)
    env.autoreset = False
    one = OneAgentEnv(env)
    one.reset(np.arange(100))
    outcomes, lengths = np.zeros(100), np.zeros(100)
    for step in range(env.spec.episode_steps):
        result = one.step(one.expert())
        outcomes[result.ended], lengths[result.ended] = result.outcomes[result.ended], step + 1
    assert (outcomes == Outcome.SUCCESS).mean() >= 0.95
    assert lengths.mean() < 0.7 * env.spec.episode_steps
