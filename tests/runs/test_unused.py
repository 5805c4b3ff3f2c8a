"""Words of the command line that change nothing are said."""

import pytest

from embodied.cli.compose import compose_config
from embodied.runs.settings import Settings, typed
from embodied.runs.unused import unused


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["algo=bc", "warm_start.demonstrations=2", "warm_start.clone.steps=9"], "write algo.KEY=VALUE"),
        (["algo=bc", "warm_start.demonstrations=2", "+rollout.steps=8"], "demonstrations alone"),
        (["warm_start.clone.steps=9"], "give warm_start.demonstrations"),
        (["warm_start.demonstrations=2", "warm_start.memory_gb=1"], "give warm_start.episodes"),
        (["compare.wrong=seen"], "give compare.split"),
        (["env.pixels=64"], "give env.cameras"),
        (["client.timeout_s=3"], "in this process"),
    ],
)
def test_a_word_without_effect_is_said_once(words: list[str], said: str) -> None:
    settings = typed(Settings, compose_config("train", words))
    [line] = unused(settings, words, only_clones="algo=bc" in words)
    assert line.startswith(f"{words[-1]} has no effect: ") and said in line


def test_words_with_effect_are_not_said() -> None:
    words = [
        "env.cameras=[wrist]",
        "env.pixels=64",
        "warm_start.demonstrations=2",
        "warm_start.clone.steps=9",
        "seed=3",
    ]
    assert not list(unused(typed(Settings, compose_config("train", words)), words, only_clones=False))
