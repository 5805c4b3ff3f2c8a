import mujoco
import numpy as np
import pytest

from embodied.errors import ConfigError
from simulators.make import make_task
from simulators.objects import JointedObject
from simulators.scene import PHYSICS_DT, ROBOT_HITS, SCENE_HITS, add_model, table_scene
from tests.simulators.meshed_arm import write_box

PRIMITIVES = {mujoco.mjtGeom.mjGEOM_CAPSULE, mujoco.mjtGeom.mjGEOM_BOX, mujoco.mjtGeom.mjGEOM_SPHERE}


def test_the_scene_is_primitives_with_three_cameras():
    model = make_task("lift_cube").model
    assert {model.camera(i).name for i in range(model.ncam)} == {"front", "wrist", "video"}
    assert model.nmesh == 0 and model.ngeom <= 24
    assert {int(kind) for kind in model.geom_type} <= {int(kind) for kind in PRIMITIVES | {mujoco.mjtGeom.mjGEOM_PLANE}}
    assert model.opt.timestep == PHYSICS_DT and model.opt.jacobian == mujoco.mjtJacobian.mjJAC_DENSE


def test_the_robot_never_hits_itself_and_only_its_hand_hits_the_scene():
    model = make_task("lift_cube").model
    data = mujoco.MjData(model)
    hits = {model.geom(i).name for i in range(model.ngeom) if model.geom_contype[i] or model.geom_conaffinity[i]}
    assert hits == {"hand", "left_finger", "left_pad", "right_finger", "right_pad", "table", "cube"}
    rng = np.random.default_rng(0)
    for _ in range(50):
        data.qpos[:9] = rng.uniform(model.jnt_range[:9, 0], model.jnt_range[:9, 1])
        mujoco.mj_forward(model, data)
        for contact in data.contact:
            assert {"table", "cube"} & {model.geom(contact.geom1).name, model.geom(contact.geom2).name}


def test_a_held_pose_does_not_sag():
    model = table_scene().compile()
    data = mujoco.MjData(model)
    home = model.numeric("home").data
    data.qpos[:7], data.ctrl[:7] = home, home
    mujoco.mj_step(model, data, nstep=400)
    assert np.abs(data.qpos[:7] - home).max() < 1e-4


def test_an_unknown_robot_is_refused():
    with pytest.raises(ConfigError, match="no robot is called"):
        table_scene("pandora")


def test_an_object_of_a_file_is_placed_with_its_joints_and_collides_as_a_part(tmp_path):
    write_box(tmp_path / "door.obj", (0.01, 0.1, 0.1))
    file = tmp_path / "box.xml"
    file.write_text(
        '<mujoco><compiler angle="radian"/><option cone="elliptic" timestep="0.001"/>'
        '<asset><mesh name="door" file="door.obj"/></asset>'
        '<worldbody><light/><geom type="plane" size="1 1 1"/><body name="frame" pos="0 0 0.1"><geom size="0.02"/>'
        '<body name="door"><joint name="hinge" axis="0 0 1" range="0 1.5"/><geom type="mesh" mesh="door" mass="0.2"/>'
        '<site name="handle" pos="0 0.1 0"/></body></body></worldbody></mujoco>'
    )
    scene = table_scene()
    lights = len(scene.lights)
    add_model(scene, "box", file)
    model = scene.compile()
    assert model.nmocap == 1 and model.joint("box_hinge").range[1] == 1.5 and model.nlight == lights
    assert model.opt.timestep == 0.005 and model.opt.cone == mujoco.mjtCone.mjCONE_PYRAMIDAL
    own = [g for g in range(model.ngeom) if model.body(model.geom_bodyid[g]).name.startswith("box_")]
    assert len(own) == 2
    assert {(model.geom_contype[g], model.geom_conaffinity[g]) for g in own} == {(SCENE_HITS, ROBOT_HITS)}
    data, door = mujoco.MjData(model), JointedObject(model, "box_hinge", "box_handle")
    data.mocap_pos[0] = [0.5, 0.1, 0.0]
    data.qpos[model.joint("box_hinge").qposadr[0]] = np.pi / 2
    mujoco.mj_forward(model, data)
    fields = {"qpos": data.qpos[None], "qvel": data.qvel[None], "site_xpos": data.site_xpos[None]}
    np.testing.assert_allclose(door.pos(fields)[0], [0.4, 0.1, 0.1], atol=1e-9)
    assert door.moved(fields) == np.pi / 2 and door.speed(fields) == 0
    file.write_text("<mujoco><worldbody>")
    with pytest.raises(ConfigError, match=r"MuJoCo cannot read it.*box\.xml") as caught:
        add_model(table_scene(), "box", file)
    assert "\n" not in caught.value.line()
