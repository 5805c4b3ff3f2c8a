"""Settings: one line for every value of a wrong kind, whichever policy it is for."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from embodied.errors import ConfigError
from embodied.gateways.groot import policy as groot
from embodied.gateways.openpi import policy as openpi
from embodied.settings import Share, configured, settings
from policies import film, flow, mlp, tokens
from policies.words import Words
from tests.policies.pictured import AGENT

ALL = [film, flow, tokens, mlp, groot, openpi]
SEEING = [film, flow, tokens]


@settings()
class Every:
    """A field of each kind."""

    count: int
    share: Share = 0.5
    on: bool = False
    names: tuple[str, ...] = ()
    sizes: Sequence[int] = (1,)
    scale: float | Mapping[str, float] | None = None
    words: Words | None = None
    rest: Any = None


def refused(module: Any, config: dict[str, Any]) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        module.build(AGENT, **({"name": "p"} | config))
    assert "\n" not in caught.value.line() and "__init__" not in caught.value.line() and caught.value.fix
    return caught.value


def test_values_are_taken_as_their_fields_have_them():
    made = configured(Every, {"count": 2, "share": 1, "names": "one", "sizes": [3, 4], "words": {"length": 5}})
    assert made == Every(2, 1, names=("one",), sizes=(3, 4), words=Words(length=5))
    assert configured(Every, {"scale": {"a": 1}, "rest": Every}, count=1) == Every(1, scale={"a": 1}, rest=Every)
    assert configured(Every, {"count": 1, "names": ["a", "b"], "words": None}).names == ("a", "b")


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"count": "abc"}, "count cannot be 'abc' (here.count): give a whole number"),
        ({"count": 1.5}, "count cannot be 1.5 (here.count): give a whole number"),
        ({"count": True}, "count cannot be true (here.count): give a whole number"),
        ({"count": None}, "count cannot be null (here.count): give a whole number"),
        ({"share": "x"}, "share cannot be 'x' (here.share): give a number from 0 to 1"),
        ({"share": float("nan")}, "share cannot be nan (here.share): give a number from 0 to 1"),
        ({"share": float("inf")}, "share cannot be inf (here.share): give a number from 0 to 1"),
        ({"share": False}, "share cannot be false (here.share): give a number from 0 to 1"),
        ({"share": 1.5}, "share cannot be 1.5 (here.share): give a number from 0 to 1"),
        ({"share": 97}, "share cannot be 97 (here.share): did you mean 0.97? give a number from 0 to 1"),
        ({"on": 1}, "on cannot be 1 (here.on): give true or false"),
        ({"names": [1]}, "names cannot be [1] (here.names): give a list of words"),
        ({"names": {"a": 1}}, "names cannot be {'a': 1} (here.names): give a list of words"),
        ({"sizes": 7}, "sizes cannot be 7 (here.sizes): give a list of whole numbers"),
        ({"sizes": "12"}, "sizes cannot be '12' (here.sizes): give a list of whole numbers"),
        ({"scale": {"": "b"}}, "scale cannot be {'': 'b'} (here.scale): give a number or a mapping to numbers or null"),
        ({"words": 3}, "words cannot be 3 (here.words): give a mapping of vocabulary, length or null"),
        ({"words": {"length": "x"}}, "length cannot be 'x' (here.words.length): give a whole number of at least 1"),
        ({"words": {"lenght": 3}}, "there is no setting lenght (here.words.lenght): did you mean length?"),
        ({"zz": 1}, "there is no setting zz (here.zz): known: count, names, on, rest, scale, share, sizes, words"),
    ],
)  # fmt: skip
def test_a_wrong_kind_is_one_line_with_what_is_wanted(config: dict[str, Any], said: str):
    with pytest.raises(ConfigError) as caught:
        configured(Every, {"count": 1} | config, "here")
    assert caught.value.line() == said


def test_what_is_missing_or_given_already_is_named():
    with pytest.raises(ConfigError, match=r"count is missing \(policy\.count\): give a whole number"):
        configured(Every, {})
    with pytest.raises(ConfigError, match="no setting count"):
        configured(Every, {"count": 2}, count=1)


@pytest.mark.parametrize("module", ALL)
def test_every_policy_needs_a_name_that_is_a_word_and_knows_its_settings(module: Any):
    with pytest.raises(ConfigError, match=r"name is missing \(policy\.name\)"):
        module.build(AGENT)
    assert refused(module, {"name": 5, "address": "127.0.0.1:1"}).where == "policy.name"
    assert refused(module, {"wdith": 5, "address": "127.0.0.1:1"}).where == "policy.wdith"


@pytest.mark.parametrize(
    "module,config",
    [(module, config) for module in SEEING for config in (
        {"width": "abc"}, {"channels": 7}, {"channels": [8, "x"]}, {"channels": [8, 0]}, {"chunk": [1]}, {"chunk": 1.5},
        {"execute": "all"}, {"state": 3}, {"pictures": [1]}, {"instruction": 4}, {"critic": {"goal": 1}},
        {"words": [64]}, {"critic_hidden": 16}, {"critic_hidden": [0]}, {"seed": "x"}, {"seed": None}, {"width": 0},
    )]
    + [(film, {"hidden": 1.5}), (film, {"init_std": "wide"}), (film, {"hidden": True}), (film, {"init_std": 0})]
    + [(flow, {"grid": 1}), (flow, {"noise": "x"}), (flow, {"steps": 1}), (flow, {"times": 0}), (flow, {"noise": 0})]
    + [(tokens, {"grid": "yes"}), (tokens, {"lora": 8}), (tokens, {"base": 3}), (tokens, {"bins": 1}),
       (tokens, {"lora": {"rank": "x"}}), (tokens, {"vision_layers": -1}), (tokens, {"heads": 3})]
    + [(mlp, {"hidden": 1.5}), (mlp, {"hidden": ["x"]}), (mlp, {"init_std": "x"}), (mlp, {"action_scale": "x"})]
    + [(far, {"address": "127.0.0.1:1", **config}) for far in (groot, openpi) for config in (
        {"chunk": "x"}, {"timeout_s": "x"}, {"api_key": 5}, {"execute": 1.5}, {"address": 5},
    )],
)  # fmt: skip
def test_a_setting_of_the_wrong_kind_is_named_in_one_line(module: Any, config: dict[str, Any]):
    error, name = refused(module, config), list(config)[-1]
    assert error.where.startswith("policy") and name in error.line()
