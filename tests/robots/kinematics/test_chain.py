import numpy as np
import pytest

from embodied.errors import ConfigError
from robots.descriptions import Mount, arms, description_path
from robots.kinematics.chain import load_chain


def test_panda_has_its_published_limits():
    chain = load_chain(description_path("panda"))
    assert chain.joints == tuple(f"joint{i}" for i in range(1, 8))
    assert chain.upper.tolist() == [2.8973, 1.7628, 2.8973, -0.0698, 2.8973, 3.7525, 2.8973]
    assert chain.lower.tolist() == [-2.8973, -1.7628, -2.8973, -3.0718, -2.8973, -0.0175, -2.8973]
    assert chain.velocity_limit.tolist() == [2.175] * 4 + [2.61] * 3
    assert ((chain.home > chain.lower) & (chain.home < chain.upper)).all()


def test_the_so101_has_its_published_limits():
    chain = load_chain(description_path("so101"))
    assert chain.joints == ("shoulder_pan", "shoulder_lift", "elbow_flex", "wrist_flex", "wrist_roll")
    assert chain.upper.tolist() == [1.91986, 1.74533, 1.69, 1.65806, 2.84121]
    assert chain.lower.tolist() == [-1.91986, -1.74533, -1.69, -1.65806, -2.74385]
    assert ((chain.home > chain.lower) & (chain.home < chain.upper)).all()


def test_arms_and_their_mounts_are_read_from_a_description():
    assert arms("panda") == {"": Mount("panda")}
    pair = arms("panda_pair")
    assert [(prefix, mount.robot) for prefix, mount in pair.items()] == [("left_", "panda"), ("right_", "panda")]
    assert pair["left_"].pos == (0.0, 0.35, 0.0) and pair["right_"].pos == (0.0, -0.35, 0.0)
    with pytest.raises(ConfigError, match="no robot is called"):
        arms("panda_trio")


def test_unknown_names_get_the_nearest_ones(tmp_path):
    with pytest.raises(ConfigError, match="did you mean panda"):
        description_path("pandaa")
    with pytest.raises(ConfigError, match="no site is called"):
        load_chain(description_path("panda"), tip="nose")
    with pytest.raises(ConfigError, match="cannot read"):
        load_chain(tmp_path / "absent.xml")


HEAD = """<mujoco>
  <compiler angle="radian"/>
  <custom><numeric name="home" data="0"/><numeric name="velocity_limit" data="1"/></custom>
  <default><default class="a"><joint range="-1 2"/></default></default>
"""


@pytest.mark.parametrize(
    ("joint", "message"),
    [
        ('<joint name="j" class="a" type="slide"/>', "not a plain hinge"),
        ('<joint name="j"/>', "not a plain hinge"),
        ('<joint name="j" class="a" pos="1 0 0"/>', "not a plain hinge"),
        ('<joint name="j" range="0 one"/>', "expected 2 numbers"),
        ("", "no joint moves"),
    ],
)
def test_a_chain_of_other_joints_is_refused(tmp_path, joint, message):
    path = tmp_path / "r.xml"
    path.write_text(f'{HEAD}<worldbody><body>{joint}<site name="ee"/></body></worldbody></mujoco>')
    with pytest.raises(ConfigError, match=message):
        load_chain(path)


def test_defaults_are_inherited_by_class(tmp_path):
    path = tmp_path / "r.xml"
    body = '<body childclass="a" pos="1 0 0"><joint name="j" axis="0 2 0"/><site name="ee" pos="0 0 3"/></body>'
    path.write_text(f"{HEAD}<worldbody>{body}</worldbody></mujoco>")
    chain = load_chain(path)
    assert (chain.lower, chain.upper) == (-1.0, 2.0)
    assert np.array_equal(chain.axis, [[0, 1, 0]]) and np.array_equal(chain.tip_pos, [0, 0, 3])
    path.write_text(path.read_text().replace('angle="radian"', 'angle="degree"'))
    with pytest.raises(ConfigError, match="radians"):
        load_chain(path)
