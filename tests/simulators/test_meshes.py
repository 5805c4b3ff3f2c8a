"""Meshes from a folder laid out like mujoco_menagerie, with one box per link."""

import mujoco
import numpy as np
import pytest

from embodied.errors import ConfigError
from simulators.make import make_env, make_task
from simulators.meshes import HIDDEN_GROUP
from simulators.one_agent import OneAgentEnv
from simulators.scene import table_scene

MODEL = """<mujoco>
  <compiler angle="radian" meshdir="assets"/>
  <asset>
    <mesh file="box.obj"/>
    <material name="red" rgba="0.8 0.1 0.1 1"/>
  </asset>
  <worldbody>
    <body name="link0">
      <geom type="mesh" mesh="box" material="red" contype="0" conaffinity="0"/>
      <geom type="mesh" mesh="box"/>
      <body name="link1" pos="0 0 {height}">
        <joint axis="0 0 1"/>
        <geom type="mesh" mesh="box" pos="0.1 0 0" quat="1 0 0 1" rgba="0 0 1 1" contype="0" conaffinity="0"/>
        <body name="cover" pos="0 0 0.2" quat="1 0 0 1">
          <geom type="mesh" mesh="box" pos="0.1 0 0" contype="0" conaffinity="0"/>
        </body>
      </body>
    </body>
  </worldbody>
</mujoco>"""
CORNERS = [(x, y, z) for x in (-0.05, 0.05) for y in (-0.05, 0.05) for z in (-0.05, 0.05)]
FACES = ["1 2 4 3", "5 7 8 6", "1 5 6 2", "3 4 8 7", "1 3 7 5", "2 6 8 4"]


@pytest.fixture
def copy(tmp_path):
    """A folder with a model of the Panda's first two links and one of its own."""
    assets = tmp_path / "franka_emika_panda" / "assets"
    assets.mkdir(parents=True)
    lines = [f"v {x} {y} {z}" for x, y, z in CORNERS] + [f"f {face}" for face in FACES]
    (assets / "box.obj").write_text("\n".join(lines))
    (assets.parent / "panda.xml").write_text(MODEL.format(height=0.333))
    return tmp_path


def test_visual_meshes_hang_on_our_bodies_and_our_geoms_are_hidden(copy):
    model = table_scene("panda", str(copy)).compile()
    meshes = [i for i in range(model.ngeom) if model.geom_type[i] == mujoco.mjtGeom.mjGEOM_MESH]
    assert [model.body(model.geom_bodyid[i]).name for i in meshes] == ["link0", "link1", "link1"]
    np.testing.assert_allclose(model.geom_rgba[meshes[:2]], [[0.8, 0.1, 0.1, 1], [0, 0, 1, 1]], atol=1e-6)
    np.testing.assert_allclose(model.geom_pos[meshes], [[0, 0, 0], [0.1, 0, 0], [0, 0.1, 0.2]], atol=1e-6)
    assert not model.geom_contype[meshes].any() and not model.geom_conaffinity[meshes].any()
    robots = model.body_rootid[model.geom_bodyid] == model.body("link0").id
    robots[meshes] = False
    assert robots.any() and (model.geom_group[robots] == HIDDEN_GROUP).all()


def test_both_arms_of_a_pair_are_dressed(copy):
    model = table_scene("panda_pair", str(copy)).compile()
    meshes = model.geom_type == mujoco.mjtGeom.mjGEOM_MESH
    bodies = {model.body(body).name for body in model.geom_bodyid[meshes]}
    assert bodies == {"left_link0", "left_link1", "right_link0", "right_link1"}


def test_states_are_the_same_bit_for_bit(copy):
    envs = [make_env("lift_cube", 4, meshes=meshes) for meshes in ("", str(copy))]
    for env in envs:
        OneAgentEnv(env).reset(np.arange(4))
    for _ in range(30):
        states = []
        for env in envs:
            OneAgentEnv(env).step(OneAgentEnv(env).expert())
            states.append(env.batch.state.copy())
        assert np.array_equal(*states)
    plain, dressed = (env.task.model for env in envs)
    assert dressed.nmesh == 1 and plain.nmesh == 0
    assert np.array_equal(plain.body_mass, dressed.body_mass)
    assert np.array_equal(plain.body_inertia, dressed.body_inertia)


def test_the_environment_may_name_the_copy(copy, monkeypatch):
    monkeypatch.delenv("MENAGERIE_ROOT", raising=False)
    with pytest.raises(ConfigError, match="MENAGERIE_ROOT is not set"):
        make_task("reach", meshes="menagerie")
    monkeypatch.setenv("MENAGERIE_ROOT", str(copy))
    assert make_task("reach", meshes="menagerie").model.nmesh == 1
    assert make_task("reach").model.nmesh == 0


def test_a_copy_that_does_not_fit_is_one_line(copy, tmp_path):
    with pytest.raises(ConfigError, match="no folder"):
        table_scene("panda", str(tmp_path / "absent"))
    with pytest.raises(ConfigError, match=r"no robotstudio_so101/so101\.xml"):
        table_scene("so101", str(copy))
    model = copy / "franka_emika_panda" / "panda.xml"
    model.write_text(MODEL.format(height=0.3))
    with pytest.raises(ConfigError, match="body 'link1' has another frame"):
        table_scene("panda", str(copy))
    model.write_text("<mujoco><worldbody><body name='link0'/></worldbody></mujoco>")
    with pytest.raises(ConfigError, match="no visual meshes"):
        table_scene("panda", str(copy))
    model.write_text("<mujoco><worldbody><body name='torso'/></worldbody></mujoco>")
    with pytest.raises(ConfigError, match="does not start with the robot's base"):
        table_scene("panda", str(copy))
    model.write_text("no model")
    with pytest.raises(ConfigError, match="cannot read menagerie's model"):
        table_scene("panda", str(copy))


def test_a_missing_mesh_is_named(copy):
    (copy / "franka_emika_panda" / "assets" / "box.obj").unlink()
    with pytest.raises(ConfigError, match=r"box\.obj is missing"):
        table_scene("panda", str(copy))
