import numpy as np
import pytest

from embodied.errors import ConfigError
from robots.descriptions import description_path
from robots.kinematics.facts import load_facts


def test_the_panda_opens_by_eight_centimetres():
    facts = load_facts(description_path("panda"))
    assert facts.gripper == ("finger_joint1", "finger_joint2")
    assert np.array_equal(facts.gripper_width, [0.0, 0.08])
    assert (facts.workspace[0] < facts.workspace[1]).all() and (facts.spawn[0] < facts.spawn[1]).all()


@pytest.mark.parametrize(
    ("custom", "what"),
    [("", "no text 'gripper'"), ('<text name="gripper" data="a b"/><numeric name="gripper_open" data="1"/>', "2 num")],
)
def test_a_missing_part_of_a_description_is_named(tmp_path, custom, what):
    path = tmp_path / "arm.xml"
    path.write_text(f"<mujoco><custom>{custom}</custom></mujoco>")
    with pytest.raises(ConfigError, match=what):
        load_facts(path)


def test_a_file_that_is_no_description_is_named(tmp_path):
    path = tmp_path / "arm.xml"
    path.write_text("no xml")
    with pytest.raises(ConfigError, match=r"arm\.xml"):
        load_facts(path)
