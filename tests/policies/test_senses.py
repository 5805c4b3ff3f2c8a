"""Streams that a policy reads, and one line for each way in which they may not fit."""

import numpy as np
import pytest

from embodied.errors import ConfigError, DataError, SpecMismatch
from embodied.spec import AgentSpec, Stream
from policies.senses import Senses, action_scales
from policies.words import Words
from tests.policies.pictured import AGENT, streams


def test_all_pictures_are_taken_unless_named():
    more = AgentSpec((*AGENT.observations, Stream("wrist", (8, 8, 3), "uint8"), Stream("map", (8, 8), "uint8")), ())
    assert [s.name for s in Senses.choose(more, instruction=None).pictures] == ["front", "wrist"]
    assert [s.name for s in Senses.choose(more, pictures=["wrist"], instruction=None).pictures] == ["wrist"]
    senses = Senses.choose(more, ["position"], [], critic=["goal"])
    assert [s.name for s in senses.observations] == ["position", "instruction"]
    assert Senses.choose(more, "position", [], critic="goal").names == senses.names
    assert senses.names == ["position", "instruction", "goal"]
    assert senses.sizes == (2, 2)
    assert senses.identity == {"tokenizer": Words().name}


@pytest.mark.parametrize(
    ("chosen", "said"),
    [
        ({"pictures": ["wrist_rgb"]}, r"pictures names wrist_rgb.*env\.cameras"),
        ({"state": ["positon"]}, "state names positon.*did you mean position"),
        ({"critic": ["held"]}, "critic names held"),
        ({"instruction": "task"}, "instruction names task"),
        ({"state": ["front"]}, r"state names front, which is uint8 \[16, 16, 3\].*float32"),
        ({"pictures": ["goal"]}, "pictures names goal, which is float32.*uint8 stream of 3 dimensions"),
        ({"instruction": "goal"}, "instruction names goal"),
        ({"critic": ["instruction"]}, "critic names instruction"),
        ({"state": ["goal", "position", "goal"]}, "state names goal twice"),
        ({"pictures": ["front", "front"]}, "pictures names front twice"),
        ({"critic": ["goal", "goal"]}, "critic names goal twice"),
    ],
)
def test_streams_that_do_not_fit_are_refused_in_one_line(chosen: dict, said: str):
    with pytest.raises(SpecMismatch, match=said) as error:
        Senses.choose(AGENT, **chosen)
    assert "\n" not in error.value.line() and error.value.where.startswith("stream ")


@pytest.mark.parametrize("name", ["state", "words", "critic"])
def test_a_picture_does_not_take_the_place_of_another_input(name: str):
    agent = AgentSpec((*AGENT.observations, Stream(name, (8, 8, 3), "uint8")), ())
    for pictures in (None, [name]):
        with pytest.raises(SpecMismatch, match=f"pictures name {name}.*rename"):
            Senses.choose(agent, pictures=pictures)
    assert len(Senses.choose(agent, pictures=["front"]).pictures) == 1


def test_numbers_and_the_rest_come_in_rows_with_zeros_below():
    senses, seen = Senses.choose(AGENT, ["goal", "position"], critic=["position"]), streams(3)
    numbers = senses.numbers(seen, 3, pad=2)
    assert numbers.shape == (5, 6) and not numbers[3:].any()
    np.testing.assert_array_equal(numbers[:3], np.concatenate([seen["goal"], seen["position"], seen["position"]], 1))
    np.testing.assert_array_equal(senses.numbers(seen, 3, critic=False), numbers[:3, :4])
    rest = senses.rest(seen, 3, pad=1)
    assert rest["front"].shape == (4, 16, 16, 3) and rest["words"].shape == (4, 16)
    assert not rest["front"][3].any() and not rest["words"][3].any()
    np.testing.assert_array_equal(rest["front"][:3], seen["front"])
    assert senses.numbers({}, 0, pad=2).shape == (2, 6)


def test_leading_axes_are_rows():
    senses, seen = Senses.choose(AGENT, ["goal"]), streams(6)
    folded = {name: array.reshape(2, 3, *array.shape[1:]) for name, array in seen.items()}
    np.testing.assert_array_equal(senses.numbers(folded, 6), senses.numbers(seen, 6))
    np.testing.assert_array_equal(senses.rest(folded, 6)["words"], senses.rest(seen, 6)["words"])


def test_what_is_missing_is_named_and_what_the_critic_lacks_may_be_left_out():
    senses, seen = Senses.choose(AGENT, ["position"], critic=["goal"]), streams(2)
    with pytest.raises(SpecMismatch, match="stream position"):
        senses.numbers({"goal": seen["goal"]}, 2)
    with pytest.raises(SpecMismatch, match=r"stream goal.*policy\.critic=\[\]"):
        senses.numbers({"position": seen["position"]}, 2)
    with pytest.raises(SpecMismatch, match="stream position"):
        senses.numbers(seen | {"position": seen["position"][:, :1]}, 2)
    with pytest.raises(SpecMismatch, match="stream front"):
        senses.rest({"instruction": seen["instruction"]}, 2)


def test_an_empty_instruction_is_found_before_anything_is_computed():
    senses, seen = Senses.choose(AGENT), streams(4)
    senses.check(seen, 4)
    senses.check({}, 0)
    Senses.choose(AGENT, instruction=None).check({}, 4)
    seen["instruction"][2] = 0
    with pytest.raises(DataError, match="row 2"):
        senses.check(seen, 4)


def test_action_scales_come_from_limits_one_number_or_names():
    assert action_scales(AGENT) == [0.5, 0.5, 1.0]
    assert action_scales(AGENT, 2.0) == [2.0, 2.0, 2.0]
    assert action_scales(AGENT, {"gripper": 3.0}) == [0.5, 0.5, 3.0]
    for wrong in ({"griper": 1.0}, 0.0, {"velocity": -1.0}, float("nan")):
        with pytest.raises(ConfigError, match="action_scale"):
            action_scales(AGENT, wrong)
    with pytest.raises(SpecMismatch, match="stream token"):
        action_scales(AgentSpec((), (Stream("token", (1,), "int32"),)))
