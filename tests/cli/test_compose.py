"""Words of the command line: what is known is taken, everything else is refused in one line."""

import pytest

from embodied.cli.compose import compose_config
from embodied.errors import ConfigError


@pytest.mark.parametrize(
    ("command", "word", "said"),
    [
        ("train", "+hydra.ouput_subdir=x", "unknown key 'hydra.ouput_subdir'.*known: algo, budget"),
        ("train", "hydra.run.dir=x", "unknown key"),
        ("train", "~hydra.x", "unknown key"),
        ("train", "+rollout.num_env=3", "did you mean rollout.num_envs"),
        ("train", "++sed=3", "did you mean seed"),
        ("train", "budget.minibatches=3", "did you mean algo.minibatches"),
        ("train", "+split=colours", "unknown key 'split'"),
        ("train", "+task@foo=reach", "unknown key 'task@foo'"),
        ("train", "algo=sac", "known: bc, ppo"),
        ("train", "algo=PPO", "did you mean ppo"),
        ("train", "seed=1,2", "several values .*seed=.a,b"),
        ("train", "seed=range(1,3)", "several values"),
        ("train", "~seed=0", "write ~seed"),
        ("play", "algo=ppo", "known: camera, env"),
        ("play", "policy.chunk=3", "unknown key"),
        ("eval", "+foo=1", "unknown key 'foo'"),
        ("serve", "+foo=1", "unknown key 'foo'"),
        ("tasks", "+foo=1", "known: episodes"),
    ],
)
def test_unknown_words_are_refused_with_near_or_known_names(command: str, word: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        compose_config(command, [word])


def test_known_keys_may_be_added_or_removed() -> None:
    config = compose_config("train", ["+seed=3", "++algo=bc", "+algo.picture_jitter=0", "~debug"])
    assert config.seed == 3 and config.algo._target_.endswith("BehaviourCloning")
    assert config.algo.picture_jitter == 0 and "debug" not in config


def test_render_and_renderer_are_one_key() -> None:
    assert compose_config("train", ["renderer=gl"]).render.renderer == "gl"
    assert compose_config("play", ["render=gl"]).renderer == "gl"
